// The program of the XDP data plane in this machine's kernel, run on single packets.
#pragma once

#include <bpf/bpf.h>
#include <gtest/gtest.h>
#include <linux/bpf.h>
#include <net/if.h>
#include <sched.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "dataplane/xdp/frames.h"
#include "dataplane/xdp/plane.h"
#include "netsum/error.h"
#include "runtime/cpus.h"
#include "support/virtual_network.h"

namespace netsum::testing {

// Of the interfaces here.
inline constexpr transport::EthernetAddress own_station{2, 0, 0, 0, 0, 1};

// A network namespace of this process's own, with interfaces xdp0, xdp1, ... False: that is not permitted here.
[[nodiscard]] inline bool enter_namespace(int interfaces) {
  if (unshare(CLONE_NEWNET) != 0) return false;
  for (int i = 0; i < interfaces; i += 2) {
    const std::string address = " address 02:00:00:00:00:01 ";
    std::string command = "ip link add xdp" + std::to_string(i);
    command.append(address).append("type veth peer name xdp").append(std::to_string(i + 1)).append(address);
    if (std::system(command.c_str()) != 0) return false;
  }
  return true;
}

// This thread stays on the lane's processor: elsewhere the program hands packets over.
[[nodiscard]] inline dataplane::xdp::Lane lane_here(std::uint16_t port) {
  const auto cpu = static_cast<int>(runtime::allowed_cpus().at(0));
  runtime::pin_thread(cpu);
  return {endpoint_of(200, port), cpu};
}

struct Verdict {
  std::uint32_t action = 0;  // XDP_DROP, ...
  std::vector<std::byte> frame;
};

// As if the frame had come to xdp0.
[[nodiscard]] inline Verdict run(int program, std::vector<std::byte> frame) {
  Verdict verdict;
  xdp_md context{};
  context.data_end = static_cast<std::uint32_t>(frame.size());
  context.ingress_ifindex = if_nametoindex("xdp0");
  verdict.frame.resize(frame.size());
  bpf_test_run_opts options{};
  options.sz = sizeof options;
  options.ctx_in = &context;
  options.ctx_size_in = sizeof context;
  options.data_in = frame.data();
  options.data_size_in = static_cast<std::uint32_t>(frame.size());
  options.data_out = verdict.frame.data();
  options.data_size_out = static_cast<std::uint32_t>(verdict.frame.size());
  EXPECT_EQ(0, bpf_prog_test_run_opts(program, &options));
  verdict.action = options.retval;
  return verdict;
}

// As a neighbour sends it: the headers are those of an answer, the other way round.
[[nodiscard]] inline std::vector<std::byte> frame_of(const std::vector<std::byte>& datagram, const Endpoint& from,
                                                     const Endpoint& to) {
  auto way = dataplane::xdp::way_to(to, from, {.neighbour = own_station}, chip_few_elements);
  const auto length = static_cast<std::uint16_t>(datagram.size() + 8);
  way.frame.udp.length = chip_host16(length);
  way.frame.ip.length = chip_host16(static_cast<std::uint16_t>(length + 20));
  std::vector<std::byte> frame(std::max<std::size_t>(sizeof way.frame + datagram.size(), 60));  // Ethernet's least, padded
  std::memcpy(frame.data(), &way.frame, sizeof way.frame);
  std::copy(datagram.begin(), datagram.end(), frame.begin() + sizeof way.frame);
  return frame;
}

}  // namespace netsum::testing
