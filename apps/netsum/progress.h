// Progress of long work.
#pragma once

#include <cstdint>

namespace netsum::app {

// A bar on stderr if that is a terminal, else no output.
class Progress {
 public:
  explicit Progress(std::uint64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void show(std::uint64_t done) const;

 private:
  std::uint64_t total_;
  bool terminal_;
};

}  // namespace netsum::app
