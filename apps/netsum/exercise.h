// One rank's tensors of a collective, as `netsum bench` calls it: filled, called, and judged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bench.h"
#include "netsum/communicator.h"
#include "oracle/drawn.h"

namespace netsum::app {

// One collective's.
class Exercised {
 public:
  Exercised(const BenchOptions& options, CollectiveName collective, std::span<std::byte> memory);
  [[nodiscard]] static std::size_t bytes_for(const BenchOptions& options, CollectiveName collective);

  void fill(std::uint64_t iteration);
  void call(Communicator& comm);
  [[nodiscard]] Work start(Communicator& comm);  // of those with parts
  // Of what this rank has after a call; a rank without a result must have what it had before.
  // `members`: whose values a sum has in it.
  [[nodiscard]] oracle::Verdict check(std::uint64_t iteration, const std::vector<std::uint32_t>& members) const;
  [[nodiscard]] std::uint64_t hash() const;

 private:
  // Counts elements that are not those of `rank`'s input.
  [[nodiscard]] oracle::Verdict compare(std::span<const std::byte> tensor, std::uint32_t rank,
                                        std::uint64_t iteration) const;
  [[nodiscard]] TensorView view(std::span<std::byte> bytes) const;
  [[nodiscard]] std::span<const std::byte> result() const;

  const BenchOptions& options_;
  const CollectiveName collective_;
  const DType dtype_;
  const ReduceOp op_;
  const oracle::Drawn drawn_;
  const std::uint32_t root_;         // the last rank
  std::span<std::byte> tensor_;      // all parts
  std::vector<std::byte> own_part_;  // reduce-scatter: the result; all-gather: the input
};

// One call of the benchmark: a collective, or two in flight together.
class Exercise {
 public:
  // `memory`: bytes_for(), where the tensors lie that all collectives but a barrier have.
  Exercise(const BenchOptions& options, std::span<std::byte> memory);
  [[nodiscard]] static std::size_t bytes_for(const BenchOptions& options);

  void fill(std::uint64_t iteration);
  void call(Communicator& comm);
  [[nodiscard]] oracle::Verdict check(std::uint64_t iteration) const;
  [[nodiscard]] std::uint64_t hash() const;

 private:
  bool survivors_;
  std::vector<std::uint32_t> members_;  // of the latest call's result
  std::vector<Exercised> each_;
};

// Whether all ranks have the same result.
[[nodiscard]] bool same_everywhere(CollectiveName collective);

}  // namespace netsum::app
