#include "bindings/nccl/external.h"

#include <dlfcn.h>

#include <algorithm>
#include <mutex>

#include "bindings/settings/reader.h"
#include "netsum/error.h"
#include "transport/system/plugin.h"

extern "C" {
extern netsum::nccl::NetV12 ncclNetPlugin_v12;
}

namespace netsum::nccl {
namespace {

constexpr int oldest_version = 4, newest_version = 32;  // that an error shall name

std::mutex devices_mutex;
ExternalDevices current_devices;  // under the mutex

// Never closed: its threads run until the process ends.
void* opened(const std::string& file, std::string& why) {
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const text = ::dlerror();
    why += (why.empty() ? "" : "; ") + transport::first_line(text != nullptr ? text : file + ": unknown error");
  }
  return library;
}

bool is_file_name(const std::string& name) {
  return name.find('/') != std::string::npos || name.starts_with("lib") || name.ends_with(".so");
}

}  // namespace

ExternalNet::ExternalNet(const std::string& name) : file_(name) {
  std::string why;
  void* library = opened(file_, why);
  if (library == nullptr && !is_file_name(name)) {
    file_ = "libnccl-net-" + name + ".so";
    library = opened(file_, why);
  }
  if (library == nullptr) {
    throw Error(ErrorCode::bad_argument, "NETSUM_NCCL_NET=" + name + ": cannot load the network plugin: " + why);
  }
  for (int version = newest_version; version >= oldest_version; --version) {
    const void* const found = ::dlsym(library, ("ncclNetPlugin_v" + std::to_string(version)).c_str());
    if (found != nullptr) tables_.push_back({version, found});
  }
  if (table(12) == &ncclNetPlugin_v12) {
    throw Error(ErrorCode::bad_argument,
                "NETSUM_NCCL_NET=" + name + " is this plugin itself; its own sockets are NETSUM_NCCL_NET=socket");
  }
}

const ExternalNet& ExternalNet::load(const std::string& name) {
  static const ExternalNet net(name);
  return net;
}

const void* ExternalNet::table(int version) const {
  const auto found =
      std::find_if(tables_.begin(), tables_.end(), [version](const Table& each) { return each.version == version; });
  return found == tables_.end() ? nullptr : found->address;
}

std::string ExternalNet::versions() const {
  std::vector<std::string> all;
  for (const Table& each : tables_) all.push_back(std::to_string(each.version));
  return settings::joined(all, ", ");
}

void set_external_devices(const ExternalDevices& devices) {
  const std::lock_guard lock(devices_mutex);
  current_devices = devices;
}

ExternalDevices external_devices() {
  const std::lock_guard lock(devices_mutex);
  if (current_devices.devices == nullptr) {
    throw Error(
        ErrorCode::bad_argument,
        "CollNet has no devices: the network plugin that NETSUM_NCCL_NET names was not initialized (NCCL's log says why)");
  }
  return current_devices;
}

}  // namespace netsum::nccl
