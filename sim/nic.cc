#include "sim/nic.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "base/crc32c.h"
#include "base/virtio_net.h"
#include "sim/faults.h"

namespace netsum::sim {
namespace {

constexpr double foreign_per_turn = 0.03;

class PacketsOut final : public Sink {
 public:
  ~PacketsOut() = default;
  std::span<std::byte> datagram(const Endpoint&, std::size_t bytes) override { return packets.emplace_back(bytes); }
  void multicast(std::span<const std::byte>, std::span<const Endpoint>) override {
    throw Violation("a rank of a ring sends to several");
  }
  void flush() override {}

  std::vector<std::vector<std::byte>> packets;
};

class Nic final : public protocol::WorkerLane {
 public:
  Nic(std::unique_ptr<protocol::WorkerLane> lane, const netreduce::RoceHostConfig& config, ForeignFrames& foreign,
      bool damage, std::uint64_t seed)
      : lane_(std::move(lane)),
        self_(config.self.address),
        peer_(config.successor.address),
        bump_(config.accelerator),
        foreign_(foreign),
        damage_(damage),
        random_(seed) {}

  bool submit(const stream::Operation& operation, Time now, Sink& sink) override {
    PacketsOut out;
    const bool taken = lane_->submit(operation, now, out);
    send(out, sink);
    return taken;
  }
  void on_packets(std::span<const RxView> frames, Time now, Sink& sink) override {
    views_.clear();
    for (const RxView& view : frames) {
      if (!damage_ && !ring_packet(view.bytes) && !foreign_.has(view.bytes))
        throw Violation("a frame arrives that nobody sent");
      if (const auto ip = roce_to_me(view.bytes); !ip.empty()) {
        views_.push_back({ip, bump_, view.congested});
      } else {
        ++others_;
      }
    }
    PacketsOut out;
    if (!views_.empty()) lane_->on_packets(views_, now, out);
    send(out, sink);
  }
  void on_timer(Time now, Sink& sink) override {
    PacketsOut out;
    lane_->on_timer(now, out);
    send(out, sink);
  }

  [[nodiscard]] Time next_timeout() const override { return lane_->next_timeout(); }
  [[nodiscard]] std::vector<std::uint64_t> take_completed() override { return lane_->take_completed(); }
  [[nodiscard]] std::optional<protocol::LaneFailure> failure() const override { return lane_->failure(); }
  [[nodiscard]] bool idle() const override { return lane_->idle(); }
  [[nodiscard]] bool answers_when_idle() const override { return lane_->answers_when_idle(); }
  [[nodiscard]] bool drained() const override { return lane_->drained(); }
  [[nodiscard]] std::optional<protocol::ChunkStall> oldest_stall() const override { return lane_->oldest_stall(); }
  [[nodiscard]] protocol::LaneTotals totals() const override { return lane_->totals(); }
  [[nodiscard]] std::vector<CounterValue> counters() const override {
    std::vector<CounterValue> counters = lane_->counters();
    std::erase_if(counters, [](const CounterValue& counter) {  // those of hosts that repeat single packets
      return std::string_view(counter.name).starts_with("repeat_requests");
    });
    counters.push_back({"other_frames", others_, CounterKind::outcome});
    return counters;
  }
  [[nodiscard]] std::uint64_t received() const override { return lane_->received() + others_; }

 private:
  // From the IP header on; empty: it is not for the queue pairs.
  [[nodiscard]] std::span<const std::byte> roce_to_me(std::span<const std::byte> frame) const {
    const auto ethernet = wire::ethernet::parse(frame.subspan(std::min(frame.size(), virtio_net_header_bytes)));
    if (!ethernet || ethernet->type != wire::ethernet::ipv4 || ethernet->destination != mac_of(self_)) return {};
    const auto ip = frame.subspan(virtio_net_header_bytes + ethernet->bytes);
    return wire::roce::is_roce(ip) ? ip : std::span<const std::byte>{};
  }

  void send(const PacketsOut& out, Sink& sink) {
    for (const auto& packet : out.packets) send(framed(packet), sink);
    if (!random_.chance(foreign_per_turn)) return;
    const Frame frame = foreign_frame(self_, peer_, random_);
    foreign_.sent(frame);
    send(frame, sink);
  }
  void send(const Frame& frame, Sink& sink) {
    std::copy(frame.begin(), frame.end(), sink.datagram(bump_, frame.size()).begin());
  }

  std::unique_ptr<protocol::WorkerLane> lane_;
  const netreduce::HostAddress self_, peer_;
  const Endpoint bump_;
  ForeignFrames& foreign_;
  const bool damage_;
  Random random_;
  std::vector<RxView> views_;
  std::uint64_t others_ = 0;
};

}  // namespace

std::uint64_t ForeignFrames::key_of(std::span<const std::byte> frame) {
  return std::uint64_t{crc32c(frame)} << 32 ^ crc32c(frame.subspan(frame.size() / 2)) ^ frame.size();
}

std::unique_ptr<protocol::WorkerLane> behind_nic(std::unique_ptr<protocol::WorkerLane> lane,
                                                 const netreduce::RoceHostConfig& config, ForeignFrames& foreign,
                                                 bool damage, std::uint64_t seed) {
  return std::make_unique<Nic>(std::move(lane), config, foreign, damage, seed);
}

}  // namespace netsum::sim
