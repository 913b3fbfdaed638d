// A part of a program that is loaded, sums by netsum, and is unloaded again: made of netsum's archives, as a plugin would
// be.
#include <cstdio>
#include <exception>
#include <vector>

#include "netsum/communicator.h"

// As often as it is called. 0: all sums were right.
extern "C" int embedded_sum(const char* address, const char* token) {
  try {
    netsum::Options options;
    options.aggregators = {address};
    options.token = token;
    options.job = "part";
    options.world_size = 1;
    options.connect_deadline = std::chrono::seconds(10);
    auto comm = netsum::Communicator::connect(options);
    auto again = comm.dup();
    for (netsum::Communicator* const each : {&comm, &again}) {
      std::vector<float> values(10'000, 1);
      each->all_reduce(std::span<float>(values), netsum::ReduceOp::sum);
      if (values != std::vector<float>(10'000, 1)) return 1;
    }
    options.job = "part without a switch";
    options.aggregators = {"127.0.0.1:1"};
    options.connect_deadline = std::chrono::milliseconds(200);
    try {
      static_cast<void>(netsum::Communicator::connect(options));
      return 2;
    } catch (const netsum::Error& error) {  // thrown in an archive, caught here
      return error.code() == netsum::ErrorCode::unreachable ? 0 : 3;
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 4;
  }
}
