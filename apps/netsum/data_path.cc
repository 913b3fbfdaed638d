#include "data_path.h"

namespace netsum::app {

DataPath data_path_named(const std::string& name) {
  for (const DataPath path : {DataPath::sockets, DataPath::xdp}) {
    if (name == to_string(path)) return path;
  }
  throw UsageError("--data-path is sockets or xdp, not '" + name + "'");
}

DataPathSettings::DataPathSettings(Settings& settings) {
  settings.add("data-path", path_, "NAME", "How packets pass: sockets: through the kernel; xdp: past it, by AF_XDP");
  settings.add(
      "interface", interfaces_, "NAME[,...]",
      "With xdp: the network interfaces towards ranks and other switches; for a data path, that of --listen if none "
      "is given");
}

std::vector<std::string> DataPathSettings::interfaces() const {
  return split_list(interfaces_);
}

}  // namespace netsum::app
