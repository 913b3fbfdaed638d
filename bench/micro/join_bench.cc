// How long ranks take to join, and what their communicators then hold: all ranks are threads of this process.
//   join_bench AGGREGATOR RANKS [JOBS [NAME]]   RANKS ranks in each of JOBS jobs (1), called NAME-0, NAME-1, ... ("join")
// Prints JSON: milliseconds from the first connect() until the last rank has joined and has passed a barrier, and threads,
// descriptors and resident bytes of one communicator, on average.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "netsum/communicator.h"

namespace {

std::size_t entries(const char* directory) {
  const std::filesystem::directory_iterator all(directory);
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

struct Held {
  double threads = 0, descriptors = 0, bytes = 0;

  static Held now() {
    return {static_cast<double>(entries("/proc/self/task")), static_cast<double>(entries("/proc/self/fd")),
            static_cast<double>(resident_bytes())};
  }
};

netsum::Communicator join(const char* aggregator, const std::string& job, std::uint32_t rank, std::uint32_t ranks) {
  netsum::Options options;
  options.protocol = netsum::SwitchMl{.shared_memory = netsum::SharedMemory::off};
  options.aggregators = {aggregator};
  options.job = job;
  options.rank = rank;
  options.world_size = ranks;
  options.slots = 2;  // the join is measured, not the window's memory
  options.connect_deadline = std::chrono::minutes(5);
  netsum::Communicator joined = netsum::Communicator::connect(options);
  joined.barrier();
  return joined;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "join_bench AGGREGATOR RANKS [JOBS [NAME]]\n");
    return 2;
  }
  const auto ranks = static_cast<std::uint32_t>(std::strtoul(argv[2], nullptr, 10));
  const auto jobs = argc > 3 ? static_cast<std::uint32_t>(std::strtoul(argv[3], nullptr, 10)) : 1;
  const std::string name = argc > 4 ? argv[4] : "join";
  std::vector<std::optional<netsum::Communicator>> communicators(std::size_t{ranks} * jobs);
  std::vector<std::string> errors(communicators.size());
  std::vector<std::thread> threads;
  const Held before = Held::now();
  const auto start = std::chrono::steady_clock::now();
  for (std::uint32_t i = 0; i < communicators.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        communicators[i] = join(argv[1], name + "-" + std::to_string(i / ranks), i % ranks, ranks);
      } catch (const netsum::Error& error) {
        errors[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  for (const std::string& error : errors) {
    if (error.empty()) continue;
    std::fprintf(stderr, "join_bench: %s\n", error.c_str());
    return 1;
  }
  const Held after = Held::now();
  const auto each = static_cast<double>(communicators.size());
  std::printf(
      "{\"ranks\": %u, \"jobs\": %u, \"join_ms\": %.1f, \"threads\": %.2f, \"descriptors\": %.2f, \"resident_kib\": %.0f}\n",
      ranks, jobs, took.count(), (after.threads - before.threads) / each, (after.descriptors - before.descriptors) / each,
      (after.bytes - before.bytes) / each / 1024);
  return 0;
}
