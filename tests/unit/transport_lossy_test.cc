// Injected loss: which datagrams are dropped depends on seed, stream and number alone.
#include "transport/datagram/lossy.h"

#include <cmath>
#include <cstring>
#include <set>

#include "transport/addresses/addresses.h"
#include "transport/datagram/fake.h"
#include "unit/transport_fixture.h"

namespace netsum::transport {
namespace {

struct Loss {
  double probability;
  std::uint64_t seed = 1, stream = 0;
};

struct Outcome {
  std::vector<std::uint32_t> survivors;
  Counters counters;
};

// Sends the numbers 0 ... count-1, `batch` of them between two receptions.
Outcome pass(const Loss& loss, std::uint32_t count, std::uint32_t batch = 64) {
  FakeNetwork network;
  const auto from = network.attach(resolve("10.0.0.1:0"));
  Lossy to(network.attach(resolve("10.0.0.2:0")), loss.probability, loss.seed, loss.stream);
  Outcome outcome;
  for (std::uint32_t number = 0; number < count; ++number) {
    std::memcpy(from->sink().datagram(to.local(), sizeof number).data(), &number, sizeof number);
    if (number % batch != batch - 1 && number != count - 1) continue;
    from->sink().flush();
    for (auto views = to.receive(); !views.empty(); views = to.receive()) {
      for (const RxView& view : views) std::memcpy(&outcome.survivors.emplace_back(), view.bytes.data(), sizeof number);
    }
  }
  outcome.counters = to.counters();
  return outcome;
}

TEST(Lossy, DropsAtItsRate) {
  constexpr double count = 200'000;
  for (const double p : {0.0001, 0.01, 0.1, 0.5}) {
    const Outcome outcome = pass({p}, static_cast<std::uint32_t>(count));
    const double dropped = count - static_cast<double>(outcome.survivors.size());
    EXPECT_NEAR(dropped, count * p, 5 * std::sqrt(count * p * (1 - p))) << p;
    EXPECT_EQ(static_cast<double>(outcome.counters.dropped_injected), dropped);
  }
}

TEST(Lossy, DropsNothingOrEverything) {
  EXPECT_EQ(pass({0.0}, 10'000).survivors.size(), 10'000u);
  const Outcome all = pass({1.0}, 10'000);
  EXPECT_TRUE(all.survivors.empty());
  EXPECT_EQ(all.counters.dropped_injected, 10'000u);
}

TEST(Lossy, RepeatsWhateverTheBatches) {
  const std::vector<std::uint32_t> once = pass({0.1, 7, 3}, 10'000, 64).survivors;
  EXPECT_EQ(pass({0.1, 7, 3}, 10'000, 64).survivors, once);
  EXPECT_EQ(pass({0.1, 7, 3}, 10'000, 1).survivors, once);
  EXPECT_EQ(pass({0.1, 7, 3}, 10'000, 1000).survivors, once);
}

TEST(Lossy, DiffersBySeedAndStream) {
  const std::set<std::vector<std::uint32_t>> outcomes = {
      pass({0.1, 7, 3}, 1000).survivors, pass({0.1, 8, 3}, 1000).survivors, pass({0.1, 7, 4}, 1000).survivors,
      pass({0.1, 3, 7}, 1000).survivors, pass({0.1, 0, 0}, 1000).survivors, pass({0.1, 0, 1}, 1000).survivors};
  EXPECT_EQ(outcomes.size(), 6u);
}

TEST(Lossy, GoesOnAfterABatchThatWasDroppedWhole) {
  // At 0.9 many batches of one are dropped whole; one receive() after ten flushes must still find a survivor if there is
  // one.
  FakeNetwork network;
  const auto from = network.attach(resolve("10.0.0.1:0"));
  Lossy to(network.attach(resolve("10.0.0.2:0")), 0.995, 1, 0);
  for (std::size_t i = 0; i < 10'000; ++i) write(from->sink(), to.local(), pattern(4, i));
  from->sink().flush();
  std::size_t survivors = 0;
  for (auto views = to.receive(); !views.empty(); views = to.receive()) survivors += views.size();
  EXPECT_EQ(survivors + to.counters().dropped_injected, 10'000u);
  EXPECT_GT(survivors, 0u);
}

TEST(Lossy, SendsAndNamesItselfAsWhatItWraps) {
  FakeNetwork network;
  const auto to = network.attach(resolve("10.0.0.1:0"));
  Lossy from(network.attach(resolve("10.0.0.2:5")), 1.0, 1, 0);
  EXPECT_EQ(from.local(), resolve("10.0.0.2:5"));
  write(from.sink(), to->local(), pattern(4, 1));
  from.sink().flush();
  EXPECT_EQ(collect(*to, 1).size(), 1u);
  EXPECT_EQ(from.counters().packets_sent, 1u);
}

TEST(Lossy, HandsOnWhatTheNetworkSays) {
  FakeNetwork network;
  const auto from = network.attach(resolve("10.0.0.1:0"));
  Lossy to(network.attach(resolve("10.0.0.2:0")), 0.5, 1, 0);
  network.congest(to.local());
  for (std::size_t i = 0; i < 50; ++i) write(from->sink(), to.local(), pattern(4, i));
  from->sink().flush();
  EXPECT_EQ(to.queued_bytes(), 200u);
  const auto views = to.receive();
  EXPECT_FALSE(views.empty());
  for (const RxView& view : views) EXPECT_TRUE(view.congested);
  EXPECT_EQ(to.queued_bytes(), 0u);
}

}  // namespace
}  // namespace netsum::transport
