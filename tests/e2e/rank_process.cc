// A rank for tests to kill: rank_process ADDRESS JOB RANK WORLD_SIZE. Adds up until an error ends it; says "ready" once.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "netsum/communicator.h"

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  try {
    netsum::Options options;
    options.aggregators = {argv[1]};
    options.job = argv[2];
    options.rank = static_cast<std::uint32_t>(std::stoul(argv[3]));
    options.world_size = static_cast<std::uint32_t>(std::stoul(argv[4]));
    auto comm = netsum::Communicator::connect(options);
    std::vector<float> values(10'000);
    for (bool told = false;; told = true) {
      comm.all_reduce(std::span<float>(values), netsum::ReduceOp::sum);
      if (told) continue;
      std::puts("ready");
      std::fflush(stdout);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
