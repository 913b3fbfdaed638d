// Requests of calls that go on in the background.
//
// Behind each is a receive of MPI's, of an empty message from this process to itself, which is sent once the operation has
// ended. So a request of netsum's is one of MPI's: MPI's own calls complete it, test it, mix it with others, and start it
// again. An operation needs only netsum's threads until it has ended. The message is sent by a thread of the program's that
// completes requests (completions.cc): others may not call MPI below MPI_THREAD_MULTIPLE.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "path.h"

namespace netsum::mpi {

class Job;
class Request;
class Run;

// Any thread.
class Requests {
 public:
  // After MPI_Init.
  void begin();
  // Before MPI_Finalize: waits for operations whose requests were freed.
  void end();

  // A call's request; a non-blocking one has begun. `body` makes one run of it. Throws Error, and then there is none.
  [[nodiscard]] MPI_Request add(std::shared_ptr<Job> job, Collective collective, Form form, std::uint64_t bytes,
                                const std::function<void(Run&)>& body);

  // Whether any has started that the program has not completed.
  [[nodiscard]] bool any() const { return started_ != 0; }
  // Whether there ever was a persistent one.
  [[nodiscard]] bool any_persistent() const { return persistent_; }

  // Lets MPI complete the requests whose operations have ended.
  void complete_ended();

  // Those of netsum's among `handles`, with their indices.
  using Known = std::vector<std::pair<int, std::shared_ptr<Request>>>;
  [[nodiscard]] Known find(int count, const MPI_Request* handles);
  // Whether the operation of any of them has not ended.
  [[nodiscard]] static bool any_running(const Known& requests);
  // MPI has said that it is complete. The call's MPI error code.
  int deliver(const std::shared_ptr<Request>& request);

  // Of a persistent request, by MPI_Start(). An MPI error code; none: it is not netsum's.
  [[nodiscard]] std::optional<int> start(MPI_Request* handle);
  // The program frees its handle.
  void forget(MPI_Request handle);

 private:
  void enter(const std::shared_ptr<Request>& request);
  void complete(Request& request);

  MPI_Comm own_ = MPI_COMM_NULL;
  std::atomic<int> started_{0};
  std::atomic<bool> persistent_{false};

  std::mutex mutex_;  // guards the members below; nothing waits under it
  std::map<MPI_Request, std::shared_ptr<Request>> known_;
  std::vector<std::shared_ptr<Request>> running_;
};

}  // namespace netsum::mpi
