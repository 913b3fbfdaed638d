#include "dataplane/xdp/program.h"

#include <bpf/bpf.h>
#include <linux/if_link.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <set>
#include <utility>

#include "transport/addresses/addresses.h"
#include "transport/addresses/links.h"
#include "transport/addresses/next_hop.h"
#include "wire/ipv4.h"

namespace netsum::dataplane::xdp {
namespace {

// How many packets may wait between two processors.
constexpr std::uint32_t handed_over_packets = 2048;

// libbpf's diagnostics are for developers, and of many lines: errors have a line of our own.
int silent(libbpf_print_level, const char*, va_list) {
  return 0;
}

void must(int result, const std::string& what) {
  if (result < 0) throw refused(what, -result);
}

}  // namespace

Error refused(const std::string& what, int error) {
  if (error == EPERM || error == EACCES) {
    return {ErrorCode::refused, what + " requires CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON: run as root, or grant them (" +
                                    std::strerror(error) + ")"};
  }
  return {ErrorCode::refused, what + " failed: " + std::strerror(error)};
}

void Followers::add(Follower& follower) {
  const std::lock_guard lock(mutex_);
  all_.insert(&follower);
}

void Followers::remove(Follower& follower) {
  const std::lock_guard lock(mutex_);
  all_.erase(&follower);
}

void Followers::follow_all() {
  const std::lock_guard lock(mutex_);
  for (Follower* const each : all_) each->follow();
}

Program::Program(const std::vector<Lane>& lanes, std::span<const std::byte> object) : lanes_(lanes) {
  if (lanes.size() > xdp_max_lanes) {
    throw Error(ErrorCode::bad_argument, "the XDP data plane has at most " + std::to_string(xdp_max_lanes) + " lanes");
  }
  libbpf_set_print(&silent);
  bpf_object_open_opts options{};
  options.sz = sizeof options;
  options.object_name = "netsum";
  object_.reset(bpf_object__open_mem(object.data(), object.size(), &options));
  if (!object_) throw refused("opening the XDP program", errno);
  const int processors = libbpf_num_possible_cpus();
  must(processors, "counting processors");
  must(bpf_map__set_max_entries(bpf_object__find_map_by_name(object_.get(), "processors"),
                                static_cast<std::uint32_t>(processors)),
       "sizing the XDP program's maps");
  must(bpf_object__load(object_.get()), "loading the XDP program into the kernel");
  fill_lanes();
  learn_stations();
}

void Program::learn_stations() {
  transport::OwnStations now = transport::own_stations();
  const bool at_all =
      std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return transport::is_unspecified(lane.local); });
  if (!at_all) {
    now.ipv4.clear();
    for (const Lane& lane : lanes_) now.ipv4.insert(wire::ipv4_of(lane.local));
  }
  for (const std::uint32_t interface : places()) {
    if (const auto station = transport::station_at(interface, now)) now.ethernet[interface] = *station;
  }
  const std::string what = "writing this host's addresses to the XDP program's maps";
  for (const auto& [interface, address] : now.ethernet) {
    XdpStation station{};
    std::copy(address.begin(), address.end(), station.address);
    must(bpf_map_update_elem(map("stations"), &interface, &station, BPF_ANY), what);
  }
  for (const auto& [interface, address] : stations_.ethernet) {
    if (!now.ethernet.contains(interface)) bpf_map_delete_elem(map("stations"), &interface);
  }
  for (const wire::Ipv4& address : now.ipv4) {
    const std::uint32_t any = 0;
    must(bpf_map_update_elem(map("addresses"), address.data(), &any, BPF_ANY), what);
  }
  for (const wire::Ipv4& address : stations_.ipv4) {
    if (!now.ipv4.contains(address)) bpf_map_delete_elem(map("addresses"), address.data());
  }
  stations_ = std::move(now);
}

void Program::fill_lanes() {
  std::set<int> processors;
  for (std::uint32_t number = 0; number < lanes_.size(); ++number) {
    const std::uint32_t port = chip_host16(lanes_[number].local.port);
    must(bpf_map_update_elem(map("lanes"), &port, &number, BPF_ANY), "writing a lane to the XDP program's maps");
    processors.insert(lanes_[number].cpu);
  }
  for (const int processor : processors) {
    bpf_cpumap_val value{};
    value.qsize = handed_over_packets;
    value.bpf_prog.fd = function("handed_over");
    must(bpf_map_update_elem(map("processors"), &processor, &value, BPF_ANY),
         "handing packets over to processor " + std::to_string(processor));
  }
}

