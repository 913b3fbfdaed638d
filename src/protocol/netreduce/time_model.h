// The time of an all-reduce among machines of several GPUs, by NetReduce's model (§3.4, Appendix A): a flat ring, Tencent's
// hierarchical all-reduce, and parallel rings with and without in-network aggregation. docs/parallel.md has the formulas,
// and where the paper's own are inconsistent.
#pragma once

#include <cstdint>

namespace netsum::netreduce {

enum class Pattern : std::uint8_t {
  flat_ring,           // FR: one ring over all GPUs
  tencent,             // TA: reduce to each machine's master, a ring of masters, broadcast
  parallel_netreduce,  // PN: reduce-scatter inside each machine, NetReduce ring i of every machine's GPU i, all-gather
                       // inside
  parallel_ring,       // PR: the same with plain rings
};

// Table 4. The model is for P > n: a job on one machine has no use for a link.
struct ClusterShape {
  double bytes = 0;                    // M: the gradient of one GPU
  std::uint32_t gpus = 1;              // P, of all machines together: a multiple of n
  std::uint32_t gpus_per_machine = 1;  // n
  double hop_seconds = 0;              // alpha
  double intra_bytes_per_second = 1;   // B_intra: of a GPU inside its machine
  double inter_bytes_per_second = 1;   // B_inter: of a machine's link, each way
};

struct StageSeconds {
  double before = 0;  // inside the machines: reduce, or reduce-scatter
  double across = 0;
  double after = 0;  // inside the machines: broadcast, or all-gather

  [[nodiscard]] double total() const { return before + across + after; }
};

[[nodiscard]] StageSeconds predict(Pattern pattern, const ClusterShape& shape);

// T_other - T_pn, as a factor of hop latency and one of gradient bytes. Positive: parallel NetReduce is faster.
struct Advantage {
  double hops = 0;
  double seconds_per_byte = 0;

  [[nodiscard]] double seconds(const ClusterShape& shape) const {
    return hops * shape.hop_seconds + seconds_per_byte * shape.bytes;
  }
};

[[nodiscard]] Advantage over_tencent(const ClusterShape& shape);        // (4)
[[nodiscard]] Advantage over_flat_ring(const ClusterShape& shape);      // (5)
[[nodiscard]] Advantage over_parallel_ring(const ClusterShape& shape);  // not in the paper

// Sufficient, not necessary; for any gradient size and latency.
[[nodiscard]] bool surely_beats_tencent(const ClusterShape& shape);    // P > 3n, for n <= 16
[[nodiscard]] bool surely_beats_flat_ring(const ClusterShape& shape);  // (6)

}  // namespace netsum::netreduce
