// Times MPI_Allreduce of float32 tensors, and checks every element of every sum. Rank 0 prints one JSON object per tensor
// length: the times of the slowest rank, or, back to back, the mean of the ranks' (see docs/benchmarks.md).
//
//   mpirun -np N all_reduce_mpi ITERATIONS WARMUP WARMUP_ELEMENTS SLICE_BYTES BACK_TO_BACK ELEMENTS...
//
// SLICE_BYTES > 0 reduces the tensor in slices of that size, which stay in the cache (0: one call for all of it).
// BACK_TO_BACK 1: no barriers between the timed all-reduces. Warm-up tensors have at most WARMUP_ELEMENTS.
#include <mpi.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <string_view>
#include <vector>

namespace {

constexpr std::size_t pattern = 1000;  // inputs are small integers, so that float32 sums are exact in any order

struct Plan {
  std::size_t iterations = 0, warmup = 0, warmup_elements = 0, slice = 0;
  bool back_to_back = false;
};

void all_reduce(std::vector<float>& tensor, std::size_t slice) {
  if (slice == 0) slice = std::max<std::size_t>(tensor.size(), 1);
  for (std::size_t begin = 0; begin < tensor.size(); begin += slice) {
    const auto count = static_cast<int>(std::min(slice, tensor.size() - begin));
    MPI_Allreduce(MPI_IN_PLACE, tensor.data() + begin, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
}

double time_all_reduce(std::vector<float>& tensor, std::size_t slice) {
  const double begin = MPI_Wtime();
  all_reduce(tensor, slice);
  return MPI_Wtime() - begin;
}

void fill(std::vector<float>& tensor, int rank) {
  for (std::size_t j = 0; j < tensor.size(); ++j) tensor[j] = static_cast<float>(j % pattern) + static_cast<float>(rank);
}

unsigned long long count_wrong(const std::vector<float>& tensor, int workers) {
  const auto ranks = static_cast<float>(workers);
  const float of_ranks = ranks * (ranks - 1) / 2;
  unsigned long long wrong = 0;
  for (std::size_t j = 0; j < tensor.size(); ++j) wrong += tensor[j] != static_cast<float>(j % pattern) * ranks + of_ranks;
  return wrong;
}

void measure(std::size_t elements, const Plan& plan) {
  int rank = 0, workers = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &workers);
  std::vector<double> seconds(plan.iterations);
  unsigned long long wrong = 0;
  std::vector<float> first(std::min(elements, plan.warmup_elements));
  for (std::size_t i = 0; i < plan.warmup; ++i) {
    fill(first, rank);
    all_reduce(first, plan.slice);
  }
  std::vector<std::vector<float>> tensors(plan.back_to_back ? plan.iterations : 1, std::vector<float>(elements));
  for (auto& tensor : tensors) fill(tensor, rank);
  for (std::size_t i = 0; i < plan.iterations; ++i) {
    std::vector<float>& tensor = tensors[plan.back_to_back ? i : 0];
    if (!plan.back_to_back && i > 0) fill(tensor, rank);
    if (!plan.back_to_back || i == 0) MPI_Barrier(MPI_COMM_WORLD);
    seconds[i] = time_all_reduce(tensor, plan.slice);
    if (plan.back_to_back) continue;
    MPI_Barrier(MPI_COMM_WORLD);  // nobody checks on a processor that others still need
    wrong += count_wrong(tensor, workers);
  }
  for (const auto& tensor : tensors) wrong += plan.back_to_back ? count_wrong(tensor, workers) : 0;
  MPI_Allreduce(MPI_IN_PLACE, seconds.data(), static_cast<int>(plan.iterations), MPI_DOUBLE,
                plan.back_to_back ? MPI_SUM : MPI_MAX, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
  if (rank != 0) return;
  std::printf("{\"workers\": %d, \"elements\": %zu, \"wrong\": %llu, \"bytes_per_worker\": null, \"tat_seconds\": [",
              workers, elements, wrong);
  for (std::size_t i = 0; i < plan.iterations; ++i) {
    std::printf("%s%.9f", i == 0 ? "" : ", ", plan.back_to_back ? seconds[i] / workers : seconds[i]);
  }
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
  if (numbers.size() < 6 || numbers[0] == 0) {
    std::fprintf(stderr, "usage: all_reduce_mpi ITERATIONS WARMUP WARMUP_ELEMENTS SLICE_BYTES BACK_TO_BACK ELEMENTS...\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
    return 2;
  }
  const Plan plan{numbers[0], numbers[1], numbers[2], numbers[3] / 4, numbers[4] != 0};
  for (std::size_t i = 5; i < numbers.size(); ++i) measure(numbers[i], plan);
  MPI_Finalize();
  return 0;
}
