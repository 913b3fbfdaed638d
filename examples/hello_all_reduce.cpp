// The smallest job: one aggregator and four ranks, here as threads of one process. On a cluster each rank is a process of
// its own, and the aggregator is `netsum switch` on a box of its own or the lowest rank's host.
//
//   hello_all_reduce            prints 10 (= 1 + 2 + 3 + 4), as every rank sees it

#include <cstdio>
#include <thread>
#include <vector>

#include "netsum/aggregator.h"
#include "netsum/communicator.h"

namespace {

constexpr std::uint32_t ranks = 4;

float run_rank(const std::string& aggregator, std::uint32_t rank) {
  netsum::Options options;
  options.aggregators = {aggregator};
  options.job = "hello";
  options.rank = rank;
  options.world_size = ranks;
  auto communicator = netsum::Communicator::connect(options);

  std::vector<float> gradients(1'000'000, static_cast<float>(rank + 1));
  communicator.all_reduce(gradients, netsum::ReduceOp::sum);
  return gradients.back();
}

}  // namespace

int main() {
  try {
    netsum::AggregatorOptions options;
    options.listen = "127.0.0.1:0";
    const netsum::Aggregator aggregator(options);
    std::vector<float> sums(ranks);
    std::vector<std::jthread> threads;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] { sums[rank] = run_rank(aggregator.address(), rank); });
    }
    threads.clear();  // joins
    bool right = true;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      std::printf("rank %u: every element is %g\n", rank, static_cast<double>(sums[rank]));
      right = right && sums[rank] == 10.0F;
    }
    return right ? 0 : 1;
  } catch (const netsum::Error& error) {
    std::fprintf(stderr, "hello_all_reduce: %s\n", error.what());
    return 1;
  }
}
