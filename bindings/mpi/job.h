// An MPI communicator at the switch: a netsum job of the same ranks, joined at the first call that wants it.
#pragma once

#include <mpi.h>

#include <atomic>
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

// Calls of an MPI communicator are made by one thread at a time, so are these. Its requests have it too, and other threads
// may complete them.
class Job : public std::enable_shared_from_this<Job> {
 public:
  explicit Job(MPI_Comm comm);  // asks no other rank
  ~Job() { leave(); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int ranks() const { return ranks_; }

  // Why no call of this communicator takes the switch; none: some may.
  [[nodiscard]] std::optional<Path> excluded() const { return excluded_; }

  // Counts a call that could take the switch.
  void count(std::uint64_t bytes);
  // A buffer that this rank passed is in a device's memory.
  void saw_device() { saw_device_ = true; }
  // Whether joining has not been tried, and is worth it: this is the NETSUM_MPI_JOIN_CALLS-th call that could take the
  // switch, or they have carried a MiB; at once with NETSUM_MODE=force. A join takes as long as hundreds of short calls, and
  // many a communicator makes a few and goes. All ranks count the same calls.
  [[nodiscard]] bool is_due() const;
  // All ranks call it. False: this communicator stays with MPI, from now on. Throws Error if it may not (NETSUM_MODE=force).
  [[nodiscard]] bool join();
  // Throws Error if the job has failed.
  [[nodiscard]] bool has_joined() const;
  // Whether its calls' ways are known: it has joined, or never will.
  [[nodiscard]] bool has_decided() const { return communicator_ || failure_ || excluded_; }

  [[nodiscard]] Communicator& at_switch() { return *communicator_; }

  // A call ended in this error: no later one can succeed, and the other ranks shall learn it. As tell().
  int give_up(const std::string& call, const Error& why);
  // Prints the error, and calls the communicator's error handler. The MPI error code, whose text is the error's.
  [[nodiscard]] int tell(const std::string& call, const Error& error) const;
  // The program frees the communicator.
  void lose_communicator() { comm_ = MPI_COMM_WORLD; }
  void leave();

  // Memory for a call's copy of a tensor, aligned for every type; the call before may have left anything there.
  [[nodiscard]] std::byte* scratch(std::size_t bytes);

 private:
  [[nodiscard]] std::optional<std::string> try_to_join();

  std::atomic<MPI_Comm> comm_;
  int rank_ = 0, ranks_ = 1;
  std::optional<Path> excluded_;
  std::uint64_t calls_ = 0, bytes_ = 0;  // that were counted
  bool saw_device_ = false;
  std::unique_ptr<Communicator> communicator_;
  std::optional<Error> failure_;
  CopiedMemory scratch_;
};

}  // namespace netsum::mpi
