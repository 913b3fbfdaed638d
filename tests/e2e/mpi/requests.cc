// Collective calls in the background, beside MPI's own blocking ones: mpirun -n 2 mpi_requests CASE, as mpi_operations.
#include <dlfcn.h>
#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "program.h"

namespace {

constexpr int lengths[] = {1, 17, 9001};

// Every second number of a rank's part; the ranks' datatypes differ.
MPI_Datatype spread(int n) {
  MPI_Datatype made = MPI_DATATYPE_NULL;
  MPI_Type_vector(n, 1, 2, MPI_INT, &made);
  MPI_Type_commit(&made);
  return made;
}

// One call of each collective, and what MPI's own give. Odd ranks move numbers that are not side by side, and rank 0's
// numbers in place are not aligned.
class Calls {
 public:
  Calls(int n, MPI_Comm comm)
      : n_(n), comm_(comm), rank_(rank_of(comm)), ranks_(size_of(comm)), root_(n % ranks_), counts_(count(ranks_), n) {
    counts_.back() = 0;
  }

  static constexpr int requests = 8;

  // Before each run: other numbers.
  void fill(int turn) {
    in_.resize(count(n_ * ranks_));
    for (std::size_t i = 0; i < in_.size(); ++i) in_[i] = (static_cast<int>(i) * 7 + rank_ * 3 + turn) % 5;
    sum_.assign(count(n_), -1);
    most_ = all_true_ = part_ = sum_;
    moved_.assign(count(2 * n_), -1);
    for (int i = 0; i < n_ && rank_ == root_; ++i) moved_[count(i * step())] = i + turn;
    all_.assign(count(2 * n_ * ranks_), -1);
    place_.resize(count(n_) * sizeof(int) + 1);
    std::memcpy(place(), in_.data(), count(n_) * sizeof(int));
    turn_ = turn;
  }

  void begin(MPI_Request* r) {
    MPI_Datatype moved = spread(n_);
    const bool odd = rank_ % 2 == 1;
    MPI_Iallreduce(in_.data(), sum_.data(), n_, MPI_INT, MPI_SUM, comm_, &r[0]);
    MPI_Ireduce(in_.data(), most_.data(), n_, MPI_INT, MPI_MAX, root_, comm_, &r[1]);
    MPI_Ibcast(moved_.data(), odd ? 1 : n_, odd ? moved : MPI_INT, root_, comm_, &r[2]);
    MPI_Ireduce_scatter(in_.data(), part_.data(), counts_.data(), MPI_INT, MPI_SUM, comm_, &r[3]);
    MPI_Ireduce_scatter_block(in_.data(), all_true_.data(), n_, MPI_INT, MPI_LAND, comm_, &r[4]);
    MPI_Iallgather(in_.data(), n_, MPI_INT, all_.data(), odd ? 1 : n_, odd ? moved : MPI_INT, comm_, &r[5]);
    MPI_Iallreduce(MPI_IN_PLACE, place(), n_, MPI_INT, MPI_SUM, comm_, &r[6]);
    MPI_Ibarrier(comm_, &r[7]);
    replace(moved);
  }

#if MPI_VERSION >= 4
  void prepare(MPI_Request* r) {
    MPI_Datatype moved = spread(n_);
    const bool odd = rank_ % 2 == 1;
    const MPI_Info none = MPI_INFO_NULL;
    MPI_Allreduce_init(in_.data(), sum_.data(), n_, MPI_INT, MPI_SUM, comm_, none, &r[0]);
    MPI_Reduce_init(in_.data(), most_.data(), n_, MPI_INT, MPI_MAX, root_, comm_, none, &r[1]);
    MPI_Bcast_init(moved_.data(), odd ? 1 : n_, odd ? moved : MPI_INT, root_, comm_, none, &r[2]);
    MPI_Reduce_scatter_init(in_.data(), part_.data(), counts_.data(), MPI_INT, MPI_SUM, comm_, none, &r[3]);
    MPI_Reduce_scatter_block_init_c(in_.data(), all_true_.data(), n_, MPI_INT, MPI_LAND, comm_, none, &r[4]);
    MPI_Allgather_init(in_.data(), n_, MPI_INT, all_.data(), odd ? 1 : n_, odd ? moved : MPI_INT, comm_, none, &r[5]);
    MPI_Allreduce_init_c(MPI_IN_PLACE, place(), n_, MPI_INT, MPI_SUM, comm_, none, &r[6]);
    MPI_Barrier_init(comm_, none, &r[7]);
    replace(moved);
  }
#endif

