#include "exercise.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "result_hash.h"

namespace netsum::app {
namespace {

[[nodiscard]] std::span<const CollectiveName> collectives_of(const BenchOptions& options) {
  static constexpr std::array pair{CollectiveName::reduce_scatter, CollectiveName::all_gather};
  if (options.collective == CollectiveName::fsdp) return pair;
  return {&options.collective, 1};
}

// Elements of a part: of as many as ranks, or of one.
[[nodiscard]] std::uint64_t part_elements(const BenchOptions& options, CollectiveName collective) {
  if (!has_parts(collective)) return options.elements;
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
  return collective != CollectiveName::reduce_scatter && collective != CollectiveName::reduce &&
         collective != CollectiveName::fsdp;
}

Exercised::Exercised(const BenchOptions& options, CollectiveName collective, std::span<std::byte> memory)
    : options_(options),
      collective_(collective),
      dtype_(options.dtype_value()),
      op_(options.op_value()),
      drawn_(drawn_for(options)),
      root_(options.world_size - 1),
      tensor_(memory) {
  if (has_parts(collective)) own_part_.resize(part_elements(options, collective) * bytes_of(dtype_));
}

std::size_t Exercised::bytes_for(const BenchOptions& options, CollectiveName collective) {
  return part_elements(options, collective) * (has_parts(collective) ? options.world_size : 1) *
         bytes_of(options.dtype_value());
}

// Each part of a reduce-scatter is a tensor of its own for the oracle, as it is for exponent blocks.
void Exercised::fill(std::uint64_t iteration) {
  switch (collective_) {
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

TensorView Exercised::view(std::span<std::byte> bytes) const {
  return {bytes.data(), bytes.size() / bytes_of(dtype_), dtype_};
}

void Exercised::call(Communicator& comm) {
  switch (collective_) {
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
    case CollectiveName::fsdp:
      break;
  }
}

Work Exercised::start(Communicator& comm) {
  if (collective_ == CollectiveName::all_gather) return comm.all_gather_async(own_part_, tensor_);
  return comm.reduce_scatter_async(view(tensor_), view(own_part_), op_);
}

oracle::Verdict Exercised::compare(std::span<const std::byte> tensor, std::uint32_t rank, std::uint64_t iteration) const {
  std::vector<std::byte> expected(tensor.size());
  drawn_.fill(expected, rank, iteration);
  oracle::Verdict verdict;
  const std::size_t width = bytes_of(dtype_);
  for (std::size_t at = 0; at < tensor.size(); at += width) {
    if (std::memcmp(tensor.data() + at, expected.data() + at, width) != 0) ++verdict.wrong;
  }
  return verdict;
}

oracle::Verdict Exercised::check(std::uint64_t iteration, const std::vector<std::uint32_t>& members) const {
  switch (collective_) {
    case CollectiveName::all_reduce:
      return drawn_.among(members).check(tensor_, iteration);
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
    case CollectiveName::fsdp:
      break;
  }
  return {};
}

std::span<const std::byte> Exercised::result() const {
  if (collective_ == CollectiveName::reduce_scatter) return own_part_;
  if (collective_ == CollectiveName::reduce && options_.rank != root_) return {};
  return tensor_;
}

std::uint64_t Exercised::hash() const {
  return hash_of(result());
}

Exercise::Exercise(const BenchOptions& options, std::span<std::byte> memory)
    : survivors_(options.survivors != 0), members_(options.world_size) {
  std::iota(members_.begin(), members_.end(), 0U);
  for (const CollectiveName collective : collectives_of(options)) {
    const std::size_t bytes = Exercised::bytes_for(options, collective);
    each_.emplace_back(options, collective, memory.first(bytes));
    memory = memory.subspan(bytes);
  }
}

std::size_t Exercise::bytes_for(const BenchOptions& options) {
  std::size_t bytes = 0;
  for (const CollectiveName collective : collectives_of(options)) bytes += Exercised::bytes_for(options, collective);
  return bytes;
}

void Exercise::fill(std::uint64_t iteration) {
  for (Exercised& each : each_) each.fill(iteration);
}

void Exercise::call(Communicator& comm) {
  if (each_.size() == 1) {
    each_.front().call(comm);
    if (survivors_) members_ = comm.members();
    return;
  }
  std::vector<Work> works;
  for (Exercised& each : each_) works.push_back(each.start(comm));
  for (Work& work : works) work.wait();
}

oracle::Verdict Exercise::check(std::uint64_t iteration) const {
  oracle::Verdict verdict;
  for (const Exercised& each : each_) verdict.merge(each.check(iteration, members_));
  return verdict;
}

std::uint64_t Exercise::hash() const {
  std::uint64_t hash = each_.front().hash();
  for (std::size_t i = 1; i < each_.size(); ++i) hash = hash_of(hash, each_[i].hash());
  return hash;
}

}  // namespace netsum::app
