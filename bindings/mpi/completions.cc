// Calls that complete requests, start persistent ones, or free them. Fortran's bindings call PMPI_, and tools do: these
// stand in front of both names, since a request of netsum's is completed by nobody else.
#include <chrono>
#include <thread>
#include <vector>

#include "next.h"
#include "process.h"

namespace netsum::mpi {
namespace {

Requests& requests() {
  return Process::get().requests();
}

// Netsum's among the requests of a call, as they are before it.
class Own {
 public:
  Own(int count, const MPI_Request* handles) {
    if (!requests().any()) return;
    known_ = requests().find(count, handles);
    if (!known_.empty()) requests().complete_ended();
  }

  [[nodiscard]] bool any() const { return !known_.empty(); }

  // Until they have all ended. MPI makes progress: other ranks may need that before they come to these operations.
  void wait() const {
    for (int turn = 0; requests().any_running(known_); rest(++turn)) {
      Process::get().progress();
      requests().complete_ended();
    }
  }

  // `code`, or that of the request at `index`, which MPI's call has completed.
  [[nodiscard]] int one(int code, int index = 0) const {
    const int own = deliver(index);
    return code == MPI_SUCCESS ? own : code;
  }
  // Of `count` requests: those at `indices`; null: the first. An error of one of them is in its status.
  [[nodiscard]] int several(int code, int count, const int* indices, MPI_Status* statuses) const {
    if (!any()) return code;
    std::vector<int> codes;
    bool failed = false;
    for (int i = 0; i < count; ++i) {
      codes.push_back(deliver(indices != nullptr ? indices[i] : i));
      failed = failed || codes.back() != MPI_SUCCESS;
    }
    if (!failed) return code;
    for (int i = 0; i < count && statuses != MPI_STATUSES_IGNORE; ++i) {
      const int own = codes[static_cast<std::size_t>(i)];
      if (own != MPI_SUCCESS || code != MPI_ERR_IN_STATUS) statuses[i].MPI_ERROR = own;
    }
    return MPI_ERR_IN_STATUS;
  }

  // Between looks. Short operations have ended before it sleeps.
  static void rest(int turn) {
    if (turn < 100) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

 private:
  [[nodiscard]] int deliver(int index) const {
    for (const auto& [place, request] : known_) {
      if (place == index) return requests().deliver(request);
    }
    return MPI_SUCCESS;
  }

  Requests::Known known_;
};

// Calls test(flag), a test of MPI's, until it says that there is nothing to wait for.
template <class Test>
int until(const Test& test) {
  for (int turn = 0;; Own::rest(++turn)) {
    int flag = 0;
    const int code = test(&flag);
    if (code != MPI_SUCCESS || flag != 0) return code;
    requests().complete_ended();
  }
}

}  // namespace
}  // namespace netsum::mpi

using namespace netsum::mpi;

extern "C" {

int PMPI_Wait(MPI_Request* request, MPI_Status* status) {
  const Own own(1, request);
  own.wait();
  return own.one(NETSUM_NEXT(PMPI_Wait)(request, status));
}

int PMPI_Test(MPI_Request* request, int* flag, MPI_Status* status) {
  const Own own(1, request);
  const int code = NETSUM_NEXT(PMPI_Test)(request, flag, status);
  return own.any() && *flag != 0 ? own.one(code) : code;
}

int PMPI_Waitall(int count, MPI_Request list[], MPI_Status statuses[]) {
  const Own own(count, list);
  own.wait();
  return own.several(NETSUM_NEXT(PMPI_Waitall)(count, list, statuses), count, nullptr, statuses);
}

int PMPI_Testall(int count, MPI_Request list[], int* flag, MPI_Status statuses[]) {
  const Own own(count, list);
  const int code = NETSUM_NEXT(PMPI_Testall)(count, list, flag, statuses);
  return own.any() && *flag != 0 ? own.several(code, count, nullptr, statuses) : code;
}

int PMPI_Waitany(int count, MPI_Request list[], int* index, MPI_Status* status) {
  const Own own(count, list);
  if (!own.any()) return NETSUM_NEXT(PMPI_Waitany)(count, list, index, status);
  const int code = until([&](int* flag) { return NETSUM_NEXT(PMPI_Testany)(count, list, index, flag, status); });
  return own.one(code, *index);
}

int PMPI_Testany(int count, MPI_Request list[], int* index, int* flag, MPI_Status* status) {
  const Own own(count, list);
  const int code = NETSUM_NEXT(PMPI_Testany)(count, list, index, flag, status);
  return own.any() && *flag != 0 ? own.one(code, *index) : code;
}

int PMPI_Waitsome(int count, MPI_Request list[], int* completed, int indices[], MPI_Status statuses[]) {
  const Own own(count, list);
  if (!own.any()) return NETSUM_NEXT(PMPI_Waitsome)(count, list, completed, indices, statuses);
  const int code = until([&](int* flag) {
    const int now = NETSUM_NEXT(PMPI_Testsome)(count, list, completed, indices, statuses);
    *flag = *completed;  // MPI_UNDEFINED, if no request is active
    return now;
  });
  return own.several(code, *completed, indices, statuses);
}

int PMPI_Testsome(int count, MPI_Request list[], int* completed, int indices[], MPI_Status statuses[]) {
  const Own own(count, list);
  const int code = NETSUM_NEXT(PMPI_Testsome)(count, list, completed, indices, statuses);
  return own.several(code, *completed, indices, statuses);
}

int PMPI_Request_get_status(MPI_Request request, int* flag, MPI_Status* status) {
  const Own own(1, &request);
  return NETSUM_NEXT(PMPI_Request_get_status)(request, flag, status);
}

int PMPI_Request_free(MPI_Request* request) {
  requests().forget(*request);
  return NETSUM_NEXT(PMPI_Request_free)(request);
}

int PMPI_Start(MPI_Request* request) {
  if (const auto code = requests().start(request)) return *code;
  return NETSUM_NEXT(PMPI_Start)(request);
}

int PMPI_Startall(int count, MPI_Request list[]) {
  if (!requests().any_persistent()) return NETSUM_NEXT(PMPI_Startall)(count, list);
  for (int i = 0; i < count; ++i) {
    if (const int code = PMPI_Start(&list[i]); code != MPI_SUCCESS) return code;
  }
  return MPI_SUCCESS;
}

#define NETSUM_ALSO_MPI(name) decltype(PMPI_##name) MPI_##name __attribute__((alias("PMPI_" #name)))
NETSUM_ALSO_MPI(Wait);
NETSUM_ALSO_MPI(Test);
NETSUM_ALSO_MPI(Waitany);
NETSUM_ALSO_MPI(Testany);
NETSUM_ALSO_MPI(Waitall);
NETSUM_ALSO_MPI(Testall);
NETSUM_ALSO_MPI(Waitsome);
NETSUM_ALSO_MPI(Testsome);
NETSUM_ALSO_MPI(Request_get_status);
NETSUM_ALSO_MPI(Request_free);
NETSUM_ALSO_MPI(Start);
NETSUM_ALSO_MPI(Startall);

}  // extern "C"
