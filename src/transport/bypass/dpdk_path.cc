#include "transport/bypass/dpdk_path.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "netsum/error.h"
#include "netsum/version.h"
#include "transport/system/plugin.h"

namespace netsum::transport {
namespace {

constexpr Plugin dpdk = {"libnetsum_dpdk.so", "NETSUM_DPDK_PLUGIN", "DPDK", "the data path dpdk",
                         "install netsum-dpdk, or build netsum with libdpdk-dev"};

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
  auto* const open = reinterpret_cast<OpenFramePorts*>(plugin_function(dpdk, open_frame_ports_symbol));
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
