// Models as layers, and how frameworks put layers' gradients together into all-reduces.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/training.h"

namespace netsum::sim {

struct Layer {
  std::string name;
  std::uint64_t parameters = 0;
  double work = 0;  // multiply-adds for one input: the layer's share of the passes' time
};

struct Workload {
  std::string name;
  std::vector<Layer> layers;  // from the input to the output
  Duration iteration{};       // of one GPU, without communication
  // Of an iteration: the forward pass. A backward pass computes two gradients (of inputs and of weights), so takes twice as
  // long.
  static constexpr double forward_share = 1.0 / 3;

  [[nodiscard]] std::uint64_t parameters() const;
};

enum class Bucketing : std::uint8_t {
  layers,   // an all-reduce for each layer (Horovod without fusion)
  buckets,  // DistributedDataParallel: layers join a bucket, from the output, until it has the size; the first 1 MiB
  pieces,   // BytePS: a layer longer than the size is cut
  whole,    // one for all
};

// The gradients of a workload, in the order of their backward passes. `bytes`: with which a
// bucket is full, or the longest piece.
[[nodiscard]] std::vector<Bucket> buckets_of(const Workload& workload, Bucketing bucketing, std::uint64_t bytes);

}  // namespace netsum::sim
