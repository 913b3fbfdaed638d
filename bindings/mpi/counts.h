// How many calls, and how many bytes, took which path; and the report of it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "path.h"

namespace netsum::mpi {

// Of this process. Any thread.
class Counts {
 public:
  void add(Collective collective, Form form, Path path, std::uint64_t bytes) {
    const std::size_t call = static_cast<std::size_t>(form) * collective_names.size() + static_cast<std::size_t>(collective);
    Count& count = counts_[static_cast<std::size_t>(path)][call];
    count.calls.fetch_add(1, std::memory_order_relaxed);
    count.bytes.fetch_add(bytes, std::memory_order_relaxed);
  }

  // Whether most of the bytes, and at least some, went over MPI.
  [[nodiscard]] bool mostly_mpi() const;
  // A table of several lines.
  [[nodiscard]] std::string report(int rank, int ranks) const;

 private:
  struct Count {
    std::atomic<std::uint64_t> calls{0}, bytes{0};
  };
  std::array<std::array<Count, forms * collective_names.size()>, paths> counts_;
};

}  // namespace netsum::mpi
