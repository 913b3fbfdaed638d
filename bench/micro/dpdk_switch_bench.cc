// A switch at one end of a memif, and its ranks at the other end, in turn on one thread: so no other core, its caches and
// its phases are in what a burst takes. Prints a line of JSON for each case: the median of what a packet takes the switch,
// in nanoseconds (its frame received, its values summed, and the results sent, if it was the last one), and of what it takes
// a bare loop that sends every frame back.
//   dpdk_switch_bench [BURSTS]
#include <rte_dev.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "protocol/switchml/switch.h"
#include "transport/addresses/addresses.h"
#include "transport/bypass/dpdk_path.h"
#include "wire/arp.h"
#include "wire/switchml.h"
#include "wire/udp_frame.h"

namespace netsum {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint16_t of_switch = 0, of_ranks = 1;  // ports
constexpr std::uint32_t packet_elements = 256;
constexpr std::uint64_t epoch = 1;
constexpr wire::ethernet::Address card = {2, 0, 0, 0, 0, 2};

struct alignas(64) Line {
  std::byte bytes[64];
};

rte_mempool* pool = nullptr;

void must(bool done, const char* what) {
  if (!done) throw std::runtime_error(std::string(what) + " failed");
}

void start_ranks_end(const std::string& socket) {
  must(rte_eal_hotplug_add("vdev", "net_memif1", ("role=client,socket-abstract=no,socket=" + socket).c_str()) == 0,
       "making a memif");
  pool = rte_pktmbuf_pool_create("ranks", 4095, 0, 0, RTE_PKTMBUF_HEADROOM + 2048, SOCKET_ID_ANY);
  const rte_eth_conf configuration{};
  must(pool != nullptr && rte_eth_dev_configure(of_ranks, 1, 1, &configuration) == 0 &&
           rte_eth_rx_queue_setup(of_ranks, 0, 1024, 0, nullptr, pool) == 0 &&
           rte_eth_tx_queue_setup(of_ranks, 0, 1024, 0, nullptr) == 0 && rte_eth_dev_start(of_ranks) == 0,
       "starting a memif");
  rte_eth_link link{};
  for (int tries = 0; tries < 1000 && link.link_status == 0; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    rte_eth_link_get_nowait(of_ranks, &link);
    if (link.link_status != 0) rte_eth_link_get_nowait(of_switch, &link);
  }
  must(link.link_status != 0, "joining two ends of a memif");
}

std::byte* place(std::vector<rte_mbuf*>& frames, std::size_t bytes) {
  frames.push_back(rte_pktmbuf_alloc(pool));
  return reinterpret_cast<std::byte*>(rte_pktmbuf_append(frames.back(), static_cast<std::uint16_t>(bytes)));
}

void send_from_ranks(std::vector<rte_mbuf*>& frames) {
  must(rte_eth_tx_burst(of_ranks, 0, frames.data(), static_cast<std::uint16_t>(frames.size())) == frames.size(), "sending");
  frames.clear();
}

std::size_t receive_at_ranks() {
  std::array<rte_mbuf*, 256> frames;
  const std::uint16_t count = rte_eth_rx_burst(of_ranks, 0, frames.data(), frames.size());
  rte_pktmbuf_free_bulk(frames.data(), count);
  return count;
}

// Contributions of all ranks to so many chunks, one rank's after the other's.
void contribute(const std::vector<Endpoint>& ranks, const Endpoint& to, std::uint32_t chunks, std::uint64_t round,
                bool checked) {
  std::vector<rte_mbuf*> frames;
  for (std::uint16_t rank = 0; rank < ranks.size(); ++rank) {
    for (std::uint32_t slot = 0; slot < chunks; ++slot) {
      const wire::switchml::ChunkHeader header{.operation = round,
                                               .slot = static_cast<std::uint16_t>(slot),
                                               .version = static_cast<std::uint8_t>(round % 2),
                                               .exponents = 1,
                                               .elements = packet_elements,
                                               .ahead_operation = 1};
      const std::size_t bytes = wire::switchml::chunk_packet_bytes(header);
      std::byte* const frame = place(frames, wire::udp_head_bytes + bytes);
      wire::UdpHead({.next = card, .own = card, .from = ranks[rank], .to = to})
          .write(std::span<std::byte, wire::udp_head_bytes>(frame, wire::udp_head_bytes), bytes);
      const std::span packet(frame + wire::udp_head_bytes, bytes);
      std::fill(packet.begin(), packet.end(), std::byte{1});
      wire::switchml::write_chunk_header(packet, {wire::switchml::Type::contribution, rank, epoch, rank, checked}, header);
      wire::switchml::seal(packet);
    }
  }
  send_from_ranks(frames);
}

template <class Turn>
double median_of(std::size_t bursts, const std::vector<Endpoint>& ranks, const Endpoint& to, std::uint32_t chunks,
                 bool checked, const Turn& turn) {
  std::vector<double> took;
  for (std::uint64_t round = 0; round < bursts; ++round) {
    contribute(ranks, to, chunks, round, checked);
    const Clock::time_point began = Clock::now();
    turn(round);
    took.push_back(std::chrono::duration<double, std::nano>(Clock::now() - began).count());
    must(receive_at_ranks() == ranks.size() * chunks, "receiving all results");
  }
  std::nth_element(took.begin(), took.begin() + static_cast<std::ptrdiff_t>(took.size() / 2), took.end());
  return took[took.size() / 2] / static_cast<double>(ranks.size() * chunks);
}

std::string measure(transport::FrameHost& host, std::size_t bursts, std::uint32_t count, std::uint32_t chunks,
                    bool checked) {
  const auto lane = host.open({.port = 7170});
  std::vector<Endpoint> ranks;
  for (std::uint32_t rank = 0; rank < count; ++rank)
    ranks.push_back(transport::resolve("10.0.0.2:" + std::to_string(5000 + rank)));
  std::vector<rte_mbuf*> question;
  const auto asked = wire::arp_frame({false, card, {10, 0, 0, 2}, {}, {10, 0, 0, 1}});
  std::memcpy(place(question, asked.size()), asked.data(), asked.size());
  send_from_ranks(question);
  do {
    static_cast<void>(lane->receive());
  } while (receive_at_ranks() == 0);

  std::vector<Line> memory(switchml::Switch::memory_bytes(packet_elements, chunks, count) / sizeof(Line));
  switchml::SwitchJobConfig config{epoch, packet_elements, chunks, {}};
  for (std::uint32_t rank = 0; rank < count; ++rank) config.members.push_back({rank, ranks[rank]});
  switchml::Switch core;
  must(core.add_job(config, std::as_writable_bytes(std::span(memory))), "adding a job");
  Sink& sink = lane->sink();
  const double ours = median_of(bursts, ranks, lane->local(), chunks, checked, [&](std::uint64_t round) {
    core.on_packets(lane->receive(), Time(std::chrono::nanoseconds(round)), sink);
    sink.flush();
  });
  const double bare = median_of(bursts, ranks, lane->local(), chunks, checked, [&](std::uint64_t) {
    std::array<rte_mbuf*, 64> frames;
    const std::uint16_t received = rte_eth_rx_burst(of_switch, 0, frames.data(), frames.size());
    must(rte_eth_tx_burst(of_switch, 0, frames.data(), received) == received, "sending back");
  });
  std::array<char, 128> line{};
  std::snprintf(line.data(), line.size(),
                "{\"ranks\": %u, \"burst\": %u, \"checked\": %s, \"switch\": %.1f, \"bare\": %.1f}", count, count * chunks,
                checked ? "true" : "false", ours, bare);
  return line.data();
}

}  // namespace
}  // namespace netsum

int main(int argc, char** argv) {
  try {
    const std::string socket = "/tmp/netsum-switch-bench-" + std::to_string(::getpid());
    const auto host = netsum::transport::dpdk_host(
        {.args =
             "--no-huge --no-shconf --no-pci --no-telemetry -m 64 --vdev net_memif0,role=server,socket-abstract=no,socket=" +
             socket,
         .address = "10.0.0.1/24"},
        1);
    netsum::start_ranks_end("/tmp/." + socket.substr(4));  // by another name: one of each end of a process
    const std::size_t bursts = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 2000;
    static_cast<void>(netsum::measure(*host, bursts, 1, 64, true));  // all memory is touched
    for (const bool checked : {true, false}) {
      for (const std::uint32_t ranks : {1U, 8U}) {
        for (const std::uint32_t burst : {8U, 64U})
          std::puts(netsum::measure(*host, bursts, ranks, burst / ranks, checked).c_str());
      }
    }
    std::fflush(stdout);
    std::_Exit(0);  // EAL ends its thread for interrupts later than what that one looks at
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dpdk_switch_bench: %s\n", error.what());
    return 1;
  }
}
