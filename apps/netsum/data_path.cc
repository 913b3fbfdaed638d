#include "data_path.h"

namespace netsum::app {

DataPath data_path_named(const std::string& name) {
  for (const DataPath path : {DataPath::sockets, DataPath::xdp, DataPath::dpdk}) {
    if (name == to_string(path)) return path;
  }
  throw UsageError("--data-path requires sockets, xdp or dpdk, not '" + name + "'");
}

DataPath data_path_of(const std::string& name, const DpdkOptions& dpdk) {
  const DataPath path = data_path_named(name);
  if (path != DataPath::dpdk && !(dpdk.args.empty() && dpdk.address.empty())) {
    throw UsageError("--dpdk-args and --dpdk-address require --data-path dpdk");
  }
  if (path == DataPath::dpdk && dpdk.address.empty()) {
    throw UsageError(
        "--data-path dpdk requires --dpdk-address ADDRESS/BITS: DPDK's ports do not have the kernel's addresses");
  }
  return path;
}

void add_dpdk(Settings& settings, DpdkOptions& dpdk, const std::string& heading) {
  auto args = settings.add("dpdk-args", dpdk.args, "ARGS",
                           "With dpdk: arguments of its EAL, which name the ports: '-a 0000:03:00.0'");
  auto address = settings.add("dpdk-address", dpdk.address, "ADDRESS/BITS[,GATEWAY]",
                              "With dpdk: IPv4 address of this process at these ports, with its prefix length");
  if (heading.empty()) return;
  args.group(heading);
  address.group(heading);
}

DataPathSettings::DataPathSettings(Settings& settings) {
  settings.add("data-path", path_, "NAME", "How packets are sent: sockets (kernel UDP), xdp (AF_XDP) or dpdk");
  settings.add("interface", interfaces_, "NAME[,...]",
               "With xdp: the network interfaces towards ranks and other switches; a data path uses the interface of "
               "--listen by default");
  add_dpdk(settings, dpdk_);
}

std::vector<std::string> DataPathSettings::interfaces() const {
  return split_list(interfaces_);
}

}  // namespace netsum::app
