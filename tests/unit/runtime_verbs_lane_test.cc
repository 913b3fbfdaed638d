// A lane on RDMA hardware, with a device that is none: every message comes back as if all ranks had sent the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "runtime/verbs_lane.h"
#include "transport/rdma/verbs_ring.h"
#include "wire/netreduce.h"

namespace netsum::runtime {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

class EchoRing final : public transport::VerbsRing {
 public:
  explicit EchoRing(const netreduce::WorkerConfig& config)
      : config_(config), send_(netreduce::Worker::send_bytes(config)), receive_(netreduce::Worker::receive_bytes(config)) {}

  struct Posted {
    std::span<const std::byte> message;
    std::uint64_t offset;
    std::uint32_t immediate;
  };
  std::vector<Posted> posted;
  std::uint64_t completed = 0, echoed = 0;
  bool seals = true;
  std::string broken, hindered;

  // The next message comes back.
  void echo() {
    const Posted& next = posted[echoed];
    std::byte* const at = receive_.data() + next.offset;
    std::copy(next.message.begin(), next.message.end(), at);
    const std::span<std::byte> message(at, next.message.size());
    for (std::uint32_t packet = 0; seals && packet * std::size_t{config_.mtu} < message.size(); ++packet) {
      wire::netreduce::write_seal(message.subspan(packet * std::size_t{config_.mtu}),
                                  {config_.incarnation, config_.ring, echoed, packet, config_.world_size});
    }
    received_.push_back({static_cast<std::uint32_t>(message.size()), next.immediate});
    ++echoed;
  }

  const transport::VerbsMember& own() const override { return own_; }
  std::span<std::byte> send_memory() override { return send_; }
  std::span<std::byte> receive_memory() override { return receive_; }
  void connect(const transport::VerbsMember&, const transport::VerbsMember&) override {}
  bool post(std::span<const std::byte> message, std::uint64_t offset, std::uint32_t immediate) override {
    posted.push_back({message, offset, immediate});
    return true;
  }
  transport::VerbsEvents take_events() override {
    taken_.swap(received_);
    received_.clear();
    return {completed, taken_};
  }
  std::string failure() const override { return broken; }
  const std::string& trouble() const override { return hindered; }
  Duration patience() const override { return 30s; }
  std::span<const RxView> receive() override { return {}; }
  Sink& sink() override { std::abort(); }
  int descriptor() const override { return -1; }
  Endpoint local() const override { return {}; }
  transport::Counters counters() const override { return {}; }
  std::uint64_t queued_bytes() const override { return 0; }

 private:
  const netreduce::WorkerConfig config_;
  transport::VerbsMember own_;
  Bytes send_, receive_;
  std::vector<transport::VerbsEvents::Received> received_, taken_;
};

// A lane over verbs sends no datagrams.
class NoSink final : public Sink {
 public:
  ~NoSink() = default;
  std::span<std::byte> datagram(const Endpoint&, std::size_t) override { std::abort(); }
  void multicast(std::span<const std::byte>, std::span<const Endpoint>) override { std::abort(); }
  void flush() override {}
};

class VerbsLane : public testing::Test {
 protected:
  static netreduce::WorkerConfig config() {
    netreduce::WorkerConfig c;
    c.incarnation = 77;
    c.world_size = 3;
    c.window = 2;
    c.message_packets = 3;
    c.mtu = 256;
    return c;
  }

  void submit(std::vector<float>& tensor, std::uint64_t number) {
    stream::Operation operation;
    operation.number = number;
    operation.elements = tensor.size();
    operation.data = tensor.data();
    ASSERT_TRUE(lane_->submit(operation, {}, sink_));
  }
  void event(Time now = {}) { lane_->on_packets({}, now, sink_); }

