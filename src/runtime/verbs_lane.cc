#include "runtime/verbs_lane.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace netsum::runtime {
namespace {

using protocol::ChunkStall;
using protocol::LaneFailure;
using protocol::LaneTotals;
using protocol::WorkerLane;

// The worker of protocol/netreduce/worker_lane.cc, with a device in place of its host's queue pairs.
class VerbsLane final : public WorkerLane {
 public:
  VerbsLane(const netreduce::WorkerConfig& config, transport::VerbsRing& ring)
      : window_(config.window * config.message_packets),
        places_(2 * config.window),
        message_bytes_(netreduce::Worker::message_bytes(config)),
        ring_(ring),
        worker_(with_memory(config, ring)) {}

  bool submit(const stream::Operation& operation, Time, Sink&) override {
    if (!worker_.submit(operation)) return false;
    send();
    return true;
  }
  void on_packets(std::span<const RxView>, Time, Sink&) override {
    const transport::VerbsEvents events = ring_.take_events();
    acknowledged_ = events.completed;
    for (const transport::VerbsEvents::Received& message : events.received) {
      // A completion does not report where the message was written, but each has a fixed place (docs/protocol-netreduce.md).
      worker_.on_message(message.immediate % places_ * message_bytes_, message.bytes, message.immediate);
    }
    send();
  }
  void on_timer(Time, Sink&) override {}
  [[nodiscard]] Time next_timeout() const override { return never; }
  [[nodiscard]] std::vector<std::uint64_t> take_completed() override { return worker_.take_completed(); }
  [[nodiscard]] bool idle() const override { return worker_.idle(); }
  [[nodiscard]] bool answers_when_idle() const override { return true; }
  [[nodiscard]] bool drained() const override { return acknowledged_ == worker_.messages_sent(); }

  [[nodiscard]] std::optional<LaneFailure> failure() const override {
    const auto& failure = worker_.failure();
    const std::string what = failure ? netreduce::to_string(*failure) : ring_.failure();
    if (what.empty()) return std::nullopt;
    const auto stall = worker_.oldest_stall();
    return LaneFailure{LaneFailure::Kind::unsealed, stall ? stall->operation : 0, 0, 0, what};
  }
  [[nodiscard]] std::optional<ChunkStall> oldest_stall() const override {
    const auto stall = worker_.oldest_stall();
    if (!stall) return std::nullopt;
    return ChunkStall{stall->operation, stall->chunk, {}, {}};
  }
  [[nodiscard]] LaneTotals totals() const override { return {0, window_}; }  // a device does not report its retransmissions

  [[nodiscard]] std::vector<CounterValue> counters() const override { return {}; }
  [[nodiscard]] std::uint64_t received() const override { return 0; }

 private:
  class Posting final : public netreduce::MessageSink {
   public:
    explicit Posting(VerbsLane& lane) : lane_(lane) {}
    ~Posting() = default;
    bool post(std::span<const std::byte> message, std::uint64_t offset, std::uint32_t immediate) override {
      return lane_.ring_.post(message, offset, immediate);
    }
    [[nodiscard]] std::uint64_t acknowledged() const override { return lane_.acknowledged_; }

   private:
    VerbsLane& lane_;
  };

  static netreduce::WorkerConfig with_memory(netreduce::WorkerConfig config, transport::VerbsRing& ring) {
    config.send_memory = ring.send_memory();
    config.receive_memory = ring.receive_memory();
    return config;
  }
  void send() {
    Posting posting(*this);
    worker_.send(posting);
  }

  const std::uint32_t window_, places_;
  const std::uint64_t message_bytes_;
  transport::VerbsRing& ring_;
  std::uint64_t acknowledged_ = 0;
  netreduce::Worker worker_;
};

}  // namespace

std::unique_ptr<WorkerLane> make_worker_lane(const netreduce::WorkerConfig& config, transport::VerbsRing& ring) {
  return std::make_unique<VerbsLane>(config, ring);
}

}  // namespace netsum::runtime
