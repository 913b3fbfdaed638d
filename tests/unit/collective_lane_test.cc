// What carries a rank's lane: each data path shows its transport until the worker takes it.
#include "collective/lane.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "transport/addresses/addresses.h"

namespace netsum::collective {
namespace {

SocketPath socket_to(const Endpoint& peer) {
  transport::UdpOptions options;
  options.bind = transport::resolve("127.0.0.1:0");
  options.peer = peer;
  return SocketPath(options);
}

// A device that does nothing.
class IdleRing final : public transport::VerbsRing {
 public:
  const transport::VerbsMember& own() const override { return own_; }
  std::span<std::byte> send_memory() override { return {}; }
  std::span<std::byte> receive_memory() override { return {}; }
  void connect(const transport::VerbsMember&, const transport::VerbsMember&) override {}
  bool post(std::span<const std::byte>, std::uint64_t, std::uint32_t) override { return false; }
  transport::VerbsEvents take_events() override { return {}; }
  std::string failure() const override { return {}; }
  const std::string& trouble() const override { return trouble_; }
  Duration patience() const override { return {}; }
  std::span<const RxView> receive() override { return {}; }
  Sink& sink() override { std::abort(); }
  int descriptor() const override { return -1; }
  Endpoint local() const override { return {.port = 4791}; }
  transport::Counters counters() const override { return {}; }
  std::uint64_t queued_bytes() const override { return 0; }

 private:
  transport::VerbsMember own_;
  std::string trouble_;
};

TEST(Lane, HandsItsSocketOver) {
  const Endpoint aggregator = transport::resolve("127.0.0.1:9");
  Lane lane{aggregator, socket_to(aggregator)};
  EXPECT_TRUE(lane.sends_probes());
  const Endpoint local = lane.local();
  EXPECT_NE(0, local.port);
  const transport::Transport* const own = &lane.transport();
  const auto taken = lane.take_transport();
  EXPECT_EQ(own, taken.get());  // no group is around it
  EXPECT_EQ(local, taken->local());
}

TEST(Lane, KnowsTheLinkTowardsItsAggregator) {
  const Endpoint aggregator = transport::resolve("127.0.0.1:9");
  const Lane lane{aggregator, socket_to(aggregator)};
  EXPECT_GE(lane.mtu_towards(aggregator), 1500U);  // the loopback device's
}

TEST(Lane, SendsNoProbesByADevice) {
  auto ring = std::make_unique<IdleRing>();
  const transport::Transport* const own = ring.get();
  Lane lane{{}, VerbsPath(std::move(ring))};
  EXPECT_FALSE(lane.sends_probes());
  EXPECT_EQ(4791, lane.local().port);
  EXPECT_EQ("", lane.buffer_warning());
  const auto taken = lane.take_transport();
  EXPECT_EQ(own, taken.get());
}

}  // namespace
}  // namespace netsum::collective
