// Times MPI_Allreduce of float32 tensors, and checks every element of every sum. Rank 0 prints one JSON object per tensor
// length: the times of the slowest rank.
//
//   mpirun -np N all_reduce_mpi ITERATIONS WARMUP SLICE_BYTES ELEMENTS...
//
// SLICE_BYTES > 0 reduces the tensor in slices of that size, which stay in the cache (0: one call for all of it).
#include <mpi.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <string_view>
#include <vector>

namespace {

constexpr std::size_t pattern = 1000;  // inputs are small integers, so that float32 sums are exact in any order

void all_reduce(std::vector<float>& tensor, std::size_t slice) {
  for (std::size_t begin = 0; begin < tensor.size(); begin += slice) {
    const auto count = static_cast<int>(std::min(slice, tensor.size() - begin));
    MPI_Allreduce(MPI_IN_PLACE, tensor.data() + begin, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
}

void measure(std::size_t elements, std::size_t slice, std::size_t iterations, std::size_t warmup) {
  int rank = 0, workers = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &workers);
  std::vector<float> tensor(elements);
  std::vector<double> seconds(iterations);
  unsigned long long wrong = 0;
  for (std::size_t i = 0; i < warmup + iterations; ++i) {
    for (std::size_t j = 0; j < elements; ++j) tensor[j] = static_cast<float>(j % pattern) + static_cast<float>(rank);
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    all_reduce(tensor, slice);
    const double end = MPI_Wtime();
    if (i >= warmup) seconds[i - warmup] = end - begin;
    const auto ranks = static_cast<float>(workers);
    const float of_ranks = ranks * (ranks - 1) / 2;
    for (std::size_t j = 0; j < elements; ++j) wrong += tensor[j] != static_cast<float>(j % pattern) * ranks + of_ranks;
  }
  MPI_Allreduce(MPI_IN_PLACE, seconds.data(), static_cast<int>(iterations), MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
  if (rank != 0) return;
  std::printf("{\"workers\": %d, \"elements\": %zu, \"wrong\": %llu, \"placement\": \"shared memory\", ", workers, elements,
              wrong);
  std::printf("\"bytes_per_worker\": null, \"tat_seconds\": [");
  for (std::size_t i = 0; i < iterations; ++i) std::printf("%s%.9f", i == 0 ? "" : ", ", seconds[i]);
  std::printf("]}\n");
  std::fflush(stdout);
}

bool parse(std::string_view text, std::size_t& value) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  std::vector<std::size_t> numbers;
  for (int i = 1; i < argc; ++i) {
    if (!parse(argv[i], numbers.emplace_back())) numbers.clear();
  }
  if (numbers.size() < 4 || numbers[0] == 0) {
    std::fprintf(stderr, "usage: all_reduce_mpi ITERATIONS WARMUP SLICE_BYTES ELEMENTS...\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  for (std::size_t i = 3; i < numbers.size(); ++i) {
    const std::size_t slice =
        numbers[2] == 0 ? std::max<std::size_t>(numbers[i], 1) : std::max<std::size_t>(numbers[2] / 4, 1);
    measure(numbers[i], slice, numbers[0], numbers[1]);
  }
  MPI_Finalize();
  return 0;
}
