#include "runtime/verbs_lane.h"

#include <cstdint>
#include <span>
#include <string>
#include <utility>
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
  void on_packets(std::span<const RxView>, Time now, Sink&) override {
    const transport::VerbsEvents events = ring_.take_events();
    acknowledged_ = events.completed;
    for (const transport::VerbsEvents::Received& message : events.received) {
      // A completion does not report where the message was written, but each has a fixed place (docs/protocol-netreduce.md).
      worker_.on_message(message.immediate % places_ * message_bytes_, message.bytes, message.immediate);
    }
    if (ring_.trouble().empty()) {
      give_up_ = never;
    } else if (give_up_ == never && trouble_.empty()) {
      give_up_ = now + ring_.patience();
    }
    send();
  }
  void on_timer(Time now, Sink&) override {
    if (now < give_up_) return;
    give_up_ = never;
    trouble_ = ring_.trouble();
  }
  [[nodiscard]] Time next_timeout() const override { return give_up_; }
  [[nodiscard]] std::vector<std::uint64_t> take_completed() override { return worker_.take_completed(); }
  [[nodiscard]] bool idle() const override { return worker_.idle(); }
  [[nodiscard]] bool answers_when_idle() const override { return true; }
  [[nodiscard]] bool drained() const override { return acknowledged_ == worker_.messages_sent(); }

  [[nodiscard]] std::optional<LaneFailure> failure() const override {
    const auto stall = worker_.oldest_stall();
    const std::uint64_t operation = stall ? stall->operation : 0;
    if (const auto& failure = worker_.failure()) {
      return LaneFailure{LaneFailure::Kind::unsealed, operation, 0, 0, netreduce::to_string(*failure)};
    }
    std::string what = trouble_.empty() ? ring_.failure() : trouble_;
    if (what.empty()) return std::nullopt;
    return LaneFailure{LaneFailure::Kind::device, operation, 0, 0, std::move(what)};
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
  Time give_up_ = never;  // when the device's trouble has lasted too long
  std::string trouble_;   // that did
  netreduce::Worker worker_;
};

}  // namespace

std::unique_ptr<WorkerLane> make_worker_lane(const netreduce::WorkerConfig& config, transport::VerbsRing& ring) {
  return std::make_unique<VerbsLane>(config, ring);
}

}  // namespace netsum::runtime
