#include "runtime/worker_lane.h"

namespace netsum::runtime {
namespace {

std::uint32_t window_of(const switchml::Worker&, const switchml::WorkerConfig& config) {
  return config.slots;
}
std::uint32_t window_of(const atp::Worker& worker, const atp::WorkerConfig&) {
  return worker.congestion_window();
}

template <class Worker, class Config>
class Lane final : public WorkerLane {
 public:
  explicit Lane(const Config& config) : config_(config), worker_(config) {}

  bool submit(const stream::Operation& operation, Time now, Sink& sink) override {
    return worker_.submit(operation, now, sink);
  }
  void on_packets(std::span<const RxView> packets, Time now, Sink& sink) override { worker_.on_packets(packets, now, sink); }
  void on_timer(Time now, Sink& sink) override { worker_.on_timer(now, sink); }
  [[nodiscard]] Time next_timeout() const override { return worker_.next_timeout(); }
  [[nodiscard]] std::vector<std::uint64_t> take_completed() override { return worker_.take_completed(); }

  [[nodiscard]] std::optional<LaneFailure> failure() const override {
    const auto& failure = worker_.failure();
    if (!failure) return std::nullopt;
    const bool mismatch = failure->kind == std::remove_cvref_t<decltype(*failure)>::Kind::mismatch;
    return LaneFailure{mismatch ? LaneFailure::Kind::mismatch : LaneFailure::Kind::unknown_job,
                       failure->operation,
                       failure->first_rank,
                       failure->second_rank,
                       {}};
  }

  [[nodiscard]] std::optional<ChunkStall> oldest_stall() const override {
    const auto stall = worker_.oldest_stall();
    if (!stall) return std::nullopt;
    ChunkStall out{stall->operation, stall->chunk, {}, stall->told};
    stall->missing.for_each([&](std::uint32_t rank) { out.missing.insert(rank); });
    return out;
  }

  [[nodiscard]] LaneTotals totals() const override {
    return {worker_.counters().retransmissions, window_of(worker_, config_)};
  }

 private:
  Config config_;
  Worker worker_;
};

class RoceLane final : public WorkerLane {
 public:
  explicit RoceLane(const netreduce::RoceHostConfig& config) : config_(config), host_(config) {}

  bool submit(const stream::Operation& operation, Time now, Sink& sink) override {
    return host_.submit(operation, now, sink);
  }
  void on_packets(std::span<const RxView> packets, Time now, Sink& sink) override { host_.on_packets(packets, now, sink); }
  void on_timer(Time now, Sink& sink) override { host_.on_timer(now, sink); }
  [[nodiscard]] Time next_timeout() const override { return host_.next_timeout(); }
  [[nodiscard]] std::vector<std::uint64_t> take_completed() override { return host_.take_completed(); }
  [[nodiscard]] bool answers_when_idle() const override { return true; }
  [[nodiscard]] bool drained() const override { return host_.drained(); }

  [[nodiscard]] std::optional<LaneFailure> failure() const override {
    const std::string what = host_.failure();
    if (what.empty()) return std::nullopt;
    const auto stall = host_.worker().oldest_stall();
    return LaneFailure{LaneFailure::Kind::unsealed, stall ? stall->operation : 0, 0, 0, what};
  }

  [[nodiscard]] std::optional<ChunkStall> oldest_stall() const override {
    const auto stall = host_.worker().oldest_stall();
    if (!stall) return std::nullopt;
    return ChunkStall{stall->operation, stall->chunk, {}, {}};
  }

  [[nodiscard]] LaneTotals totals() const override {
    return {host_.sending().retransmissions, config_.worker.window * config_.worker.message_packets};
  }

 private:
  netreduce::RoceHostConfig config_;
  netreduce::RoceHost host_;
};

// The same worker, with a device in place of RoceHost's queue pairs.
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

std::unique_ptr<WorkerLane> make_worker_lane(const switchml::WorkerConfig& config) {
  return std::make_unique<Lane<switchml::Worker, switchml::WorkerConfig>>(config);
}

std::unique_ptr<WorkerLane> make_worker_lane(const atp::WorkerConfig& config) {
  return std::make_unique<Lane<atp::Worker, atp::WorkerConfig>>(config);
}

std::unique_ptr<WorkerLane> make_worker_lane(const netreduce::RoceHostConfig& config) {
  return std::make_unique<RoceLane>(config);
}

std::unique_ptr<WorkerLane> make_worker_lane(const netreduce::WorkerConfig& config, transport::VerbsRing& ring) {
  return std::make_unique<VerbsLane>(config, ring);
}

}  // namespace netsum::runtime
