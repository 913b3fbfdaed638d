// What a rank that is late costs the others, with Options::straggler_deadline: four ranks of this process sum; one of them
// makes its call only once the others have their result.
//
// usage: elastic_late [ROUNDS=100 [DEADLINE_MS=100 [ELEMENTS=250000]]]
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "netsum/aggregator.h"
#include "netsum/communicator.h"
#include "netsum/parameter_server.h"

namespace {

using namespace netsum;
using Clock = std::chrono::steady_clock;

constexpr std::uint32_t ranks = 4, late = ranks - 1;

double milliseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}
std::string middle_and_most(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  char text[64];
  std::snprintf(text, sizeof text, "%6.1f ms median, %6.1f worst", times[times.size() / 2], times.back());
  return text;
}

void measure(const char* name, const Protocol& protocol, const std::string& address, std::size_t rounds, long deadline_ms,
             std::size_t elements) {
  std::vector<double> beyond(rounds), caught_up(rounds);
  std::barrier<> all(ranks);
  Clock::time_point begun, ended[ranks];
  const auto run = [&](std::uint32_t rank) {
    Options options;
    options.aggregators = {address};
    options.protocol = protocol;
    options.job = name;
    options.rank = options.thread_set = rank;
    options.world_size = ranks;
    options.recovery = std::chrono::seconds(60);
    options.survivors = 2;
    options.straggler_deadline = std::chrono::milliseconds(deadline_ms);
    Communicator comm = Communicator::connect(options);
    std::vector<std::int32_t> values(elements);
    const auto sum = [&](std::int32_t right, bool waits_for_all) {
      std::fill(values.begin(), values.end(), 1 << rank);
      comm.all_reduce(std::span<std::int32_t>(values), ReduceOp::sum, {.waits_for_all = waits_for_all});
      if (std::count(values.begin(), values.end(), right) != static_cast<std::ptrdiff_t>(elements))
        throw Error(ErrorCode::internal, "a sum is not that of the ranks that it names");
    };
    for (std::size_t round = 0; round < rounds; ++round) {
      sum(15, true);
      if (rank == 0) begun = Clock::now();
      all.arrive_and_wait();
      if (rank == late) all.arrive_and_wait();
      const auto called = Clock::now();
      sum(7, false);
      ended[rank] = Clock::now();
      if (rank != late) all.arrive_and_wait();
      if (rank == 0)
        beyond[round] = milliseconds(*std::max_element(ended, ended + late) - begun) - static_cast<double>(deadline_ms);
      if (rank == late) caught_up[round] = milliseconds(ended[rank] - called);
    }
    sum(15, true);
  };
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  std::printf("%-10s others, after the deadline: %s; late rank, from its call: %s\n", name, middle_and_most(beyond).c_str(),
              middle_and_most(caught_up).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t rounds = argc > 1 ? std::stoul(argv[1]) : 100, elements = argc > 3 ? std::stoul(argv[3]) : 250'000;
  const long deadline_ms = argc > 2 ? std::stol(argv[2]) : 100;
  AggregatorOptions options;
  options.listen = "127.0.0.1:0";
  const Aggregator aggregator(options);
  ParameterServerOptions server_options;
  server_options.listen = "127.0.0.1:0";
  const ParameterServer server(server_options);
  measure("switchml", SwitchMl{.shared_memory = SharedMemory::off}, aggregator.address(), rounds, deadline_ms, elements);
  measure("atp", Atp{}, server.address(), rounds, deadline_ms, elements);
  measure("netreduce", NetReduce{}, aggregator.address(), rounds, deadline_ms, elements);
}
