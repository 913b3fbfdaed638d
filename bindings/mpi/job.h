// An MPI communicator at the switch: a netsum job of the same ranks, joined at the first call that wants it.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/copied.h"
#include "netsum/communicator.h"
#include "path.h"

namespace netsum::mpi {

// Calls of an MPI communicator are made by one thread at a time, so are these.
class Job {
 public:
  explicit Job(MPI_Comm comm);  // asks no other rank

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int ranks() const { return ranks_; }

  // Why no call of this communicator takes the switch; none: some may.
  [[nodiscard]] std::optional<Path> excluded() const { return excluded_; }

  // Whether a call that could take the switch is worth joining for: the communicator has joined before, or this is its
  // NETSUM_MPI_JOIN_CALLS-th such call, or they have carried a MiB; at once with NETSUM_MODE=force. A join takes as long as
  // hundreds of short calls, and many a communicator makes a few and goes. All ranks count the same calls.
  [[nodiscard]] bool is_due(std::uint64_t bytes);

  // Joins, if that has not been tried; all ranks call it. False: this communicator stays with MPI, from now on. Throws Error
  // if it may not (NETSUM_MODE=force), or if the job has failed.
  [[nodiscard]] bool join(MPI_Comm comm);

  [[nodiscard]] Communicator& at_switch() { return *communicator_; }

  // A call ended in this error: no later one can succeed, and the other ranks shall learn it.
  void give_up(const Error& why);
  void leave();

  // Memory for a call's copy of a tensor, aligned for every type; the call before may have left anything there.
  [[nodiscard]] std::byte* scratch(std::size_t bytes);

 private:
  [[nodiscard]] std::optional<std::string> try_to_join(MPI_Comm comm);

  int rank_ = 0, ranks_ = 1;
  std::optional<Path> excluded_;
  std::uint64_t calls_ = 0, bytes_ = 0;  // that were asked about, until it has joined
  std::unique_ptr<Communicator> communicator_;
  std::optional<Error> failure_;
  CopiedMemory scratch_;
};

}  // namespace netsum::mpi