  EchoRing ring_{config()};
  std::unique_ptr<protocol::WorkerLane> lane_ = make_worker_lane(config(), ring_);
  NoSink sink_;
};

TEST_F(VerbsLane, SendsAWindowAheadOfResultsAndOfAcknowledgements) {
  std::vector<float> tensor(1000);  // six messages of three packets
  std::iota(tensor.begin(), tensor.end(), 1.0F);
  const std::vector<float> values = tensor;
  submit(tensor, 0);
  std::uint64_t completed_operations = 0;
  while (ring_.echoed < ring_.posted.size()) {
    const std::size_t before = ring_.posted.size();
    EXPECT_LE(before - ring_.echoed, 2U);
    ring_.echo();
    event();
    EXPECT_EQ(before, ring_.posted.size()) << "not acknowledged";
    ++ring_.completed;
    event();
    completed_operations += lane_->take_completed().size();
  }
  EXPECT_EQ(1U, completed_operations);
  EXPECT_EQ(6U, ring_.posted.size());
  EXPECT_EQ(values, tensor);
  for (std::size_t i = 0; i < ring_.posted.size(); ++i) {
    EXPECT_EQ(i, ring_.posted[i].immediate);
    EXPECT_EQ(i % 4 * 3 * 256, ring_.posted[i].offset);
    EXPECT_GE(ring_.posted[i].message.data(), ring_.send_memory().data());
    EXPECT_LE(ring_.posted[i].message.data() + ring_.posted[i].message.size(),
              ring_.send_memory().data() + ring_.send_memory().size());
  }
  EXPECT_EQ(std::nullopt, lane_->failure());
  EXPECT_EQ(never, lane_->next_timeout());
}

TEST_F(VerbsLane, IsNeededUntilTheSuccessorHasEverything) {
  std::vector<float> tensor(10);
  submit(tensor, 0);
  ring_.echo();
  event();
  EXPECT_EQ(std::vector<std::uint64_t>{0}, lane_->take_completed());
  EXPECT_FALSE(lane_->drained());
  ++ring_.completed;
  event();
  EXPECT_TRUE(lane_->drained());
}

TEST_F(VerbsLane, BelievesNoMessageWithoutSeals) {
  std::vector<float> tensor(10, 1.0F);
  submit(tensor, 4);
  ring_.seals = false;
  ring_.echo();
  event();
  ASSERT_TRUE(lane_->failure().has_value());
  EXPECT_EQ(protocol::LaneFailure::Kind::unsealed, lane_->failure()->kind);
  EXPECT_EQ(4U, lane_->failure()->operation);
  EXPECT_TRUE(lane_->take_completed().empty());
}

TEST_F(VerbsLane, SaysWhatTheDeviceSays) {
  std::vector<float> tensor(10);
  submit(tensor, 3);
  EXPECT_EQ(std::nullopt, lane_->failure());
  ASSERT_TRUE(lane_->oldest_stall().has_value());
  EXPECT_EQ(3U, lane_->oldest_stall()->operation);
  ring_.broken = "the connection to the successor broke: transport retry counter exceeded";
  ASSERT_TRUE(lane_->failure().has_value());
  EXPECT_EQ(ring_.broken, lane_->failure()->what);
  EXPECT_EQ(protocol::LaneFailure::Kind::device, lane_->failure()->kind);
}

TEST_F(VerbsLane, LivesThroughTroubleThatPasses) {
  ring_.hindered = "the port is down";
  event(Time{100s});
  event(Time{120s});
  EXPECT_EQ(Time{130s}, lane_->next_timeout());
  ring_.hindered.clear();
  event(Time{129s});
  EXPECT_EQ(never, lane_->next_timeout());
  ring_.hindered = "the port is down";
  event(Time{131s});
  lane_->on_timer(Time{160s}, sink_);
  EXPECT_EQ(std::nullopt, lane_->failure());
  lane_->on_timer(Time{161s}, sink_);
  ASSERT_TRUE(lane_->failure().has_value());
  EXPECT_EQ("the port is down", lane_->failure()->what);
  EXPECT_EQ(protocol::LaneFailure::Kind::device, lane_->failure()->kind);
  EXPECT_EQ(never, lane_->next_timeout());
}

}  // namespace
}  // namespace netsum::runtime