void Program::attach(const std::string& interface) {
  const std::uint32_t index = transport::ethernet_interface(interface).index;
  const std::lock_guard lock(mutex_);
  if (std::any_of(places_.begin(), places_.end(), [&](const Place& place) { return place.index == index; })) {
    throw Error(ErrorCode::bad_argument, "interface '" + interface + "' is named twice");
  }
  Place place{interface, index, false, {}, nullptr};
  attach(place);
  places_.push_back(std::move(place));
}

void Program::attach(Place& place) const {
  const auto index = static_cast<int>(place.index);
  bpf_link* const link = bpf_program__attach_xdp(bpf_object__find_program_by_name(object_.get(), "arrive"), index);
  const int error = errno;
  const std::string name = "interface '" + place.name + "'";
  if (link == nullptr && (error == EBUSY || error == EEXIST)) {
    throw Error(
        ErrorCode::refused,
        name + " has an XDP program already: stop the process that attached it, or ip link set " + place.name + " xdp off");
  }
  if (link == nullptr && error == ERANGE) {
    throw Error(ErrorCode::refused, "the MTU of " + name +
                                        " is too long for an XDP program: its driver has no fragments (xdp.frags), so a "
                                        "frame must fit into a page: ip link set " +
                                        place.name + " mtu 3000");
  }
  if (link == nullptr) throw refused("attaching an XDP program to " + name, error);
  place.link.reset(link);
  bpf_xdp_query_opts mode{};
  mode.sz = sizeof mode;
  place.vlans = transport::vlans_above(place.index);
  place.in_driver = bpf_xdp_query(index, 0, &mode) == 0 && mode.attach_mode != XDP_ATTACHED_SKB;
}

bool Program::is_on(std::uint32_t interface) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(places_.begin(), places_.end(),
                     [&](const Place& place) { return place.link && place.index == interface; });
}

bool Program::reaches(std::uint32_t interface) const {
  const std::lock_guard lock(mutex_);
  const bool by_driver = std::any_of(places_.begin(), places_.end(), [](const Place& place) { return place.in_driver; });
  return !by_driver || transport::sends_for_drivers(interface).value_or(true);
}

std::vector<std::uint32_t> Program::places() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint32_t> indices;
  for (const Place& place : places_) indices.push_back(place.index);
  return indices;
}

std::string Program::state_of(const Place& place) const {
  std::string state =
      place.in_driver ? "XDP in the driver" : "XDP in the kernel's generic mode, which is slower: the driver has no XDP";
  for (const std::string& vlan : place.vlans) {
    const bool named = std::any_of(places_.begin(), places_.end(), [&](const Place& other) { return other.name == vlan; });
    if (!named) state += "; frames of VLAN " + vlan + " go to the kernel: for ranks there name it in --interface, too";
  }
  return state;
}

void Program::follow(transport::Attachments& attachments) {
  {
    const std::lock_guard lock(mutex_);
    for (Place& place : places_) {
      const std::uint32_t index = ::if_nametoindex(place.name.c_str());
      if (index != place.index) {
        place.link.reset();
        place.index = index;
      }
      if (index == 0) {
        attachments.detached(place.name, "it was removed; no packet of a job passes there until it exists again");
        continue;
      }
      try {
        if (!place.link) attach(place);
      } catch (const Error& error) {
        attachments.detached(place.name, error.what());
        continue;
      }
      if (!transport::is_up(index)) {
        attachments.detached(place.name, "it is down, or has no link: ip link set " + place.name + " up");
      } else {
        attachments.attached(place.name, state_of(place));
      }
    }
  }
  learn_stations();
}

void Program::set_way(const XdpNewWay& change) const {
  bpf_test_run_opts options{};
  options.sz = sizeof options;
  options.data_in = &change;
  options.data_size_in = sizeof change;
  must(bpf_prog_test_run_opts(function("set_way"), &options), "updating a neighbour of a job in the XDP program");
}

int Program::map(const char* name) const {
  return bpf_object__find_map_fd_by_name(object_.get(), name);
}

int Program::function(const char* name) const {
  return bpf_program__fd(bpf_object__find_program_by_name(object_.get(), name));
}

}  // namespace netsum::dataplane::xdp
