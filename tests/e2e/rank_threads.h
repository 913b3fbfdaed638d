// Ranks of one job as threads of the test, each with its own communicator over real loopback sockets.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "netsum/aggregator.h"
#include "netsum/communicator.h"

namespace netsum::testing {

using namespace std::chrono_literals;

// Above every deadline of the library that a test waits for, with sanitizers on a loaded machine.
constexpr std::chrono::seconds patience{60};

inline AggregatorOptions small_aggregator(const std::string& listen = "127.0.0.1:0", std::uint32_t threads = 1) {
  AggregatorOptions options;
  options.listen = listen;
  options.threads = options.lanes = threads;  // tests count them
  // A sanitizer on a machine with more to do may keep a heartbeat for longer than the default. Tests of death say otherwise.
  options.heartbeat_timeout_ms = 20'000;
  return options;
}

inline Options rank_options(std::vector<std::string> aggregators, std::uint32_t rank, std::uint32_t world_size) {
  Options options;
  options.aggregators = std::move(aggregators);
  options.job = "test";
  options.rank = rank;
  options.thread_set = rank;  // ranks are threads here for processes
  options.world_size = world_size;
  options.connect_deadline = patience;
  options.operation_deadline = patience;
  const bool shared = std::getenv("NETSUM_TEST_SHARED_MEMORY") != nullptr;
  options.protocol = SwitchMl{.shared_memory = shared ? SharedMemory::required : SharedMemory::off};
  return options;
}

// The Error that `body` throws.
inline std::optional<Error> attempt(const std::function<void()>& body) {
  try {
    body();
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  }
}

// Runs `body(rank)` for every rank at once. The outcome of each: no value, or the Error that it threw.
inline std::vector<std::optional<Error>> on_ranks(std::uint32_t world_size, const std::function<void(std::uint32_t)>& body) {
  std::vector<std::optional<Error>> outcomes(world_size);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] { outcomes[rank] = attempt([&] { body(rank); }); });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

inline void expect_success(const std::vector<std::optional<Error>>& outcomes) {
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_FALSE(outcomes[rank]) << "rank " << rank << ": " << outcomes[rank]->what();
  }
}

inline void expect_error(const std::optional<Error>& outcome, ErrorCode code, const std::vector<std::string>& words) {
  ASSERT_TRUE(outcome);
  const std::string text = outcome->what();
  EXPECT_EQ(outcome->code(), code) << to_string(outcome->code()) << ": " << text;
  for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << "no '" << word << "' in: " << text;
  EXPECT_EQ(text.find('\n'), std::string::npos) << text;
}

}  // namespace netsum::testing
