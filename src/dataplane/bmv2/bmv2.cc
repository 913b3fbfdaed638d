#include "dataplane/bmv2/bmv2.h"

#include "netsum/version.h"
#include "transport/system/plugin.h"

namespace netsum::dataplane::bmv2 {
namespace {

constexpr transport::Plugin plugin = {"libnetsum_bmv2_plugin.so", "NETSUM_BMV2_PLUGIN", "bmv2", "the data plane bmv2",
                                      "build netsum with Thrift (Debian: thrift-compiler, libthrift-dev, libboost-dev)"};

using Open = void(const char* version, const Config& config, service::ChipPlanes& planes);

}  // namespace

service::ChipPlanes open(const Config& config) {
  service::ChipPlanes planes;
  reinterpret_cast<Open*>(transport::plugin_function(plugin, "netsum_open_bmv2"))(NETSUM_VERSION, config, planes);
  return planes;
}

}  // namespace netsum::dataplane::bmv2
