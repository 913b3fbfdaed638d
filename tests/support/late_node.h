// A node whose thread does not run all the time: now and then it stops for a while, and what comes meanwhile waits. Its turn
// is an event loop's: what has come, and then the timer, if it is due (runtime/worker_engine.cc).
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "support/virtual_network.h"

namespace netsum::testing {

struct Stops {
  double chance = 0;  // after a turn
  Duration longest{};
};

class LateNode : public VirtualNode {
 public:
  LateNode(VirtualNetwork& network, const Endpoint& self, const Stops& stops)
      : VirtualNode(network, self), stops_(stops), random_(self.address[15]) {}

  virtual void serve(std::span<const RxView> packets) = 0;
  [[nodiscard]] virtual Time timer() const { return never; }
  virtual void on_time() {}

  void receive(const RxView& packet) final {
    if (now() >= runs_at_ && waiting_.empty()) return turn({&packet, 1});
    waiting_.push_back({{packet.bytes.begin(), packet.bytes.end()}, packet.source, packet.congested});
  }
  [[nodiscard]] Time next_timeout() const final { return waiting_.empty() ? std::max(timer(), runs_at_) : runs_at_; }
  void on_timer() final {
    std::vector<Waiting> waiting;
    waiting.swap(waiting_);
    std::vector<RxView> packets;
    for (const Waiting& each : waiting) packets.push_back({each.bytes, each.source, each.congested});
    turn(packets);
  }

 private:
  struct Waiting {
    std::vector<std::byte> bytes;
    Endpoint source;
    bool congested;
  };

  void turn(std::span<const RxView> packets) {
    if (!packets.empty()) serve(packets);
    if (now() >= timer()) on_time();
    if (!random_.chance(stops_.chance)) return;
    runs_at_ = now() + Duration(random_.below(static_cast<std::uint64_t>(stops_.longest.count())));
  }

  Stops stops_;
  Random random_;
  Time runs_at_{};
  std::vector<Waiting> waiting_;
};

}  // namespace netsum::testing
