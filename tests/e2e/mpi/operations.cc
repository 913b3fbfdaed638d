// Calls MPI_ and PMPI_ with the same operands, and compares: mpirun -n 4 mpi_operations CASE. tests/e2e/mpi_calls.py runs it
// with libnetsum-mpi.so preloaded, so that MPI_ takes the switch. A difference is a line on stderr and exit code 1.
#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "program.h"

namespace {

std::uint64_t next(std::uint64_t& state) {
  state = state * 6364136223846793005ULL + 1442695040888963407ULL;
  return state >> 33;
}

// std::vector<bool> has no data().
template <class T>
using Stored = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;

// Values of which every type holds the sums exactly, and the products of 4 ranks.
template <class T>
std::vector<Stored<T>> values(std::size_t count, int rank, bool for_product) {
  std::vector<Stored<T>> made(count);
  std::uint64_t state = static_cast<std::uint64_t>(rank) + 17;
  for (Stored<T>& value : made) {
    const auto number = next(state);
    if constexpr (std::is_same_v<T, bool>) {
      value = number % 3 != 0;
    } else if constexpr (sizeof(T) <= 2) {
      // Their sums do not overflow: Open MPI's saturate, in some places.
      value = static_cast<T>(for_product ? 1 + number % 3 : number % 40);
      if (std::is_signed_v<T> && number % 7 == 0) value = static_cast<T>(-value);
    } else if constexpr (std::is_integral_v<T>) {
      value = static_cast<T>(number * 0x9e3779b97f4a7c15ULL >> (number % 48));  // of every magnitude, and sign
      // MPICH 4.0 compares long unsigned numbers as if they were signed: see compare_unsigned().
      if (std::is_unsigned_v<T>) value &= std::numeric_limits<T>::max() >> 1;
    } else {
      value = static_cast<T>(static_cast<double>(for_product ? number % 3 : number % 31) - (for_product ? 1 : 15));
    }
  }
  return made;
}

struct Type {
  MPI_Datatype datatype;
  const char* name;
  MPI_Datatype original = datatype;  // of a duplicate: Open MPI reduces no duplicates
};
struct Op {
  MPI_Op op;
  const char* name;
};

constexpr std::size_t short_length = 17, long_length = 9001;
constexpr std::size_t lengths[] = {1, 16, short_length, long_length};

template <class T>
std::string named(const char* call, const Type& type, const Op& op, std::size_t count) {
  return std::string(call) + " " + op.name + " of " + std::to_string(count) + " " + type.name;
}

// Bit for bit. -0 equals +0: MPI does not say which one a minimum is.
template <class T>
bool same(const T* a, const T* b, std::size_t count) {
  if constexpr (std::is_floating_point_v<T>) {
    for (std::size_t i = 0; i < count; ++i) {
      if (!(a[i] == b[i])) return false;
    }
    return true;
  } else {
    return std::memcmp(a, b, count * sizeof(T)) == 0;
  }
}

template <class T>
void compare(const Type& type, const Op& op, std::size_t count, MPI_Comm comm) {
  using S = Stored<T>;
  const int rank = rank_of(comm), ranks = size_of(comm);
  const bool product = op.op == MPI_PROD;
  const std::vector<S> all = values<T>(count * static_cast<std::size_t>(ranks), rank, product);
  const int n = static_cast<int>(count);
  const auto what = [&](const char* call) { return named<T>(call, type, op, count); };

  std::vector<S> expected(all.size()), got(count, S{}), in_place(all.begin(), all.begin() + n);
  PMPI_Allreduce(all.data(), expected.data(), n * ranks, type.original, op.op, comm);
  MPI_Allreduce(all.data(), got.data(), n, type.datatype, op.op, comm);
  MPI_Allreduce(MPI_IN_PLACE, in_place.data(), n, type.datatype, op.op, comm);
  check(same(expected.data(), got.data(), count), what("MPI_Allreduce"));
  check(same(expected.data(), in_place.data(), count), what("MPI_Allreduce in place"));

  const int root = static_cast<int>(count) % ranks;
  std::vector<S> at_root(count, S{});
  std::vector<S> input(all.begin(), all.begin() + n);
  MPI_Reduce(input.data(), at_root.data(), n, type.datatype, op.op, root, comm);
  check(rank != root || same(expected.data(), at_root.data(), count), what("MPI_Reduce"));
  check(same(all.data(), input.data(), count), what("MPI_Reduce changed its input:"));
  // Long ones of other types are MPI's, and MPICH 4.0 crashes.
  if (count <= short_length || std::is_integral_v<T> || std::is_same_v<T, double>) {
    MPI_Reduce(rank == root ? MPI_IN_PLACE : input.data(), rank == root ? input.data() : nullptr, n, type.datatype, op.op,
               root, comm);
    check(same(rank == root ? expected.data() : all.data(), input.data(), count), what("MPI_Reduce in place"));
  }

  const S* const part = expected.data() + rank * n;
  std::vector<S> own(count, S{}), whole = all;
  MPI_Reduce_scatter_block(all.data(), own.data(), n, type.datatype, op.op, comm);
  check(same(part, own.data(), count), what("MPI_Reduce_scatter_block"));
  MPI_Reduce_scatter_block(MPI_IN_PLACE, whole.data(), n, type.datatype, op.op, comm);
  check(same(part, whole.data(), count), what("MPI_Reduce_scatter_block in place"));

  // Unequal parts, one of them empty.
  std::vector<int> counts(static_cast<std::size_t>(ranks), n);
  counts.front() = 0;
  counts.back() = n + n / 2;
  if (ranks > 2) counts[1] = n - n / 2;
  const auto mine = static_cast<std::size_t>(counts[static_cast<std::size_t>(rank)]);
  const S* const unequal = expected.data() + std::accumulate(counts.begin(), counts.begin() + rank, 0);
  std::vector<S> of_netsum(mine + 1, S{});
  MPI_Reduce_scatter(all.data(), of_netsum.data(), counts.data(), type.datatype, op.op, comm);
  check(same(unequal, of_netsum.data(), mine), what("MPI_Reduce_scatter"));
}

// The first type with every operation; the others are other names of it.
template <class T>
void compare_all(const std::vector<Type>& types, const std::vector<Op>& ops) {
  for (const Op& op : ops) {
    for (const std::size_t count : {short_length, long_length}) compare<T>(types.front(), op, count, MPI_COMM_WORLD);
  }
  for (const Type& type : types) compare<T>(type, ops.front(), short_length, MPI_COMM_WORLD);
}

#define NETSUM_NAMED(handle) \
  { handle, #handle }

void compare_operations() {
  const std::vector<Op> arithmetic = {NETSUM_NAMED(MPI_SUM), NETSUM_NAMED(MPI_PROD), NETSUM_NAMED(MPI_MIN),
                                      NETSUM_NAMED(MPI_MAX)};
  const std::vector<Op> bits = {NETSUM_NAMED(MPI_BAND), NETSUM_NAMED(MPI_BOR), NETSUM_NAMED(MPI_BXOR)};
  const std::vector<Op> logical = {NETSUM_NAMED(MPI_LAND), NETSUM_NAMED(MPI_LOR), NETSUM_NAMED(MPI_LXOR)};
  std::vector<Op> of_integers = arithmetic;
  of_integers.insert(of_integers.end(), bits.begin(), bits.end());
  of_integers.insert(of_integers.end(), logical.begin(), logical.end());
  const std::vector<Op> sum = {NETSUM_NAMED(MPI_SUM)};

  MPI_Datatype twice_int = MPI_DATATYPE_NULL, dup_int = MPI_DATATYPE_NULL;
  MPI_Type_dup(MPI_INT, &dup_int);
  MPI_Type_dup(dup_int, &twice_int);
  MPI_Type_free(&dup_int);

  compare_all<std::int8_t>({NETSUM_NAMED(MPI_INT8_T), NETSUM_NAMED(MPI_SIGNED_CHAR), NETSUM_NAMED(MPI_INTEGER1)},
                           of_integers);
  compare_all<std::uint8_t>({NETSUM_NAMED(MPI_UINT8_T), NETSUM_NAMED(MPI_UNSIGNED_CHAR)}, of_integers);
  compare_all<std::uint8_t>({NETSUM_NAMED(MPI_BYTE)}, bits);
  compare_all<std::int16_t>({NETSUM_NAMED(MPI_INT16_T), NETSUM_NAMED(MPI_SHORT), NETSUM_NAMED(MPI_INTEGER2)}, of_integers);
  compare_all<std::uint16_t>({NETSUM_NAMED(MPI_UINT16_T), NETSUM_NAMED(MPI_UNSIGNED_SHORT)}, of_integers);
  compare_all<std::int32_t>({NETSUM_NAMED(MPI_INT32_T),
                             NETSUM_NAMED(MPI_INT),
                             NETSUM_NAMED(MPI_INTEGER),
                             NETSUM_NAMED(MPI_INTEGER4),
                             {twice_int, "a duplicate of a duplicate of MPI_INT", MPI_INT}},
                            of_integers);
  compare_all<std::uint32_t>({NETSUM_NAMED(MPI_UINT32_T), NETSUM_NAMED(MPI_UNSIGNED)}, of_integers);
  compare_all<std::int64_t>(
      {NETSUM_NAMED(MPI_INT64_T), NETSUM_NAMED(MPI_LONG), NETSUM_NAMED(MPI_LONG_LONG), NETSUM_NAMED(MPI_INTEGER8),
       NETSUM_NAMED(MPI_AINT), NETSUM_NAMED(MPI_OFFSET), NETSUM_NAMED(MPI_COUNT)},
      of_integers);
  compare_all<std::uint64_t>(
      {NETSUM_NAMED(MPI_UINT64_T), NETSUM_NAMED(MPI_UNSIGNED_LONG), NETSUM_NAMED(MPI_UNSIGNED_LONG_LONG)}, of_integers);
  compare_all<float>({NETSUM_NAMED(MPI_FLOAT), NETSUM_NAMED(MPI_REAL), NETSUM_NAMED(MPI_REAL4)}, arithmetic);
  compare_all<double>({NETSUM_NAMED(MPI_DOUBLE), NETSUM_NAMED(MPI_DOUBLE_PRECISION), NETSUM_NAMED(MPI_REAL8)}, arithmetic);
  compare_all<long double>({NETSUM_NAMED(MPI_LONG_DOUBLE)}, sum);
  compare_all<bool>({NETSUM_NAMED(MPI_C_BOOL), NETSUM_NAMED(MPI_CXX_BOOL)}, logical);
  MPI_Type_free(&twice_int);
}

// Complex numbers are pairs: compared as such.
template <class T>
void compare_complex(const Type& type) {
  for (const std::size_t count : lengths) {
    const auto made = values<T>(2 * count, rank_of(MPI_COMM_WORLD), false);
    std::vector<T> expected(2 * count), got(2 * count);
    PMPI_Allreduce(made.data(), expected.data(), static_cast<int>(count), type.datatype, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(made.data(), got.data(), static_cast<int>(count), type.datatype, MPI_SUM, MPI_COMM_WORLD);
    check(same(expected.data(), got.data(), 2 * count), named<T>("MPI_Allreduce", type, NETSUM_NAMED(MPI_SUM), count));
  }
}

template <class T>
void compare_unsigned(const Type& type) {
  const T large = static_cast<T>(std::numeric_limits<T>::max() - 3), own = rank_of(MPI_COMM_WORLD) == 0 ? 5 : large;
  T least = 0, greatest = 0;
  MPI_Allreduce(&own, &least, 1, type.datatype, MPI_MIN, MPI_COMM_WORLD);
  MPI_Allreduce(&own, &greatest, 1, type.datatype, MPI_MAX, MPI_COMM_WORLD);
  check(least == 5 && greatest == large, std::string("MPI_MIN and MPI_MAX of ") + type.name);
}

struct Located {
  double value;
  int where;
};

void add_squares(void* in, void* inout, int* length, MPI_Datatype*) {
  for (int i = 0; i < *length; ++i) static_cast<int*>(inout)[i] += static_cast<int*>(in)[i] * static_cast<int*>(in)[i];
}

// What netsum does not reduce goes to MPI, and comes back right.
void compare_others() {
  compare_complex<float>(NETSUM_NAMED(MPI_C_FLOAT_COMPLEX));
  compare_complex<double>(NETSUM_NAMED(MPI_C_DOUBLE_COMPLEX));
  compare_complex<float>(NETSUM_NAMED(MPI_COMPLEX));
  compare_complex<double>(NETSUM_NAMED(MPI_DOUBLE_COMPLEX));
  compare_unsigned<std::uint8_t>(NETSUM_NAMED(MPI_UINT8_T));
  compare_unsigned<std::uint16_t>(NETSUM_NAMED(MPI_UINT16_T));
  compare_unsigned<std::uint32_t>(NETSUM_NAMED(MPI_UINT32_T));
  compare_unsigned<std::uint64_t>(NETSUM_NAMED(MPI_UINT64_T));
  const int rank = rank_of(MPI_COMM_WORLD), ranks = size_of(MPI_COMM_WORLD);
  const Located own{static_cast<double>((rank * 7 + 3) % ranks), rank};
  Located least{}, expected{};
  MPI_Allreduce(&own, &least, 1, MPI_DOUBLE_INT, MPI_MINLOC, MPI_COMM_WORLD);
  PMPI_Allreduce(&own, &expected, 1, MPI_DOUBLE_INT, MPI_MINLOC, MPI_COMM_WORLD);
  check(least.value == expected.value && least.where == expected.where, "MPI_MINLOC");
  MPI_Op squares = MPI_OP_NULL;
  MPI_Op_create(&add_squares, 1, &squares);
  int by_mpi = 0, got = 0;
  PMPI_Allreduce(&rank, &by_mpi, 1, MPI_INT, squares, MPI_COMM_WORLD);
  MPI_Allreduce(&rank, &got, 1, MPI_INT, squares, MPI_COMM_WORLD);
  check(got == by_mpi, "a user's operation");
  MPI_Op_free(&squares);
}

// Rank 0's buffers are not aligned, and the others' are.
void compare_unaligned() {
  const int rank = rank_of(MPI_COMM_WORLD), ranks = size_of(MPI_COMM_WORLD), part = 1000;
  const std::size_t count = static_cast<std::size_t>(part) * static_cast<std::size_t>(ranks), shift = rank == 0 ? 1 : 0;
  std::vector<std::byte> input(count * sizeof(int) + 1), output(input.size());
  std::vector<int> own(count), got(count);
  for (std::size_t i = 0; i < count; ++i) own[i] = static_cast<int>(i) + rank;
  std::memcpy(input.data() + shift, own.data(), count * sizeof(int));
  const auto is_sum = [&](std::size_t length, std::size_t from) {
    std::memcpy(got.data(), output.data() + shift, length * sizeof(int));
    bool right = true;
    for (std::size_t i = 0; i < length; ++i) {
      right &= got[i] == static_cast<int>(from + i) * ranks + ranks * (ranks - 1) / 2;
    }
    return right;
  };
  MPI_Allreduce(input.data() + shift, output.data() + shift, part * ranks, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  check(is_sum(count, 0), "MPI_Allreduce of one rank's unaligned buffers");
  MPI_Reduce_scatter_block(input.data() + shift, output.data() + shift, part, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  check(is_sum(part, static_cast<std::size_t>(rank * part)), "MPI_Reduce_scatter_block of one rank's unaligned buffers");
  MPI_Reduce(input.data() + shift, output.data() + shift, part * ranks, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
  check(rank != 0 || is_sum(count, 0), "MPI_Reduce of one rank's unaligned buffers");
}

// The ranks' datatypes differ, and their signatures do not.
void compare_moves() {
  compare_unaligned();
  const int rank = rank_of(MPI_COMM_WORLD), ranks = size_of(MPI_COMM_WORLD);
  for (const std::size_t count : lengths) {
    const int n = static_cast<int>(count);
    for (int root = 0; root < ranks; root += 3) {
      std::vector<int> numbers(count);
      for (std::size_t i = 0; i < count; ++i) numbers[i] = rank == root ? static_cast<int>(i) * 5 + root : -1;
      std::vector<int> spread(2 * count, -1);
      MPI_Datatype every_second = MPI_DATATYPE_NULL;
      MPI_Type_vector(n, 1, 2, MPI_INT, &every_second);
      MPI_Type_commit(&every_second);
      if (rank % 2 == 0) {
        MPI_Bcast(numbers.data(), n, MPI_INT, root, MPI_COMM_WORLD);
      } else {
        for (std::size_t i = 0; i < count; ++i) spread[2 * i] = numbers[i];
        MPI_Bcast(spread.data(), 1, every_second, root, MPI_COMM_WORLD);
        for (std::size_t i = 0; i < count; ++i) {
          numbers[i] = spread[2 * i];
          check(spread[2 * i + 1] == -1, "MPI_Bcast wrote between elements");
        }
      }
      bool right = true;
      for (std::size_t i = 0; i < count; ++i) right &= numbers[i] == static_cast<int>(i) * 5 + root;
      check(right, "MPI_Bcast of " + std::to_string(count) + " from " + std::to_string(root));
      MPI_Type_free(&every_second);
    }
    for (const int root : {0, ranks - 1}) {  // with absolute addresses at the odd ranks
      std::vector<int> numbers(count, rank == root ? 7 : -1);
      MPI_Aint where = 0;
      MPI_Get_address(numbers.data(), &where);
      MPI_Datatype placed = MPI_DATATYPE_NULL;
      MPI_Type_create_hindexed(1, &n, &where, MPI_INT, &placed);
      MPI_Type_commit(&placed);
      if (rank % 2 == 0) {
        MPI_Bcast(numbers.data(), n, MPI_INT, root, MPI_COMM_WORLD);
      } else {
        MPI_Bcast(MPI_BOTTOM, 1, placed, root, MPI_COMM_WORLD);
      }
      check(numbers == std::vector<int>(count, 7), "MPI_Bcast at MPI_BOTTOM");
      MPI_Type_free(&placed);
    }
    std::vector<int> own(count, rank), all(count * static_cast<std::size_t>(ranks)), in_place(all.size());
    MPI_Datatype run = MPI_DATATYPE_NULL;
    MPI_Type_contiguous(n, MPI_INT, &run);
    MPI_Type_commit(&run);
    if (rank % 2 == 0) {
      MPI_Allgather(own.data(), n, MPI_INT, all.data(), n, MPI_INT, MPI_COMM_WORLD);
    } else {
      MPI_Allgather(own.data(), 1, run, all.data(), 1, run, MPI_COMM_WORLD);
    }
    std::memcpy(in_place.data() + count * static_cast<std::size_t>(rank), own.data(), count * sizeof(int));
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, in_place.data(), n, MPI_INT, MPI_COMM_WORLD);
    bool right = all == in_place;
    for (std::size_t i = 0; i < all.size(); ++i) right &= all[i] == static_cast<int>(i / count);
    check(right, "MPI_Allgather of " + std::to_string(count));
    MPI_Type_free(&run);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

void use_communicators() {
  const int rank = rank_of(MPI_COMM_WORLD);
  for (int turn = 0; turn < 68; ++turn) {  // more than may be joined at a time, one after the other
    MPI_Comm half = MPI_COMM_NULL, copy = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, turn % 2 == 0 ? 0 : rank % 2, turn % 4 == 0 ? rank : -rank, &half);
    check_sum(half, "a split communicator");
    if (turn % 10 == 0) {
      MPI_Comm_dup(half, &copy);
      check_sum(copy, "its duplicate");
      check_sum(half, "the original");
      MPI_Comm_free(&copy);
    }
    MPI_Comm_free(&half);
  }
  std::vector<MPI_Comm> many(34, MPI_COMM_NULL);  // more than may be joined at a time
  for (MPI_Comm& comm : many) {
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    check_sum(comm, "one of many");
  }
  for (MPI_Comm& comm : many) MPI_Comm_free(&comm);
  check_sum(MPI_COMM_SELF, "MPI_COMM_SELF");

  MPI_Comm local = MPI_COMM_NULL, between = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &local);
  MPI_Intercomm_create(local, 0, MPI_COMM_WORLD, 1 - rank % 2, 1, &between);
  int sum = 0, others = 0;
  MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, between);
  for (int other = 1 - rank % 2; other < size_of(MPI_COMM_WORLD); other += 2) others += other;
  check(sum == others, "an intercommunicator");
  MPI_Comm_free(&between);
  MPI_Comm_free(&local);
}

// Each thread has a communicator; all of them call at once.
void use_threads() {
  if (!may_use_threads()) return;
  std::vector<MPI_Comm> comms(4, MPI_COMM_NULL);
  for (MPI_Comm& comm : comms) MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < comms.size(); ++i) {
    threads.emplace_back([&, i] {
      const MPI_Comm comm = comms[i];
      for (int turn = 0; turn < 50; ++turn) check_sum(comm, "a thread's sum", turn % 25 == 0 ? 30'000 : 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (MPI_Comm& comm : comms) MPI_Comm_free(&comm);
}

// Rank 0 is in MPI_Allreduce while rank 1 still wants what rank 0 sends: more than travels without rank 0's help.
void wait_for_progress() {
  const int rank = rank_of(MPI_COMM_WORLD);
  check_sum(MPI_COMM_WORLD, "the first sum");
  for (const std::size_t count : {std::size_t{1}, std::size_t{100'000}}) {
    std::vector<double> message(1 << 21, rank);
    MPI_Request request = MPI_REQUEST_NULL;
    if (rank == 0) MPI_Isend(message.data(), static_cast<int>(message.size()), MPI_DOUBLE, 1, 0, MPI_COMM_WORLD, &request);
    if (rank == 1) {
      MPI_Recv(message.data(), static_cast<int>(message.size()), MPI_DOUBLE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      check(message.back() == 0, "the message");
    }
    check_sum(MPI_COMM_WORLD, "a sum that waits for a message", count);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
}

// Until the switch is gone: then each call is an error. An argument that is wrong before that is one for itself alone.
void sum_until_error() {
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  const int one = 1;
  int sum = 0, code = MPI_SUCCESS;
  check_sum(MPI_COMM_WORLD, "the first sum");
  check(MPI_Bcast(&sum, 1, MPI_INT, 6, MPI_COMM_WORLD) != MPI_SUCCESS, "a broadcast from rank 6 of 2 succeeded");
  for (long turn = 0; code == MPI_SUCCESS; ++turn) {
    code = MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (turn == 0 && rank_of(MPI_COMM_WORLD) == 0) tell("summed");
  }
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  check(std::string(text).find("netsum: aggregator_lost: ") != std::string::npos, std::string("the error's text: ") + text);
  check(MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD) != MPI_SUCCESS, "a call after the error succeeded");
  tell("error");
}

constexpr Case cases[] = {{"operations", &compare_operations}, {"others", &compare_others},
                          {"moves", &compare_moves},           {"communicators", &use_communicators},
                          {"threads", &use_threads},           {"progress", &wait_for_progress},
                          {"until-error", &sum_until_error}};

}  // namespace

int main(int argc, char** argv) {
  return run_case(cases, argc, argv);
}
