// How packets pass between netsum and the network: a setting of all who send and receive them.
#pragma once

#include <string>
#include <vector>

#include "config.h"
#include "netsum/types.h"

namespace netsum::app {

// sockets, xdp or dpdk. Throws UsageError.
[[nodiscard]] DataPath data_path_named(const std::string& name);
// The same for what the flags say, with what only DPDK's path has. Throws UsageError.
[[nodiscard]] DataPath data_path_of(const std::string& name, const DpdkOptions& dpdk);
// --dpdk-args and --dpdk-address.
void add_dpdk(Settings& settings, DpdkOptions& dpdk, const std::string& heading = "");

// Of `netsum switch` and `netsum ps`.
class DataPathSettings {
 public:
  explicit DataPathSettings(Settings& settings);

  // Throws UsageError.
  template <class Options>
  void apply(Options& options) const {
    options.data_path = data_path_of(path_, dpdk_);
    options.dpdk = dpdk_;
    options.interfaces = interfaces();
  }

 private:
  [[nodiscard]] std::vector<std::string> interfaces() const;

  std::string path_ = "sockets", interfaces_;
  DpdkOptions dpdk_;
};

}  // namespace netsum::app
