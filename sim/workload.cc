#include "sim/workload.h"

#include <algorithm>

namespace netsum::sim {
namespace {

constexpr std::uint64_t first_bucket_bytes = std::uint64_t{1} << 20;  // PyTorch's _DEFAULT_FIRST_BUCKET_BYTES

}  // namespace

std::uint64_t Workload::parameters() const {
  std::uint64_t all = 0;
  for (const Layer& layer : layers) all += layer.parameters;
  return all;
}

std::vector<Bucket> buckets_of(const Workload& workload, Bucketing bucketing, std::uint64_t bytes) {
  double work = 0;
  for (const Layer& layer : workload.layers) work += layer.work;
  const auto share = [&](const Layer& layer, double of_iteration) {
    const double part = work > 0 ? layer.work / work : 1.0 / static_cast<double>(workload.layers.size());
    return Duration(static_cast<std::int64_t>(static_cast<double>(workload.iteration.count()) * of_iteration * part));
  };
  std::vector<Bucket> buckets;
  bool open = false;  // the last bucket takes more
  for (std::size_t i = workload.layers.size(); i-- > 0;) {
    const Layer& layer = workload.layers[i];
    Bucket bucket{layer.parameters, share(layer, Workload::forward_share), share(layer, 1 - Workload::forward_share)};
    // What has no gradients computes for the next bucket towards the input, or for the last one.
    if (open || (bucket.elements == 0 && i == 0 && !buckets.empty())) {
      buckets.back().elements += bucket.elements;
      buckets.back().forward += bucket.forward;
      buckets.back().backward += bucket.backward;
    } else {
      buckets.push_back(bucket);
    }
    Bucket& last = buckets.back();
    const std::uint64_t enough = buckets.size() == 1 ? std::min(bytes, first_bucket_bytes) : bytes;
    open = bucketing == Bucketing::whole || last.elements == 0 ||
           (bucketing == Bucketing::buckets && last.elements * sizeof(float) < enough);
    if (bucketing != Bucketing::pieces || last.elements * sizeof(float) <= bytes) continue;
    // Equal pieces; the passes are before the first (backward) and behind the last (forward).
    const std::uint64_t pieces = (last.elements * sizeof(float) + bytes - 1) / bytes, elements = last.elements;
    const Duration forward = last.forward;
    last.elements = elements / pieces;
    last.forward = Duration::zero();
    for (std::uint64_t piece = 1; piece < pieces; ++piece) {
      buckets.push_back({elements * (piece + 1) / pieces - elements * piece / pieces, Duration::zero(), Duration::zero()});
    }
    buckets.back().forward = forward;
  }
  return buckets;
}

}  // namespace netsum::sim
