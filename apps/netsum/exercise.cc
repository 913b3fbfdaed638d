#include "exercise.h"

#include <algorithm>
#include <cstring>

#include "result_hash.h"

namespace netsum::app {
namespace {

// Elements of a part: of as many as ranks, or of one.
[[nodiscard]] std::uint64_t part_elements(const BenchOptions& options) {
  if (!has_parts(options.collective)) return options.elements;
  return (options.elements + options.world_size - 1) / options.world_size;
}

[[nodiscard]] oracle::Drawn drawn_for(const BenchOptions& options) {
  return {options.seed,
          {.op = options.op_value(),
           .dtype = options.dtype_value(),
           .numbers = options.protocol_value().numbers(options),
           .ranks = options.world_size,
           .fixed_scale = options.fixed_scale_value()},
          static_cast<int>(options.magnitude)};
}

}  // namespace

bool has_parts(CollectiveName collective) {
  return collective == CollectiveName::reduce_scatter || collective == CollectiveName::all_gather;
}

bool same_everywhere(CollectiveName collective) {
  return collective != CollectiveName::reduce_scatter && collective != CollectiveName::reduce;
}

Exercise::Exercise(const BenchOptions& options, std::span<std::byte> memory)
    : options_(options),
      dtype_(options.dtype_value()),
      op_(options.op_value()),
      drawn_(drawn_for(options)),
      root_(options.world_size - 1),
      tensor_(memory) {
  if (has_parts(options.collective)) own_part_.resize(part_elements(options) * bytes_of(dtype_));
}

std::size_t Exercise::bytes_for(const BenchOptions& options) {
  return part_elements(options) * (has_parts(options.collective) ? options.world_size : 1) * bytes_of(options.dtype_value());
}

// Each part of a reduce-scatter is a tensor of its own for the oracle, as it is for exponent blocks.
void Exercise::fill(std::uint64_t iteration) {
  switch (options_.collective) {
    case CollectiveName::barrier:
      return;
    case CollectiveName::all_gather:
      std::fill(tensor_.begin(), tensor_.end(), std::byte{0});
      return drawn_.fill(own_part_, options_.rank, iteration);
    case CollectiveName::reduce_scatter:
      for (std::uint32_t part = 0; part < options_.world_size; ++part) {
        drawn_.fill(tensor_.subspan(part * own_part_.size(), own_part_.size()), options_.rank,
                    iteration * options_.world_size + part);
      }
      return;
    default:
      return drawn_.fill(tensor_, options_.rank, iteration);
  }
}

TensorView Exercise::view(std::span<std::byte> bytes) const {
  return {bytes.data(), bytes.size() / bytes_of(dtype_), dtype_};
}

void Exercise::call(Communicator& comm) {
  switch (options_.collective) {
    case CollectiveName::all_reduce:
      return comm.all_reduce(view(tensor_), op_);
    case CollectiveName::reduce:
      return comm.reduce(view(tensor_), op_, root_);
    case CollectiveName::reduce_scatter:
      return comm.reduce_scatter(view(tensor_), view(own_part_), op_);
    case CollectiveName::all_gather:
      return comm.all_gather(own_part_, tensor_);
    case CollectiveName::broadcast:
      return comm.broadcast(tensor_, root_);
    case CollectiveName::barrier:
      return comm.barrier();
  }
}

oracle::Verdict Exercise::compare(std::span<const std::byte> tensor, std::uint32_t rank, std::uint64_t iteration) const {
  std::vector<std::byte> expected(tensor.size());
  drawn_.fill(expected, rank, iteration);
  oracle::Verdict verdict;
  const std::size_t width = bytes_of(dtype_);
  for (std::size_t at = 0; at < tensor.size(); at += width) {
    if (std::memcmp(tensor.data() + at, expected.data() + at, width) != 0) ++verdict.wrong;
  }
  return verdict;
}

oracle::Verdict Exercise::check(std::uint64_t iteration) const {
  switch (options_.collective) {
    case CollectiveName::all_reduce:
      return drawn_.check(tensor_, iteration);
    case CollectiveName::reduce:
      return options_.rank == root_ ? drawn_.check(tensor_, iteration) : compare(tensor_, options_.rank, iteration);
    case CollectiveName::reduce_scatter:
      return drawn_.check(own_part_, iteration * options_.world_size + options_.rank);
    case CollectiveName::all_gather: {
      oracle::Verdict verdict;
      for (std::uint32_t rank = 0; rank < options_.world_size; ++rank) {
        verdict.merge(compare(tensor_.subspan(rank * own_part_.size(), own_part_.size()), rank, iteration));
      }
      return verdict;
    }
    case CollectiveName::broadcast:
      return compare(tensor_, root_, iteration);
    case CollectiveName::barrier:
      break;
  }
  return {};
}

std::span<const std::byte> Exercise::result() const {
  if (options_.collective == CollectiveName::reduce_scatter) return own_part_;
  if (options_.collective == CollectiveName::reduce && options_.rank != root_) return {};
  return tensor_;
}

std::uint64_t Exercise::hash() const {
  return hash_of(result());
}

}  // namespace netsum::app
