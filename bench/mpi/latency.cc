// Times MPI_Allreduce, with libnetsum-mpi.so preloaded, beside PMPI_Allreduce, in turns: mpirun mpi_latency int|double
// IN_FLIGHT CALLS ROUNDS BYTES... With IN_FLIGHT of 1 and more it is as many MPI_Iallreduce, which share the bytes, and one
// MPI_Waitall. Rank 0 prints a line for each length: the medians of the rounds' microseconds per call, of the slowest rank.
#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

struct Reductions {
  decltype(&MPI_Allreduce) blocking;
  decltype(&MPI_Iallreduce) nonblocking;
};

// Microseconds a call, of the slowest rank.
double time_calls(Reductions reductions, std::vector<std::byte>& tensor, std::size_t in_flight, MPI_Datatype datatype,
                  int calls) {
  int width = 0;
  PMPI_Type_size(datatype, &width);
  const std::size_t part = tensor.size() / std::max<std::size_t>(in_flight, 1);
  const int count = static_cast<int>(part / static_cast<std::size_t>(width));
  std::vector<MPI_Request> requests(in_flight);
  PMPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  for (int i = 0; i < calls; ++i) {
    if (in_flight == 0) {
      reductions.blocking(MPI_IN_PLACE, tensor.data(), count, datatype, MPI_SUM, MPI_COMM_WORLD);
      continue;
    }
    for (std::size_t k = 0; k < in_flight; ++k) {
      std::byte* const data = tensor.data() + k * static_cast<std::size_t>(count) * static_cast<std::size_t>(width);
      reductions.nonblocking(MPI_IN_PLACE, data, count, datatype, MPI_SUM, MPI_COMM_WORLD, &requests[k]);
    }
    MPI_Waitall(static_cast<int>(in_flight), requests.data(), MPI_STATUSES_IGNORE);
  }
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
  if (argc < 6) {
    std::fprintf(stderr, "usage: mpi_latency int|double IN_FLIGHT CALLS ROUNDS BYTES...\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const MPI_Datatype datatype = std::strcmp(argv[1], "double") == 0 ? MPI_DOUBLE : MPI_INT;
  const auto in_flight = static_cast<std::size_t>(std::strtoull(argv[2], nullptr, 10));
  const int calls = std::atoi(argv[3]), rounds = std::atoi(argv[4]);
  MPI_Barrier(MPI_COMM_WORLD);  // joins: calls in the background do not
  for (int i = 5; i < argc; ++i) {
    const auto bytes = static_cast<std::size_t>(std::strtoull(argv[i], nullptr, 10));
    const int fewer = std::max(1, static_cast<int>(calls * std::min(1.0, 4096.0 / static_cast<double>(bytes))));
    std::vector<std::byte> tensor(bytes);  // zeros: sums of sums stay in range
    std::vector<double> of_mpi, of_netsum, ratios;
    for (int round = -1; round < rounds; ++round) {
      const double a = time_calls({&PMPI_Allreduce, &PMPI_Iallreduce}, tensor, in_flight, datatype, fewer);
      const double b = time_calls({&MPI_Allreduce, &MPI_Iallreduce}, tensor, in_flight, datatype, fewer);
      if (round < 0) continue;  // warms up
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
