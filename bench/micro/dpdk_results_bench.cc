// A sum of 1 KiB to n ranks by DPDK, on one core: copied into n frames, as src/dpdk does, or n frames of a header each, to
// which the slot's memory is attached (an external buffer). The port throws frames away (net_null), so nobody reads the
// attached memory, and no device looks up its address: the least that attaching can cost.
#include <benchmark/benchmark.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

namespace {

constexpr std::size_t head_bytes = 42 + 32;  // Ethernet, IPv4, UDP; and netsum's, which differs from rank to rank
constexpr std::size_t values_bytes = 1024;
constexpr std::size_t slots = 512;
constexpr unsigned frames = 8192;
constexpr std::uint16_t port = 0;

rte_mempool* pool = nullptr;

// Sums, and what counts the frames that are out with each: a slot is used again once its count is 1.
struct Slots {
  std::vector<std::byte> values = std::vector<std::byte>(slots * values_bytes);
  std::vector<rte_mbuf_ext_shared_info> shared = std::vector<rte_mbuf_ext_shared_info>(slots);

  Slots() {
    for (rte_mbuf_ext_shared_info& each : shared) {
      each.free_cb = [](void*, void*) {};
      rte_mbuf_ext_refcnt_set(&each, 1);
    }
  }
  [[nodiscard]] std::byte* of(std::size_t slot) { return values.data() + slot * values_bytes; }
};

void send(std::span<rte_mbuf*> out) {
  if (rte_eth_tx_burst(port, 0, out.data(), static_cast<std::uint16_t>(out.size())) != out.size()) std::abort();
}

template <class Fill>
void run(benchmark::State& state, const Fill& fill) {
  const auto ranks = static_cast<unsigned>(state.range(0));
  const std::array<std::byte, head_bytes> head{};
  std::vector<rte_mbuf*> out(ranks);
  Slots all;
  std::size_t slot = 0;
  for (auto _ : state) {
    std::memset(all.of(slot), static_cast<int>(slot), values_bytes);  // just summed, and so in the core's cache
    if (rte_pktmbuf_alloc_bulk(pool, out.data(), ranks) != 0) std::abort();
    for (rte_mbuf* const each : out) std::memcpy(rte_pktmbuf_append(each, head_bytes), head.data(), head_bytes);
    fill(all, slot, out);
    send(out);
    slot = (slot + 1) % slots;
  }
  state.SetItemsProcessed(state.iterations() * ranks);
}

void copied(benchmark::State& state) {
  run(state, [](Slots& all, std::size_t slot, std::span<rte_mbuf*> out) {
    for (rte_mbuf* const each : out) std::memcpy(rte_pktmbuf_append(each, values_bytes), all.of(slot), values_bytes);
  });
}

void attached(benchmark::State& state) {
  std::vector<rte_mbuf*> bodies(static_cast<std::size_t>(state.range(0)));
  run(state, [&](Slots& all, std::size_t slot, std::span<rte_mbuf*> out) {
    if (rte_mbuf_ext_refcnt_read(&all.shared[slot]) != 1) std::abort();
    if (rte_pktmbuf_alloc_bulk(pool, bodies.data(), static_cast<unsigned>(bodies.size())) != 0) std::abort();
    rte_mbuf_ext_refcnt_update(&all.shared[slot], static_cast<std::int16_t>(out.size()));
    for (std::size_t i = 0; i < out.size(); ++i) {
      rte_pktmbuf_attach_extbuf(bodies[i], all.of(slot), RTE_BAD_IOVA, values_bytes, &all.shared[slot]);
      bodies[i]->data_len = values_bytes;
      bodies[i]->pkt_len = values_bytes;
      if (rte_pktmbuf_chain(out[i], bodies[i]) != 0) std::abort();
    }
  });
}

BENCHMARK(copied)->RangeMultiplier(2)->Range(1, 32);
BENCHMARK(attached)->RangeMultiplier(2)->Range(1, 32);

}  // namespace

int main(int argc, char** argv) {
  std::array<char*, 9> words = {argv[0],
                                const_cast<char*>("--no-huge"),
                                const_cast<char*>("--no-shconf"),
                                const_cast<char*>("--no-pci"),
                                const_cast<char*>("--no-telemetry"),
                                const_cast<char*>("-m"),
                                const_cast<char*>("64"),
                                const_cast<char*>("--log-level=error"),
                                const_cast<char*>("--vdev=net_null0")};
  rte_eth_conf configuration{};
  if (rte_eal_init(static_cast<int>(words.size()), words.data()) < 0 ||
      (pool = rte_pktmbuf_pool_create("frames", frames, 256, 0, RTE_PKTMBUF_HEADROOM + 2048, SOCKET_ID_ANY)) == nullptr ||
      rte_eth_dev_configure(port, 1, 1, &configuration) < 0 || rte_eth_rx_queue_setup(port, 0, 64, 0, nullptr, pool) < 0 ||
      rte_eth_tx_queue_setup(port, 0, 64, 0, nullptr) < 0 || rte_eth_dev_start(port) < 0) {
    std::fputs("dpdk_results_bench: DPDK's port net_null0 did not start\n", stderr);
    return 1;
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  rte_eal_cleanup();
}
