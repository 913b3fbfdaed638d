// How packets pass between netsum and the network: a setting of all who send and receive them.
#pragma once

#include <string>
#include <vector>

#include "config.h"
#include "netsum/types.h"

namespace netsum::app {

// sockets or xdp. Throws UsageError.
[[nodiscard]] DataPath data_path_named(const std::string& name);

// Of `netsum switch` and `netsum ps`.
class DataPathSettings {
 public:
  explicit DataPathSettings(Settings& settings);

  // Throws UsageError.
  template <class Options>
  void apply(Options& options) const {
    options.data_path = data_path_named(path_);
    options.interfaces = interfaces();
  }

 private:
  [[nodiscard]] std::vector<std::string> interfaces() const;

  std::string path_ = "sockets", interfaces_;
};

}  // namespace netsum::app