  void check_results(const std::string& when) {
    std::vector<int> sum(in_.size()), most(count(n_)), all_true(count(n_)), part(count(n_)), all(in_.size());
    PMPI_Allreduce(in_.data(), sum.data(), n_ * ranks_, MPI_INT, MPI_SUM, comm_);
    PMPI_Reduce(in_.data(), most.data(), n_, MPI_INT, MPI_MAX, root_, comm_);
    PMPI_Reduce_scatter(in_.data(), part.data(), counts_.data(), MPI_INT, MPI_SUM, comm_);
    PMPI_Reduce_scatter_block(in_.data(), all_true.data(), n_, MPI_INT, MPI_LAND, comm_);
    PMPI_Allgather(in_.data(), n_, MPI_INT, all.data(), n_, MPI_INT, comm_);
    const auto own = count(counts_[count(rank_)]);
    sum.resize(count(n_));
    const auto is = [&](bool right, const char* call) {
      check(right, when + ", turn " + std::to_string(turn_) + ": " + call + " of " + std::to_string(n_));
    };
    is(sum_ == sum, "the sum");
    is(std::memcmp(place(), sum.data(), count(n_) * sizeof(int)) == 0, "the sum in place");
    is(rank_ != root_ || most_ == most, "the maximum");
    is(std::equal(part.begin(), part.begin() + static_cast<std::ptrdiff_t>(own), part_.begin()), "the parts");
    is(all_true_ == all_true, "the equal parts");
    bool moved = true, gathered = true;
    for (int i = 0; i < n_; ++i) moved &= moved_[count(i * step())] == i + turn_;
    is(moved && (step() == 1 || moved_[1] == -1), "what was broadcast");
    for (int from = 0; from < ranks_; ++from) {
      // The datatype ends with its last number: the next rank's begins right behind it.
      const int begin = from * (step() == 1 ? n_ : 2 * n_ - 1);
      for (int i = 0; i < n_; ++i) gathered &= all_[count(begin + i * step())] == all[count(from * n_ + i)];
    }
    is(gathered, "what was gathered");
  }

 private:
  static std::size_t count(int n) {
    return static_cast<std::size_t>(n);
  }
  [[nodiscard]] int step() const {
    return rank_ % 2 == 1 ? 2 : 1;
  }
  // Another datatype may get its handle, and its memory.
  static void replace(MPI_Datatype freed) {
    MPI_Type_free(&freed);
    MPI_Datatype next = MPI_DATATYPE_NULL;
    MPI_Type_contiguous(1, MPI_CHAR, &next);
    MPI_Type_commit(&next);
  }
  std::byte* place() {
    return place_.data() + (rank_ == 0 ? 1 : 0);
  }

