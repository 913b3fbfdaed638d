#include "transport/dpdk_path.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "netsum/error.h"

namespace netsum::transport {
namespace {

constexpr const char* plugin_name = "libnetsum_dpdk.so";

// Beside what this code is in, where a build puts it, and where it is installed.
std::vector<std::string> plugin_places() {
  if (const char* const named = std::getenv("NETSUM_DPDK_PLUGIN"); named != nullptr && *named != '\0') return {named};
  std::vector<std::string> places;
  Dl_info own{};
  if (::dladdr(reinterpret_cast<const void*>(&dpdk_host), &own) != 0 && own.dli_fname != nullptr) {
    const std::string file = own.dli_fname;
    const auto slash = file.rfind('/');
    std::string folder = slash == std::string::npos ? "" : file.substr(0, slash + 1);
    // A program that was found by PATH is only named.
    std::array<char, 4096> program{};
    if (folder.empty() && ::readlink("/proc/self/exe", program.data(), program.size() - 1) > 0) {
      folder = program.data();
      folder.resize(folder.rfind('/') + 1);
    }
    for (const char* const side : {"", "../lib/"}) places.push_back(folder + side + plugin_name);
  }
  places.push_back(std::string(NETSUM_PLUGIN_FOLDER) + "/" + plugin_name);
  return places;
}

std::string first_line(const char* text) {
  const std::string all = text == nullptr ? "" : text;
  return all.substr(0, all.find('\n'));
}

OpenFramePorts* load_plugin() {
  const std::vector<std::string> places = plugin_places();
  const auto place =
      std::find_if(places.begin(), places.end(), [](const auto& each) { return ::access(each.c_str(), R_OK) == 0; });
  if (place == places.end()) {
    throw Error(ErrorCode::refused, "the data path dpdk requires the DPDK plugin, and " + places.back() +
                                        " does not exist: install netsum-dpdk, build netsum with libdpdk-dev, or set "
                                        "NETSUM_DPDK_PLUGIN");
  }
  // DPDK's threads run its code until the process ends.
  void* const plugin = ::dlopen(place->c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (plugin == nullptr) throw Error(ErrorCode::refused, "cannot load the DPDK plugin: " + first_line(::dlerror()));
  auto* const open = reinterpret_cast<OpenFramePorts*>(::dlsym(plugin, open_frame_ports_symbol));
  if (open == nullptr)
    throw Error(ErrorCode::refused, *place + " is not a netsum DPDK plugin: it does not define " + open_frame_ports_symbol);
  return open;
}

// Those that print and end the process are not for a library.
std::vector<std::string> words_of(const std::string& args) {
  std::istringstream text(args);
  std::vector<std::string> words;
  for (std::string word; text >> word;) {
    if (word == "-h" || word == "--help" || word == "-v" || word == "--version") {
      throw Error(ErrorCode::bad_argument, "EAL argument " + word + " prints and exits: remove it from --dpdk-args");
    }
    words.push_back(std::move(word));
  }
  return words;
}

std::shared_ptr<FrameHost> open_host(const DpdkOptions& options, std::uint32_t queues) {
  if (options.address.empty()) {
    throw Error(
        ErrorCode::bad_argument,
        "the data path dpdk requires an address (--dpdk-address), for example 10.0.0.1/24: DPDK's ports do not have the "
        "kernel's addresses");
  }
  const HostAddress address = host_address(options.address);
  const std::vector<std::string> words = words_of(options.args);
  OpenFramePorts* const open = load_plugin();
  std::vector<const char*> pointers;
  pointers.reserve(words.size());
  for (const std::string& word : words) pointers.push_back(word.c_str());
  std::array<char, 512> error{};
  FramePortsRequest request;
  request.version = NETSUM_VERSION;
  request.words = pointers.data();
  request.words_count = pointers.size();
  request.queues = std::max(1U, queues);
  request.error = error.data();
  request.error_bytes = error.size();
  std::unique_ptr<FramePorts> ports(open(request));
  if (!ports) throw Error(ErrorCode::refused, "DPDK: " + first_line(error.data()));
  return std::make_shared<FrameHost>(std::move(ports), address);
}

}  // namespace

std::shared_ptr<FrameHost> dpdk_host(const DpdkOptions& options, std::uint32_t queues) {
  static std::mutex mutex;
  static DpdkOptions taken;
  static std::shared_ptr<FrameHost> host;  // a port that DPDK has closed cannot be opened again
  const std::lock_guard lock(mutex);
  if (!host) {
    host = open_host(options, queues);
    taken = options;
  } else if (taken.args != options.args || taken.address != options.address) {
    throw Error(ErrorCode::refused, "this process already uses DPDK as " + taken.address + " with arguments '" + taken.args +
                                        "': use the same options, or another process");
  }
  return host;
}

}  // namespace netsum::transport
