#include "protocol/atp/worker_lane.h"

#include "protocol/atp/sealed_hops.h"
#include "protocol/chunk_lane.h"

namespace netsum::atp {
namespace {

class Lane final : public protocol::ChunkLane<Worker> {
 public:
  Lane(const WorkerConfig& config, const LaneKeys& keys) : ChunkLane(config) {
    if (keys.security != PacketSecurity::none)
      hops_.set(config.job_epoch, keys.security, keys.neighbours, {&config.job_epoch, 1});
  }

  bool submit(const stream::Operation& operation, Time now, Sink& sink) override {
    bool taken = false;
    seal::through(hops_, {}, sink,
                  [&](std::span<const RxView>, Sink& out) { taken = ChunkLane::submit(operation, now, out); });
    return taken;
  }
  void on_packets(std::span<const RxView> packets, Time now, Sink& sink) override {
    worker().count_unbelieved(seal::through(hops_, packets, sink, [&](std::span<const RxView> believed, Sink& out) {
      ChunkLane::on_packets(believed, now, out);
    }));
  }
  void on_timer(Time now, Sink& sink) override {
    seal::through(hops_, {}, sink, [&](std::span<const RxView>, Sink& out) { ChunkLane::on_timer(now, out); });
  }

 private:
  [[nodiscard]] std::uint32_t window() const override { return worker().congestion_window(); }

  seal::Hops hops_ = no_hops();
};

}  // namespace

std::unique_ptr<protocol::WorkerLane> make_worker_lane(const WorkerConfig& config, const LaneKeys& keys) {
  return std::make_unique<Lane>(config, keys);
}

}  // namespace netsum::atp
