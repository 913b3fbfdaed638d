// What all communicators of an MPI process share, from MPI_Init to MPI_Finalize.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "counts.h"
#include "netsum/communicator.h"
#include "requests.h"
#include "settings.h"
#include "shards.h"

namespace netsum::mpi {

class Job;

class Process {
 public:
  [[nodiscard]] static Process& get();

  // Before MPI_Init. In a process that runs another MPI than this library was built for, handles are something else, of
  // another width, and no call can even be passed on: ends the process, after a line on stderr.
  static void check_mpi();
  // After MPI_Init; all ranks of MPI_COMM_WORLD call it. An MPI error code.
  int begin();
  // Before MPI_Finalize: leaves all jobs, and prints the report.
  void end();

  // The communicator's job, made at its first call; null: outside begin() and end(). Any thread.
  [[nodiscard]] Job* job_of(MPI_Comm comm);

  [[nodiscard]] const Settings& settings() const { return settings_; }
  [[nodiscard]] Counts& counts() { return counts_; }
  [[nodiscard]] Requests& requests() { return requests_; }
  [[nodiscard]] Shards& shards() { return *shards_; }
  // Of a call of this form that takes the switch.
  [[nodiscard]] std::uint64_t least_bytes(Form form) const {
    return settings_.min_bytes.value_or(mpi::least_bytes(on_one_host_, form));
  }
  // MPI_COMM_WORLD's.
  [[nodiscard]] MPI_Group world() const { return world_; }
  // Whether a packed element is its bytes and nothing else: then the length of a message is all that ranks need to agree on.
  [[nodiscard]] bool packs_bytes() const { return packs_bytes_; }

  // A place among the jobs that a process may have joined at a time; false: there is none.
  [[nodiscard]] bool take_place();
  // Gives it back. Leaving may wait for other ranks, and those for MPI calls of this thread: another thread leaves.
  void leave(std::unique_ptr<Communicator> communicator);

  // Whether that is news: true once.
  [[nodiscard]] bool first_joined() { return !told_.exchange(true); }

  // Lets MPI make progress: others may need it before they come to the call that this rank waits in.
  void progress() const;

  // Prints the error, and calls the communicator's error handler. The MPI error code, whose text is the error's.
  int fail(MPI_Comm comm, const std::string& call, const Error& error);

 private:
  Process() = default;
  [[nodiscard]] std::string agree_on_settings();
  static int forget(MPI_Comm comm, int key, void* job, void* extra);

  bool running_ = false;
  Settings settings_;
  Counts counts_;
  Requests requests_;
  std::unique_ptr<Shards> shards_;
  MPI_Group world_ = MPI_GROUP_NULL;
  MPI_Comm quiet_ = MPI_COMM_NULL;  // for progress(): nobody sends there. Of several ranks: else MPICH makes no progress
  int key_ = MPI_KEYVAL_INVALID;
  bool packs_bytes_ = false;
  bool on_one_host_ = false;                                                          // all ranks of MPI_COMM_WORLD
  std::array<int, static_cast<std::size_t>(ErrorCode::internal) + 1> error_codes_{};  // by netsum's

  std::atomic<bool> told_{false};

  std::mutex mutex_;                           // guards the members below; nothing waits under it
  std::map<Job*, std::shared_ptr<Job>> jobs_;  // of the communicators that there are
  int places_ = 0;
  std::vector<std::future<void>> leaving_;
};

// A line on stderr.
void say(const std::string& text);

}  // namespace netsum::mpi
