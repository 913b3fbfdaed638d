// What the programs of mpi_calls.py share: one runs the case that its argument names. A difference is a line on stderr and
// exit code 1.
#pragma once

#include <mpi.h>

#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace netsum_test {

inline int rank_of(MPI_Comm comm) {
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  return rank;
}
inline int size_of(MPI_Comm comm) {
  int size = 0;
  MPI_Comm_size(comm, &size);
  return size;
}
inline bool may_use_threads() {
  int provided = 0;
  MPI_Query_thread(&provided);
  return provided == MPI_THREAD_MULTIPLE;
}

inline int wrong = 0;

inline void check(bool right, const std::string& what) {
  if (right) return;
  if (++wrong <= 20) std::fprintf(stderr, "rank %d: wrong: %s\n", rank_of(MPI_COMM_WORLD), what.c_str());
}

inline int sum_of_ranks(MPI_Comm comm, std::size_t count = 1) {
  std::vector<int> numbers(count, rank_of(comm));
  MPI_Allreduce(MPI_IN_PLACE, numbers.data(), static_cast<int>(count), MPI_INT, MPI_SUM, comm);
  return numbers.back();
}

inline void check_sum(MPI_Comm comm, const std::string& what, std::size_t count = 1) {
  const int ranks = size_of(comm);
  check(sum_of_ranks(comm, count) == ranks * (ranks - 1) / 2, what);
}

// For the test, which waits for it.
inline void tell(const char* line) {
  std::puts(line);
  std::fflush(stdout);
}

inline void (*after_finalize)() = nullptr;  // may not call MPI

struct Case {
  const char* name;
  void (*run)();
};

inline int run_case(std::span<const Case> cases, int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  bool known = false;
  for (const Case& each : cases) {
    if (argc != 2 || std::strcmp(each.name, argv[1]) != 0) continue;
    known = true;
    each.run();
  }
  check(known, "usage: PROGRAM CASE");
  MPI_Finalize();
  if (after_finalize != nullptr) after_finalize();
  return wrong == 0 ? 0 : 1;
}

}  // namespace netsum_test

using namespace netsum_test;
