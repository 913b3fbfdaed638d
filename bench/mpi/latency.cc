// Times MPI_Allreduce, with libnetsum-mpi.so preloaded, beside PMPI_Allreduce, in turns: mpirun mpi_latency int|double CALLS
// ROUNDS BYTES... Rank 0 prints a line for each length: the medians of the rounds' microseconds per call, of the slowest
// rank.
#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

using Reduce = int (*)(const void*, void*, int, MPI_Datatype, MPI_Op, MPI_Comm);

// Microseconds a call, of the slowest rank.
double time_calls(Reduce reduce, std::vector<std::byte>& tensor, int count, MPI_Datatype datatype, int calls) {
  PMPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  for (int i = 0; i < calls; ++i) reduce(MPI_IN_PLACE, tensor.data(), count, datatype, MPI_SUM, MPI_COMM_WORLD);
  double took = (MPI_Wtime() - begin) * 1e6 / calls;
  PMPI_Allreduce(MPI_IN_PLACE, &took, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return took;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc < 5) {
    std::fprintf(stderr, "usage: mpi_latency int|double CALLS ROUNDS BYTES...\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const bool floats = std::strcmp(argv[1], "double") == 0;
  const int calls = std::atoi(argv[2]), rounds = std::atoi(argv[3]);
  for (int i = 4; i < argc; ++i) {
    const auto bytes = static_cast<std::size_t>(std::strtoull(argv[i], nullptr, 10));
    const int count = static_cast<int>(bytes / (floats ? sizeof(double) : sizeof(int)));
    const int fewer = std::max(1, static_cast<int>(calls * std::min(1.0, 4096.0 / static_cast<double>(bytes))));
    std::vector<std::byte> tensor(bytes);  // zeros: sums of sums stay in range
    std::vector<double> of_mpi, of_netsum, ratios;
    for (int round = -1; round < rounds; ++round) {
      const double a = time_calls(&PMPI_Allreduce, tensor, count, floats ? MPI_DOUBLE : MPI_INT, fewer);
      const double b = time_calls(&MPI_Allreduce, tensor, count, floats ? MPI_DOUBLE : MPI_INT, fewer);
      if (round < 0) continue;  // joins, and warms up
      of_mpi.push_back(a);
      of_netsum.push_back(b);
      ratios.push_back(a / b);
    }
    if (rank != 0) continue;
    std::printf("%10zu %12.1f %12.1f %8.2f\n", bytes, median(of_mpi), median(of_netsum), median(ratios));
    std::fflush(stdout);
  }
  MPI_Finalize();
  return 0;
}
