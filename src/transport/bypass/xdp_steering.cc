#include "transport/bypass/xdp_steering.h"

#include <bpf/bpf.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstring>

#include "base/embedded_file.h"
#include "transport/addresses/addresses.h"
#include "transport/addresses/interfaces.h"
#include "transport/addresses/links.h"
#include "transport/bypass/xdp_doors.h"

NETSUM_EMBEDDED_FILE(steering_program, NETSUM_STEER_OBJECT)  // steer.bpf.c, compiled

namespace netsum::transport {
namespace {

// libbpf's diagnostics are for developers, and of many lines: errors have a line of our own.
int silent(libbpf_print_level, const char*, va_list) {
  return 0;
}

void must(int result, const std::string& what) {
  if (result < 0) throw xdp_refused(what, -result);
}

}  // namespace

XdpSteering::XdpSteering(const XdpInterface& interface, Takes takes)
    : interface_(interface), program_(takes == Takes::every_frame ? "every_frame" : "some_ports") {
  libbpf_set_print(&silent);
  bpf_object_open_opts options{};
  options.sz = sizeof options;
  options.object_name = "netsum";
  const std::span<const std::byte> file = steering_program();
  object_.reset(bpf_object__open_mem(file.data(), file.size(), &options));
  if (!object_) throw xdp_refused("opening the AF_XDP steering program", errno);
  if (interface_.queues > xdp_most_queues) {
    throw Error(ErrorCode::refused, "interface '" + interface_.name + "' has more than " + std::to_string(xdp_most_queues) +
                                        " queues: ethtool -L " + interface_.name + " combined 16");
  }
  must(bpf_map__set_max_entries(bpf_object__find_map_by_name(object_.get(), "sockets"), interface_.queues),
       "sizing the maps of the AF_XDP steering program");
  must(bpf_object__load(object_.get()), "loading an XDP program for interface '" + interface_.name + "'");
  const std::uint32_t only = 0;
  const XdpLimit limit{static_cast<std::uint32_t>(longest_frame(interface_)), 0, 0};
  must(bpf_map_update_elem(map("limit"), &only, &limit, BPF_ANY),
       "writing the longest frame to the maps of the XDP program");
}

void XdpSteering::learn_stations() {
  const OwnStations own = own_stations();
  const std::uint32_t only = 0, any = 0;
  const std::string what = "writing this host's addresses to the maps of the XDP program";
  if (const auto here = station_at(interface_.index, own)) {
    XdpStation station{};
    std::copy(here->begin(), here->end(), station.address);
    must(bpf_map_update_elem(map("station"), &only, &station, BPF_ANY), what);
  }
  for (const auto& address : own.ipv4) {
    must(bpf_map_update_elem(map("addresses"), address.data(), &any, BPF_ANY), what);
  }
  for (const auto& address : addresses_) {
    if (!own.ipv4.contains(address)) bpf_map_delete_elem(map("addresses"), address.data());
  }
  addresses_ = own.ipv4;
}

XdpLimit XdpSteering::limit() const {
  const std::uint32_t only = 0;
  XdpLimit limit{};
  static_cast<void>(bpf_map_lookup_elem(map("limit"), &only, &limit));
  return limit;
}

int XdpSteering::map(const char* name) const {
  return bpf_object__find_map_fd_by_name(object_.get(), name);
}

void XdpSteering::add_socket(std::uint32_t queue, const XdpSocket& socket, std::uint32_t owner) {
  const int descriptor = socket.descriptor();
  must(bpf_map_update_elem(map("sockets"), &queue, &descriptor, BPF_ANY),
       "writing an AF_XDP socket to the maps of the XDP program");
  must(bpf_map_update_elem(map("owners"), &queue, &owner, BPF_ANY), "writing a queue to the maps of the XDP program");
}

void XdpSteering::add_port(const Endpoint& local, std::uint32_t owner) {
  const std::uint32_t port = htons(local.port);
  XdpDoor door{.address = 0, .owner = owner, .longest = static_cast<std::uint32_t>(longest_frame(interface_))};
  if (!is_unspecified(local)) std::memcpy(&door.address, local.address.data() + 12, sizeof door.address);
  must(bpf_map_update_elem(map("doors"), &port, &door, BPF_ANY), "writing a UDP port to the maps of the XDP program");
}

void XdpSteering::remove_port(std::uint16_t port) noexcept {
  const std::uint32_t key = htons(port);
  bpf_map_delete_elem(map("doors"), &key);
}

void XdpSteering::attach() {
  const int error = despite_predecessor(interface_.patience, [this] {
    link_.reset(bpf_program__attach_xdp(bpf_object__find_program_by_name(object_.get(), program_),
                                        static_cast<int>(interface_.index)));
    return link_ ? 0 : errno;
  });
  if (error == 0) return;
  if (error == EBUSY || error == EEXIST) {
    throw Error(ErrorCode::refused,
                "interface '" + interface_.name + "' has an XDP program already: one process at a time can have it");
  }
  if (error == ERANGE) {
    throw Error(ErrorCode::refused,
                "the MTU of interface '" + interface_.name +
                    "', or of the other end of this veth, is too long for its driver's XDP: ip link set " + interface_.name +
                    " mtu 3000");
  }
  throw xdp_refused("attaching an XDP program to interface '" + interface_.name + "'", error);
}

}  // namespace netsum::transport
