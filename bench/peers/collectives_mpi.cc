// Times a collective of MPI on float32 tensors, and checks every element of every result. Rank 0 prints one JSON object per
// tensor length: the times of the slowest rank, or, back to back, the mean of the ranks' (see docs/benchmarks.md).
//
//   mpirun -np N collectives_mpi COLLECTIVE ITERATIONS WARMUP WARMUP_ELEMENTS SLICE_BYTES BACK_TO_BACK ELEMENTS...
//
// COLLECTIVE: all-reduce, reduce-scatter, reduce-scatter-v (MPI_Reduce_scatter, which Open MPI has a ring for), all-gather,
// reduce or broadcast. ELEMENTS: of all parts; the root is the last rank. SLICE_BYTES > 0 all-reduces the tensor in slices
// of that size, which stay in the cache (0: one call for all of it). BACK_TO_BACK 1: no barriers between the timed calls.
// Warm-up tensors have at most WARMUP_ELEMENTS.
#include <mpi.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <string_view>
#include <vector>

namespace {

constexpr std::size_t pattern = 1000;  // inputs are small integers, so that float32 sums are exact in any order

enum class Collective { all_reduce, reduce_scatter, reduce_scatter_v, all_gather, reduce, broadcast };
constexpr std::string_view names[] = {"all-reduce", "reduce-scatter", "reduce-scatter-v",
                                      "all-gather", "reduce",         "broadcast"};

struct Plan {
  Collective collective = Collective::all_reduce;
  std::size_t iterations = 0, warmup = 0, warmup_elements = 0, slice = 0;
  bool back_to_back = false;
  int rank = 0, workers = 0;
};

// One call's tensors: `in` of all parts, or of one; `out`, where it is another.
class Call {
 public:
  Call(const Plan& plan, std::size_t elements) : plan_(plan) {
    const auto ranks = static_cast<std::size_t>(plan.workers);
    const bool scatters = plan.collective == Collective::reduce_scatter || plan.collective == Collective::reduce_scatter_v;
    const bool parts = scatters || plan.collective == Collective::all_gather;
    part_ = parts ? (elements + ranks - 1) / ranks : elements;
    counts_.assign(ranks, static_cast<int>(part_));
    in_.resize(scatters ? part_ * ranks : part_);
    if (parts) out_.resize(plan.collective == Collective::all_gather ? part_ * ranks : part_);
  }

  void fill() {
    for (std::size_t j = 0; j < in_.size(); ++j) in_[j] = given(j, plan_.rank);
  }