  const int n_;
  const MPI_Comm comm_;
  const int rank_, ranks_, root_;
  std::vector<int> counts_;
  int turn_ = 0;
  std::vector<int> in_, sum_, most_, moved_, part_, all_true_, all_;
  std::vector<std::byte> place_;
};

using List = std::vector<MPI_Request>;

int length(const List& list) {
  return static_cast<int>(list.size());
}

// Every way to complete a list of requests.
const std::pair<const char*, void (*)(List&)> ways[] = {
    {"MPI_Wait, the last first",
     [](List& list) {
       for (std::size_t i = list.size(); i-- > 0;) MPI_Wait(&list[i], MPI_STATUS_IGNORE);
     }},
    {"MPI_Waitall", [](List& list) { MPI_Waitall(length(list), list.data(), MPI_STATUSES_IGNORE); }},
    {"MPI_Waitany",
     [](List& list) {
       for (int index = 0; index != MPI_UNDEFINED;) MPI_Waitany(length(list), list.data(), &index, MPI_STATUS_IGNORE);
     }},
    {"MPI_Waitsome",
     [](List& list) {
       std::vector<int> indices(list.size());
       for (int some = 0; some != MPI_UNDEFINED;) {
         MPI_Waitsome(length(list), list.data(), &some, indices.data(), MPI_STATUSES_IGNORE);
       }
     }},
    {"MPI_Test",
     [](List& list) {
       for (MPI_Request& request : list) {
         for (int flag = 0; flag == 0;) MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
       }
     }},
    {"MPI_Testall",
     [](List& list) {
       for (int flag = 0; flag == 0;) MPI_Testall(length(list), list.data(), &flag, MPI_STATUSES_IGNORE);
     }},
    {"MPI_Testany",
     [](List& list) {
       for (int flag = 0, index = 0; flag == 0 || index != MPI_UNDEFINED;) {
         MPI_Testany(length(list), list.data(), &index, &flag, MPI_STATUS_IGNORE);
       }
     }},
    {"MPI_Testsome",
     [](List& list) {
       std::vector<int> indices(list.size());
       for (int some = 0; some != MPI_UNDEFINED;) {
         MPI_Testsome(length(list), list.data(), &some, indices.data(), MPI_STATUSES_IGNORE);
       }
     }},
    {"MPI_Request_get_status",
     [](List& list) {
       for (MPI_Request& request : list) {
         for (int flag = 0; flag == 0;) MPI_Request_get_status(request, &flag, MPI_STATUS_IGNORE);
         MPI_Wait(&request, MPI_STATUS_IGNORE);
       }
     }},
};

// Calls on two communicators in flight at once, and a blocking one between them.
void complete_in_every_way() {
  MPI_Comm comms[] = {MPI_COMM_WORLD, MPI_COMM_NULL};
  MPI_Comm_dup(MPI_COMM_WORLD, &comms[1]);
  for (const MPI_Comm comm : comms) check_sum(comm, "the first sum");
  for (const auto& [way, complete] : ways) {
    std::vector<std::unique_ptr<Calls>> calls;
    List list;
    for (const MPI_Comm comm : comms) {
      for (const int n : lengths) {
        calls.push_back(std::make_unique<Calls>(n, comm));
        calls.back()->fill(n);
        list.resize(list.size() + Calls::requests);
        calls.back()->begin(&list[list.size() - Calls::requests]);
        check_sum(comm, "a sum beside others in flight");
      }
    }
    complete(list);
    check(list == List(list.size(), MPI_REQUEST_NULL), std::string(way) + " left a request");
    for (const auto& each : calls) each->check_results(way);
  }
  MPI_Comm_free(&comms[1]);
}

// Started 10 times each, some together, and completed in every way; between the runs they are inactive.
void start_again() {
#if MPI_VERSION >= 4
  std::vector<std::unique_ptr<Calls>> calls;
  List list;
  for (const int n : lengths) {
    calls.push_back(std::make_unique<Calls>(n, MPI_COMM_WORLD));
    calls.back()->fill(0);
    list.resize(list.size() + Calls::requests);
    calls.back()->prepare(&list[list.size() - Calls::requests]);
  }
  const List prepared = list;
  for (int turn = 0; turn < 10; ++turn) {
    for (const auto& each : calls) each->fill(turn);
    if (turn % 2 == 0) {
      MPI_Startall(length(list), list.data());
    } else {
      for (MPI_Request& request : list) MPI_Start(&request);
    }
    check_sum(MPI_COMM_WORLD, "a sum beside persistent ones");
    const auto& [way, complete] = ways[static_cast<std::size_t>(turn) % std::size(ways)];
    complete(list);
    for (const auto& each : calls) each->check_results(way);
    check(list == prepared, "a persistent request has another handle");
    MPI_Waitall(length(list), list.data(), MPI_STATUSES_IGNORE);
  }
  for (MPI_Request& request : list) MPI_Request_free(&request);
#endif
}

void sum_in_background(MPI_Comm comm, int* sum, MPI_Request* request) {
  MPI_Iallreduce(MPI_IN_PLACE, sum, 1, MPI_INT, MPI_SUM, comm, request);
}

// Rank 1 comes to its call when it has a message that rank 0 sends after the start of its own, and before its end: a start
// waits for nobody, also where the communicator has not joined, and an end lets messages go on.
void wait_for_messages() {
  const int rank = rank_of(MPI_COMM_WORLD);
  for (int turn = 0; turn < 10; ++turn) {
    std::vector<double> message(1 << 19, rank);
    const int n = static_cast<int>(message.size());
    int sum = 1;
    List list(2, MPI_REQUEST_NULL);
    if (rank == 0) {
      sum_in_background(MPI_COMM_WORLD, &sum, &list[0]);
      MPI_Isend(message.data(), n, MPI_DOUBLE, 1, 0, MPI_COMM_WORLD, &list[1]);
      if (turn % 2 == 0) MPI_Wait(&list[0], MPI_STATUS_IGNORE);
    } else {
      if (rank == 1) MPI_Recv(message.data(), n, MPI_DOUBLE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      sum_in_background(MPI_COMM_WORLD, &sum, &list[0]);
    }
    MPI_Waitall(2, list.data(), MPI_STATUSES_IGNORE);
    check(sum == size_of(MPI_COMM_WORLD), "a sum that waits for a message");
    if (turn == 4) MPI_Barrier(MPI_COMM_WORLD);  // may join
  }
}

// Rank 1 begins the first call when rank 0 has completed the second, on another communicator.
void end_out_of_order() {
  const int rank = rank_of(MPI_COMM_WORLD);
  MPI_Comm comms[] = {MPI_COMM_NULL, MPI_COMM_NULL};
  for (MPI_Comm& comm : comms) {
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    check_sum(comm, "the first sum");
  }
  int sums[] = {1, 2}, index = -1, flag = 0;
  List list(2, MPI_REQUEST_NULL);
  if (rank != 1) sum_in_background(comms[0], &sums[0], &list[0]);
  sum_in_background(comms[1], &sums[1], &list[1]);
  MPI_Waitany(2, list.data(), &index, MPI_STATUS_IGNORE);
  MPI_Test(&list[0], &flag, MPI_STATUS_IGNORE);
  check(index == 1 && (rank == 1 || flag == 0), "the first sum ended before rank 1 began it");
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 1) sum_in_background(comms[0], &sums[0], &list[0]);
  MPI_Wait(&list[0], MPI_STATUS_IGNORE);
  check(sums[0] == size_of(MPI_COMM_WORLD) && sums[1] == 2 * sums[0], "sums that end out of order");
  for (MPI_Comm& comm : comms) MPI_Comm_free(&comm);
}

int forgotten = 2;

// Communicators that are freed first, and a request that is: MPI_Finalize ends it.
void free_early() {
  for (int turn = 0; turn < 3; ++turn) {
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    check_sum(comm, "the first sum");
    int sum = 1;
    MPI_Request request = MPI_REQUEST_NULL;
    sum_in_background(comm, &sum, &request);
    MPI_Comm_free(&comm);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    check(sum == size_of(MPI_COMM_WORLD), "a sum of a freed communicator");
  }
  check_sum(MPI_COMM_WORLD, "a sum");
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallreduce(MPI_IN_PLACE, &forgotten, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD, &request);
  MPI_Request_free(&request);
  check_sum(MPI_COMM_WORLD, "a sum after a freed request");
  after_finalize = [] {
    if (forgotten != 1) std::fprintf(stderr, "wrong: a freed request's result: %d\n", forgotten);
    wrong += forgotten != 1 ? 1 : 0;
  };
}

// Each thread has a communicator; all of them call, and complete, at once.
void use_threads() {
  if (!may_use_threads()) return;
  std::vector<MPI_Comm> comms(4, MPI_COMM_NULL);
  for (MPI_Comm& comm : comms) MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  std::vector<std::thread> threads;
  for (const MPI_Comm comm : comms) {
    threads.emplace_back([comm] {
      check_sum(comm, "a thread's first sum");
      for (int turn = 0; turn < 50; ++turn) {
        int sums[] = {1, 2};
        List list(2, MPI_REQUEST_NULL);
        for (std::size_t i = 0; i < 2; ++i) sum_in_background(comm, &sums[i], &list[i]);
        ways[static_cast<std::size_t>(turn) % std::size(ways)].second(list);
        const int ranks = size_of(comm);
        check(sums[0] == ranks && sums[1] == 2 * ranks, "a thread's sums");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (MPI_Comm& comm : comms) MPI_Comm_free(&comm);
}

// Until the switch is gone: then the call that completes a request has its error, and so has the next start.
void sum_until_error() {
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  check_sum(MPI_COMM_WORLD, "the first sum");
  tell("summed");
  int code = MPI_SUCCESS, sums[] = {1, 1, 1};
  List list(3, MPI_REQUEST_NULL);
  std::vector<MPI_Status> statuses(2);
#if MPI_VERSION >= 4
  MPI_Request again = MPI_REQUEST_NULL;
  MPI_Barrier_init(MPI_COMM_WORLD, MPI_INFO_NULL, &again);
#endif
  while (code == MPI_SUCCESS) {
    for (std::size_t i = 0; i < 3; ++i) sum_in_background(MPI_COMM_WORLD, &sums[i], &list[i]);
    code = MPI_Wait(&list[0], MPI_STATUS_IGNORE);
    const int later = MPI_Waitall(2, &list[1], statuses.data());
    check(later == MPI_SUCCESS || code != MPI_SUCCESS || later == MPI_ERR_IN_STATUS, "MPI_Waitall");
    if (code == MPI_SUCCESS && later != MPI_SUCCESS) code = statuses[1].MPI_ERROR;
    if (code != MPI_SUCCESS) check(later == MPI_ERR_IN_STATUS && statuses[1].MPI_ERROR != MPI_SUCCESS, "the status's error");
  }
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  check(std::string(text).find("netsum: aggregator_lost: ") != std::string::npos, std::string("the error's text: ") + text);
  check(MPI_Iallreduce(&sums[1], &sums[0], 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &list[0]) != MPI_SUCCESS,
        "a call after the error succeeded");
#if MPI_VERSION >= 4
  check(MPI_Start(&again) != MPI_SUCCESS, "a persistent call after the error succeeded");
  MPI_Wait(&again, MPI_STATUS_IGNORE);
  MPI_Request_free(&again);
#endif
  tell("error");
}

// fake_cuda.cc, loaded only now, as a program may load CUDA late.
class Device {
 public:
  explicit Device(bool readable) : memory_(function<std::byte* (*)(int)>("fake_memory")(readable ? 1 : 0)) {}
  // The i-th buffer there.
  [[nodiscard]] int* buffer(int i) const { return reinterpret_cast<int*>(memory_ + (i << 18)); }
  void copy(void* to, const void* from, std::size_t bytes) const { copy_(to, from, bytes); }

 private:
  template <class Function>
  Function function(const char* name) const {
    return reinterpret_cast<Function>(dlsym(library_, name));
  }
  void* const library_ = dlopen(FAKE_CUDA, RTLD_NOW);
  std::byte* const memory_;
  void (*const copy_)(void*, const void*, std::size_t) = function<void (*)(void*, const void*, std::size_t)>("fake_copy");
};

// Rank 0's buffers are on a device, and the others' are not.
class Buffers {
 public:
  Buffers(const Device& device, int n)
      : device_(device),
        on_device_(rank_of(MPI_COMM_WORLD) == 0),
        ranks_(size_of(MPI_COMM_WORLD)),
        own_(static_cast<std::size_t>(n * ranks_)),
        got_(own_.size()) {
    for (std::size_t i = 0; i < own_.size(); ++i) own_[i] = static_cast<int>(i) + rank_of(MPI_COMM_WORLD);
    fill();
  }
  int* in() { return on_device_ ? device_.buffer(0) : own_.data(); }
  int* out() { return on_device_ ? device_.buffer(1) : got_.data(); }
  void fill() {
    if (on_device_) device_.copy(in(), own_.data(), own_.size() * sizeof(int));
    if (on_device_) device_.copy(out(), own_.data(), own_.size() * sizeof(int));
    if (!on_device_) got_ = own_;
  }
  // Whether the first `n` numbers of the output are so many ranks' sums from `first` on.
  void check_sums(int n, int first, const char* what) {
    if (on_device_) device_.copy(got_.data(), out(), got_.size() * sizeof(int));
    bool right = true;
    for (int i = 0; i < n; ++i)
      right &= got_[static_cast<std::size_t>(i)] == (first + i) * ranks_ + ranks_ * (ranks_ - 1) / 2;
    check(right, std::string(what) + " of a device's memory");
    fill();
  }
  [[nodiscard]] const std::vector<int>& got() {
    if (on_device_) device_.copy(got_.data(), out(), got_.size() * sizeof(int));
    return got_;
  }

 private:
  const Device& device_;
  const bool on_device_;
  const int ranks_;
  std::vector<int> own_, got_;
};

void use_device() {
  const MPI_Comm comm = MPI_COMM_WORLD;
  const int rank = rank_of(comm), ranks = size_of(comm), n = 1000;
  check_sum(comm, "the first sum");
  const Device device(false);
  Buffers buffers(device, n);
  int* const in = buffers.in();
  int* const out = buffers.out();
  MPI_Allreduce(in, out, n * ranks, MPI_INT, MPI_SUM, comm);
  buffers.check_sums(n * ranks, 0, "MPI_Allreduce");
  MPI_Allreduce(MPI_IN_PLACE, out, n, MPI_INT, MPI_SUM, comm);
  buffers.check_sums(n, 0, "MPI_Allreduce in place");
  for (int root = 0; root < 2; ++root) {
    MPI_Reduce(in, out, n, MPI_INT, MPI_SUM, root, comm);
    if (rank == root) buffers.check_sums(n, 0, "MPI_Reduce");
  }
  MPI_Reduce_scatter_block(in, out, n, MPI_INT, MPI_SUM, comm);
  buffers.check_sums(n, rank * n, "MPI_Reduce_scatter_block");
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Iallreduce(in, out, n, MPI_INT, MPI_SUM, comm, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  buffers.check_sums(n, 0, "MPI_Iallreduce");
  for (int root = 0; root < 2; ++root) {
    buffers.fill();
    MPI_Bcast(out, n, MPI_INT, root, comm);
    check(buffers.got()[1] == 1 + root, "MPI_Bcast of a device's memory");
  }
  MPI_Allgather(in, n, MPI_INT, out, n, MPI_INT, comm);
  for (int from = 0; from < ranks; ++from) {
    check(buffers.got()[static_cast<std::size_t>(from * n + 1)] == 1 + from, "MPI_Allgather of a device's memory");
  }
}

// Before the communicator has joined. MPI may read this memory.
void use_device_first() {
  const Device device(true);
  Buffers buffers(device, 10);
  for (int turn = 0; turn < 2; ++turn) {
    MPI_Allreduce(buffers.in(), buffers.out(), 10, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    buffers.check_sums(10, 0, "MPI_Allreduce");
  }
}

constexpr Case cases[] = {
    {"ways", &complete_in_every_way},  {"persistent", &start_again}, {"messages", &wait_for_messages},
    {"order", &end_out_of_order},      {"freed", &free_early},       {"threads", &use_threads},
    {"until-error", &sum_until_error}, {"device", &use_device},      {"device-first", &use_device_first}};

}  // namespace

int main(int argc, char** argv) {
  return run_case(cases, argc, argv);
}
