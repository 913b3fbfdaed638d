// One text after another: in place of the last one in a terminal, below it elsewhere.
#pragma once

#include <memory>
#include <string>

namespace netsum::app {

class Screen {
 public:
  Screen();
  ~Screen();  // the terminal is as it was
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  [[nodiscard]] bool terminal() const;
  [[nodiscard]] std::size_t columns() const;  // that a line may have
  void show(const std::string& text);         // of whole lines
  // False: the user has had enough (q, Ctrl-C, SIGTERM), or nobody reads any more.
  [[nodiscard]] bool wait(double seconds);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::app
