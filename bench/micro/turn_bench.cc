// How long a small sum takes beside a large one. Both ranks are threads of this process.
//   turn_bench AGGREGATOR [SMALL_BYTES [LARGE_BYTES [ROUNDS]]]   (1024, 40000000, 15)
// Prints JSON: medians in microseconds of rank 0's small sums: alone; behind the large one of the same communicator; on a
// dup() with the same I/O threads; on a communicator with threads of its own. The rounds of the four are interleaved.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "netsum/communicator.h"

namespace {

constexpr std::array ways = {"alone", "same_communicator", "dup", "own_threads"};

struct Sizes {
  std::size_t small = 1024, large = 40'000'000, rounds = 15;
};

netsum::Options options_of(const char* aggregator, const std::string& job, std::uint32_t rank, std::uint32_t thread_set) {
  netsum::Options options;
  options.protocol = netsum::SwitchMl{.shared_memory = netsum::SharedMemory::off};
  options.aggregators = {aggregator};
  options.job = job;
  options.rank = rank;
  options.world_size = 2;
  options.thread_set = thread_set;
  return options;
}

// Microseconds of each round, by way.
std::array<std::vector<double>, ways.size()> measure(const char* aggregator, std::uint32_t rank, const Sizes& sizes) {
  auto whole = netsum::Communicator::connect(options_of(aggregator, "turns", rank, rank));
  auto dup = whole.dup();
  auto apart = netsum::Communicator::connect(options_of(aggregator, "turns apart", rank, 2 + rank));
  const std::array<netsum::Communicator*, ways.size()> of_way = {&whole, &whole, &dup, &apart};
  std::vector<float> large(sizes.large / sizeof(float)), small(sizes.small / sizeof(float));
  std::array<std::vector<double>, ways.size()> took;
  for (std::size_t round = 0; round < sizes.rounds; ++round) {
    for (std::size_t way = 0; way < ways.size(); ++way) {
      for (netsum::Communicator* each : {&whole, &dup, &apart}) each->barrier();
      std::optional<netsum::Work> beside;
      if (way != 0) beside.emplace(whole.all_reduce_async(large, netsum::ReduceOp::sum));
      const auto start = std::chrono::steady_clock::now();
      of_way[way]->all_reduce(small, netsum::ReduceOp::sum);
      const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
      took[way].push_back(time.count());
      if (beside) beside->wait();
    }
  }
  return took;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "turn_bench AGGREGATOR [SMALL_BYTES [LARGE_BYTES [ROUNDS]]]\n");
    return 2;
  }
  Sizes sizes;
  if (argc > 2) sizes.small = std::strtoul(argv[2], nullptr, 10);
  if (argc > 3) sizes.large = std::strtoul(argv[3], nullptr, 10);
  if (argc > 4) sizes.rounds = std::max(1UL, std::strtoul(argv[4], nullptr, 10));
  auto other = std::async(std::launch::async, [&] { return measure(argv[1], 1, sizes); });
  try {
    const auto took = measure(argv[1], 0, sizes);
    other.get();
    const char* separator = "{";
    for (std::size_t way = 0; way < ways.size(); ++way) {
      std::printf("%s\"%s_us\": %.0f", separator, ways[way], median(took[way]));
      separator = ", ";
    }
    std::puts("}");
  } catch (const netsum::Error& error) {
    std::fprintf(stderr, "turn_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
