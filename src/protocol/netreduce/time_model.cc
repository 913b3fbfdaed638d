#include "protocol/netreduce/time_model.h"

#include <bit>

namespace netsum::netreduce {
namespace {

// The model's quantities, with the paper's names.
struct Terms {
  explicit Terms(const ClusterShape& shape)
      : p(shape.gpus),
        n(shape.gpus_per_machine),
        machines(p / n),
        log_n(static_cast<double>(std::bit_width(shape.gpus_per_machine - 1))),
        alpha(shape.hop_seconds),
        inside(shape.bytes / shape.intra_bytes_per_second),
        link(shape.bytes / shape.inter_bytes_per_second) {}

  double p, n, machines;
  double log_n;         // rounded up if n is no power of two, which the paper assumes
  double alpha;         // seconds
  double inside, link;  // seconds for M at B_intra, at B_inter
};

// A ring of `members` that reduces and gathers data that takes its slowest link `seconds`.
[[nodiscard]] double ring(double members, double alpha, double seconds) {
  return 2 * (members - 1) * alpha + 2 * (members - 1) / members * seconds;
}

// Each GPU exchanges one n-th of the gradient with every other: n - 1 hops of M / n.
[[nodiscard]] double scatter_or_gather(const Terms& t) {
  return (t.n - 1) * t.alpha + (t.n - 1) / t.n * t.inside;
}

[[nodiscard]] StageSeconds tencent(const Terms& t) {
  // Rabenseifner's reduce: a reduce-scatter by halving, and a gather. The paper's stage has M / (n B_intra), which is
  // neither that algorithm's cost nor what its own sum (2) contains.
  const double reduce = 2 * t.log_n * t.alpha + 2 * (t.n - 1) / t.n * t.inside;
  // Van de Geijn's broadcast: a scatter, and an all-gather around a ring.
  const double broadcast = (t.log_n + t.n - 1) * t.alpha + 2 * (t.n - 1) / t.n * t.inside;
  return {reduce, ring(t.machines, t.alpha, t.link), broadcast};
}

}  // namespace

StageSeconds predict(Pattern pattern, const ClusterShape& shape) {
  const Terms t(shape);
  switch (pattern) {
    case Pattern::flat_ring:  // (1): each machine's link carries one hop of the ring
      return {0, ring(t.p, t.alpha, t.link), 0};
    case Pattern::tencent:  // (2)
      return tencent(t);
    case Pattern::parallel_netreduce:  // (3): n rings of M / n each share the machine's link; sums come back in one hop
      return {scatter_or_gather(t), t.alpha + t.link, scatter_or_gather(t)};
    case Pattern::parallel_ring:
      // Not in the paper. In each of its 2(P/n - 1) steps a GPU sends one (P/n)-th of its M / n, and the n GPUs of a machine
      // share its link: M / (P/n) a step, as the masters' ring of (2).
      return {scatter_or_gather(t), ring(t.machines, t.alpha, t.link), scatter_or_gather(t)};
  }
  return {};
}

Advantage over_tencent(const ClusterShape& shape) {
  const Terms t(shape);
  return {2 * t.machines + 3 * t.log_n - t.n - 2,
          2 * (t.n - 1) / (t.n * shape.intra_bytes_per_second) + (t.p - 2 * t.n) / (t.p * shape.inter_bytes_per_second)};
}

Advantage over_flat_ring(const ClusterShape& shape) {
  const Terms t(shape);
  return {2 * t.p - 2 * t.n - 1,
          (t.p - 2) / (t.p * shape.inter_bytes_per_second) - 2 * (t.n - 1) / (t.n * shape.intra_bytes_per_second)};
}

Advantage over_parallel_ring(const ClusterShape& shape) {
  const Terms t(shape);
  return {2 * t.machines - 3, (t.p - 2 * t.n) / (t.p * shape.inter_bytes_per_second)};
}

bool surely_beats_tencent(const ClusterShape& shape) {
  return shape.gpus_per_machine <= 16 && shape.gpus > 3 * shape.gpus_per_machine;
}

bool surely_beats_flat_ring(const ClusterShape& shape) {
  const Terms t(shape);
  return t.n >= 2 && t.p > t.n && shape.intra_bytes_per_second * (t.p - 2) >= 2 * t.p * shape.inter_bytes_per_second;
}

}  // namespace netsum::netreduce
