// What one bit of identity costs: jobs of p4app and of netsum's SwitchML over the same network, which loses packets and lets
// some overtake others. docs/protocol-p4app.md has the table that this prints.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "support/virtual_cluster.h"
#include "support/virtual_p4app.h"

namespace netsum::testing {
namespace {

constexpr std::uint32_t workers = 4, window = 8, elements = 64;
constexpr std::size_t tensor_elements = 64 * elements;

using Tensors = std::vector<std::vector<std::int32_t>>;

// Of each rank and element another value.
Tensors drawn() {
  Tensors tensors(workers);
  for (std::uint32_t rank = 0; rank < workers; ++rank) {
    for (std::size_t i = 0; i < tensor_elements; ++i)
      tensors[rank].push_back(static_cast<std::int32_t>((i + 1) << (4 * rank)));
  }
  return tensors;
}

std::uint64_t wrong_in(const Tensors& results) {
  const Tensors inputs = drawn();
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < tensor_elements; ++i) {
    std::int32_t sum = 0;
    for (const auto& input : inputs) sum += input[i];
    for (const auto& result : results) wrong += result[i] != sum;
  }
  return wrong;
}

struct Outcome {
  std::uint64_t wrong_runs = 0, wrong_elements = 0;  // of runs that end
  std::uint64_t endless_runs = 0;                    // copies of the other set's packets make a switch wait for nobody
  std::uint64_t unnoticed_runs = 0;                  // wrong, and nothing that the switch has counted shows it
};

Outcome of_theirs(const Faults& faults, std::uint64_t runs) {
  Outcome outcome;
  for (std::uint64_t seed = 1; seed <= runs; ++seed) {
    VirtualP4app job({workers, window, elements, seed, faults});
    Tensors tensors = drawn();
    if (!job.all_reduce(tensors, DType::int32)) {
      ++outcome.endless_runs;
      continue;
    }
    const std::uint64_t wrong = wrong_in(tensors);
    outcome.wrong_runs += wrong != 0;
    outcome.wrong_elements += wrong;
    const p4app::SwitchCounters& counters = job.aggregator().counters();
    const std::uint64_t noticed = counters.added_twice + counters.added_to_another + counters.answered_by_another;
    outcome.unnoticed_runs += wrong != 0 && noticed == 0;
  }
  return outcome;
}

Outcome of_ours(const Faults& faults, std::uint64_t runs) {
  Outcome outcome;
  for (std::uint64_t seed = 1; seed <= runs; ++seed) {
    VirtualCluster job({workers, 1, window, elements, seed, faults});
    Tensors tensors = drawn();
    for (std::uint32_t rank = 0; rank < workers; ++rank) {
      stream::Operation operation;
      operation.dtype = DType::int32;
      operation.elements = tensor_elements;
      operation.data = tensors[rank].data();
      job.submit(rank, operation);
    }
    EXPECT_TRUE(job.run(1)) << seed;
    const std::uint64_t wrong = wrong_in(tensors);
    outcome.wrong_runs += wrong != 0;
    outcome.wrong_elements += wrong;
  }
  return outcome;
}

Outcome compare(const char* name, const Faults& faults, std::uint64_t runs) {
  const Outcome theirs = of_theirs(faults, runs), ours = of_ours(faults, runs);
  const auto number = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
  std::printf(
      "%s, %llu runs of %u workers and %zu elements: p4app %llu wrong elements in %llu runs, %llu runs without an end; "
      "netsum %llu wrong elements\n",
      name, number(runs), workers, tensor_elements, number(theirs.wrong_elements), number(theirs.wrong_runs),
      number(theirs.endless_runs), number(ours.wrong_elements));
  EXPECT_EQ(ours.wrong_elements, 0u);
  EXPECT_EQ(theirs.unnoticed_runs, 0u);
  return theirs;
}

Faults losses() {
  Faults faults;
  faults.loss = 0.01;
  return faults;
}

TEST(P4appReordering, LossesAloneAreHarmless) {
  const Outcome theirs = compare("1 % loss", losses(), 1000);
  EXPECT_EQ(theirs.wrong_elements + theirs.endless_runs, 0u);
}

// Retransmissions are late copies of what was not lost.
TEST(P4appReordering, LateCopiesMakeSumsWrong) {
  Faults faults = losses();
  faults.late = 0.01;
  faults.latest = std::chrono::milliseconds(40);
  EXPECT_GT(compare("1 % loss, 1 % up to 40 ms late", faults, 1000).wrong_elements, 0u);
}

TEST(P4appReordering, SoDoCopiesThatTheNetworkMakes) {
  Faults faults;
  faults.duplicate = 0.01;
  faults.most_delay = std::chrono::microseconds(100);
  EXPECT_GT(compare("1 % duplicates, 10 to 100 us", faults, 1000).wrong_elements, 0u);
}

}  // namespace
}  // namespace netsum::testing