  void run() {
    const int root = plan_.workers - 1, count = static_cast<int>(part_);
    switch (plan_.collective) {
      case Collective::all_reduce: {
        const std::size_t slice = plan_.slice == 0 ? std::max<std::size_t>(in_.size(), 1) : plan_.slice;
        for (std::size_t begin = 0; begin < in_.size(); begin += slice) {
          MPI_Allreduce(MPI_IN_PLACE, in_.data() + begin, static_cast<int>(std::min(slice, in_.size() - begin)), MPI_FLOAT,
                        MPI_SUM, MPI_COMM_WORLD);
        }
        return;
      }
      case Collective::reduce_scatter:
        MPI_Reduce_scatter_block(in_.data(), out_.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        return;
      case Collective::reduce_scatter_v:
        MPI_Reduce_scatter(in_.data(), out_.data(), counts_.data(), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        return;
      case Collective::all_gather:
        MPI_Allgather(in_.data(), count, MPI_FLOAT, out_.data(), count, MPI_FLOAT, MPI_COMM_WORLD);
        return;
      case Collective::reduce:
        MPI_Reduce(plan_.rank == root ? MPI_IN_PLACE : in_.data(), in_.data(), count, MPI_FLOAT, MPI_SUM, root,
                   MPI_COMM_WORLD);
        return;
      case Collective::broadcast:
        MPI_Bcast(in_.data(), count, MPI_FLOAT, root, MPI_COMM_WORLD);
        return;
    }
  }

  [[nodiscard]] unsigned long long wrong() const {
    const int root = plan_.workers - 1;
    const std::vector<float>& result = out_.empty() ? in_ : out_;
    if (plan_.collective == Collective::reduce && plan_.rank != root) return 0;
    unsigned long long wrong = 0;
    for (std::size_t j = 0; j < result.size(); ++j) wrong += result[j] != expected(j);
    return wrong;
  }

 private:
  [[nodiscard]] static float given(std::size_t j, int rank) {
    return static_cast<float>(j % pattern) + static_cast<float>(rank);
  }
  [[nodiscard]] float expected(std::size_t j) const {
    if (plan_.collective == Collective::broadcast) return given(j, plan_.workers - 1);
    if (plan_.collective == Collective::all_gather) return given(j % part_, static_cast<int>(j / part_));
    if (!out_.empty()) j += part_ * static_cast<std::size_t>(plan_.rank);
    const auto ranks = static_cast<float>(plan_.workers);
    return static_cast<float>(j % pattern) * ranks + ranks * (ranks - 1) / 2;
  }

  const Plan& plan_;
  std::size_t part_ = 0;
  std::vector<int> counts_;
  std::vector<float> in_, out_;
};

void measure(std::size_t elements, const Plan& plan) {
  std::vector<double> seconds(plan.iterations);
  unsigned long long wrong = 0;
  Call first(plan, std::min(elements, plan.warmup_elements));
  for (std::size_t i = 0; i < plan.warmup; ++i) {
    first.fill();
    first.run();
  }
  std::vector<Call> calls(plan.back_to_back ? plan.iterations : 1, Call(plan, elements));
  for (Call& call : calls) call.fill();
  for (std::size_t i = 0; i < plan.iterations; ++i) {
    Call& call = calls[plan.back_to_back ? i : 0];
    if (!plan.back_to_back && i > 0) call.fill();
    if (!plan.back_to_back || i == 0) MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    call.run();
    seconds[i] = MPI_Wtime() - begin;
    if (plan.back_to_back) continue;
    MPI_Barrier(MPI_COMM_WORLD);  // nobody checks on a processor that others still need
    wrong += call.wrong();
  }
  for (const Call& call : calls) wrong += plan.back_to_back ? call.wrong() : 0;
  MPI_Allreduce(MPI_IN_PLACE, seconds.data(), static_cast<int>(plan.iterations), MPI_DOUBLE,
                plan.back_to_back ? MPI_SUM : MPI_MAX, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
  if (plan.rank != 0) return;
  std::printf("{\"workers\": %d, \"elements\": %zu, \"wrong\": %llu, \"bytes_per_worker\": null, \"tat_seconds\": [",
              plan.workers, elements, wrong);
  for (std::size_t i = 0; i < plan.iterations; ++i) {
    std::printf("%s%.9f", i == 0 ? "" : ", ", plan.back_to_back ? seconds[i] / plan.workers : seconds[i]);
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
  const auto* const named = std::find(std::begin(names), std::end(names), std::string_view(argc > 1 ? argv[1] : ""));
  std::vector<std::size_t> numbers;
  for (int i = 2; i < argc; ++i) {
    if (!parse(argv[i], numbers.emplace_back())) numbers.clear();
  }
  if (named == std::end(names) || numbers.size() < 6 || numbers[0] == 0) {
    std::fprintf(
        stderr,
        "usage: collectives_mpi COLLECTIVE ITERATIONS WARMUP WARMUP_ELEMENTS SLICE_BYTES BACK_TO_BACK ELEMENTS...\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
    return 2;
  }
  Plan plan{static_cast<Collective>(named - names), numbers[0], numbers[1], numbers[2], numbers[3] / 4, numbers[4] != 0};
  MPI_Comm_rank(MPI_COMM_WORLD, &plan.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &plan.workers);
  for (std::size_t i = 5; i < numbers.size(); ++i) measure(numbers[i], plan);
  MPI_Finalize();
  return 0;
}
