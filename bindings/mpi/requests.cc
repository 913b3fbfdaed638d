#include "requests.h"

#include <algorithm>
#include <exception>
#include <string>
#include <thread>

#include "job.h"
#include "netsum/error.h"
#include "next.h"
#include "process.h"
#include "run.h"

namespace netsum::mpi {
namespace {

// Messages of requests that are there at the same time differ in their tags.
class Tag {
 public:
  Tag() {
    const std::lock_guard lock(mutex);
    if (spare.empty()) spare.push_back(next++);
    value_ = spare.back();
    spare.pop_back();
  }
  ~Tag() {
    const std::lock_guard lock(mutex);
    spare.push_back(value_);
  }
  Tag(const Tag&) = delete;
  Tag& operator=(const Tag&) = delete;
  [[nodiscard]] int value() const { return value_; }

 private:
  static inline std::mutex mutex;
  static inline std::vector<int> spare;
  static inline int next = 0;
  int value_;
};

}  // namespace

class Request {
 public:
  Request(std::shared_ptr<Job> of, Collective what, Form how, std::uint64_t length, std::function<void(Run&)> run)
      : job(std::move(of)), collective(what), form(how), bytes(length), body(std::move(run)) {}

  void begin() {
    Run run(*job, background);
    body(run);
  }
  [[nodiscard]] std::string call() const { return name_of(collective, form); }

  const std::shared_ptr<Job> job;
  const Collective collective;
  const Form form;
  const std::uint64_t bytes;
  const std::function<void(Run&)> body;
  const Tag tag;
  Background background;
  MPI_Request handle = MPI_REQUEST_NULL;
  bool started = false;  // and not completed by the program
  std::atomic<bool> ended = true;
  int code = MPI_SUCCESS;  // once it has ended
};

void Requests::begin() {
  PMPI_Comm_dup(MPI_COMM_SELF, &own_);
}

void Requests::end() {
  const auto any_left = [&] {
    const std::lock_guard lock(mutex_);
    return !running_.empty();
  };
  for (; any_left(); complete_ended()) Process::get().progress();
  known_.clear();
  PMPI_Comm_free(&own_);
}

MPI_Request Requests::add(std::shared_ptr<Job> job, Collective collective, Form form, std::uint64_t bytes,
                          const std::function<void(Run&)>& body) {
  const auto request = std::make_shared<Request>(std::move(job), collective, form, bytes, body);
  if (form == Form::persistent) {
    persistent_ = true;
    PMPI_Recv_init(nullptr, 0, MPI_BYTE, 0, request->tag.value(), own_, &request->handle);
  } else {
    request->begin();
    PMPI_Irecv(nullptr, 0, MPI_BYTE, 0, request->tag.value(), own_, &request->handle);
  }
  const std::lock_guard lock(mutex_);
  known_[request->handle] = request;
  if (form != Form::persistent) enter(request);
  return request->handle;
}

void Requests::enter(const std::shared_ptr<Request>& request) {
  request->started = true;
  request->ended = false;
  running_.push_back(request);
  ++started_;
}

void Requests::complete_ended() {
  std::vector<std::shared_ptr<Request>> ended;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(running_, [&](const auto& request) {
      if (!request->background.work->done()) return false;
      ended.push_back(request);
      return true;
    });
  }
  for (const auto& request : ended) complete(*request);
}

// In the order of calls on each communicator, since operations end in that order.
void Requests::complete(Request& request) {
  Background& background = request.background;
  try {
    background.work->wait();
    if (background.last) background.last();
    request.code = MPI_SUCCESS;
  } catch (const Error& error) {
    request.code = request.job->tell(request.call(), error);
  } catch (const std::exception& error) {
    request.code = request.job->tell(request.call(), Error(ErrorCode::internal, error.what()));
  }
  background.work.reset();
  request.ended = true;
  PMPI_Send(nullptr, 0, MPI_BYTE, 0, request.tag.value(), own_);
}

Requests::Known Requests::find(int count, const MPI_Request* handles) {
  Known found;
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < count; ++i) {
    if (const auto known = known_.find(handles[i]); known != known_.end()) found.emplace_back(i, known->second);
  }
  return found;
}

bool Requests::any_running(const Known& requests) {
  return std::any_of(requests.begin(), requests.end(), [](const auto& known) { return !known.second->ended; });
}

int Requests::deliver(const std::shared_ptr<Request>& request) {
  const std::lock_guard lock(mutex_);
  // A persistent one may be inactive; MPI may have stopped at the error of another request.
  if (!request->started || !request->ended) return MPI_SUCCESS;
  request->started = false;
  --started_;
  const auto known = known_.find(request->handle);
  // MPI may have given another request the same handle since.
  if (request->form != Form::persistent && known != known_.end() && known->second == request) known_.erase(known);
  return request->code;
}

std::optional<int> Requests::start(MPI_Request* handle) {
  if (!any_persistent()) return std::nullopt;
  const Known found = find(1, handle);
  if (found.empty()) return std::nullopt;
  const std::shared_ptr<Request>& request = found.front().second;
  try {
    if (!request->job->has_joined()) throw Error(ErrorCode::closed, "MPI_Finalize has begun");
    request->begin();
  } catch (const Error& error) {
    return request->job->give_up(request->call(), error);
  } catch (const std::exception& error) {
    return request->job->give_up(request->call(), Error(ErrorCode::internal, error.what()));
  }
  Process::get().counts().add(request->collective, request->form, Path::the_switch, request->bytes);
  const std::lock_guard lock(mutex_);
  enter(request);
  return NETSUM_NEXT(PMPI_Start)(handle);
}

void Requests::forget(MPI_Request handle) {
  const std::lock_guard lock(mutex_);
  const auto known = known_.find(handle);
  if (known == known_.end()) return;
  if (known->second->started) --started_;
  known->second->started = false;
  known_.erase(known);
}

}  // namespace netsum::mpi
