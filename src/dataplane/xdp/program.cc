#include "dataplane/xdp/program.h"

#include <bpf/bpf.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <set>
#include <utility>

#include "transport/addresses/addresses.h"
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
  const std::string what = "telling the XDP program of this host's addresses";
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
    must(bpf_map_update_elem(map("lanes"), &port, &number, BPF_ANY), "telling the XDP program of a lane");
    processors.insert(lanes_[number].cpu);
  }
  for (const int processor : processors) {
    bpf_cpumap_val value{};
    value.qsize = handed_over_packets;
    value.bpf_prog.fd = function("handed_over");
    must(bpf_map_update_elem(map("processors"), &processor, &value, BPF_ANY),
         "having packets handed over to processor " + std::to_string(processor));
  }
}

void Program::attach(const std::string& interface) {
  const std::uint32_t index = transport::ethernet_interface(interface).index;
  if (interfaces_.contains(index)) throw Error(ErrorCode::bad_argument, "interface '" + interface + "' is named twice");
  bpf_link* const link =
      bpf_program__attach_xdp(bpf_object__find_program_by_name(object_.get(), "arrive"), static_cast<int>(index));
  if (link == nullptr && (errno == EBUSY || errno == EEXIST)) {
    throw Error(ErrorCode::refused, "interface '" + interface + "' has an XDP program already");
  }
  if (link == nullptr) throw refused("putting an XDP program on interface '" + interface + "'", errno);
  links_.emplace_back(link);
  interfaces_.emplace(index, interface);
}

void Program::set_way(const XdpNewWay& change) const {
  bpf_test_run_opts options{};
  options.sz = sizeof options;
  options.data_in = &change;
  options.data_size_in = sizeof change;
  must(bpf_prog_test_run_opts(function("set_way"), &options), "telling the XDP program of a job's neighbour");
}

int Program::map(const char* name) const {
  return bpf_object__find_map_fd_by_name(object_.get(), name);
}

int Program::function(const char* name) const {
  return bpf_program__fd(bpf_object__find_program_by_name(object_.get(), name));
}

}  // namespace netsum::dataplane::xdp
