// A congestion control for ATP: a packet more for each window, none below eight; after a mark or a loss three quarters.
#pragma once

#include <algorithm>
#include <memory>

#include "protocol/atp/congestion_control.h"

namespace netsum::additive {

class Additive final : public atp::CongestionControl {
 public:
  explicit Additive(std::uint32_t most) : most_(most) {}
  [[nodiscard]] std::unique_ptr<atp::CongestionControl> copy() const override { return std::make_unique<Additive>(*this); }

  [[nodiscard]] std::uint32_t packets() const override { return static_cast<std::uint32_t>(window_); }

  void on_parameter(std::uint64_t sequence, std::uint64_t next, bool ecn, bool limited, std::uint32_t) override {
    if (ecn) return back_off(sequence, next);
    if (limited) window_ = std::min<double>(most_, window_ + 1 / window_);
  }
  void on_round_trip(std::uint64_t, std::uint64_t, Duration) override {}
  void on_loss(std::uint64_t sequence, std::uint64_t next) override { back_off(sequence, next); }

 private:
  // Once for what was in flight together.
  void back_off(std::uint64_t sequence, std::uint64_t next) {
    if (sequence < recovered_from_) return;
    recovered_from_ = next;
    window_ = std::max(8.0, window_ * 3 / 4);
  }

  std::uint32_t most_;
  double window_ = 8;
  std::uint64_t recovered_from_ = 0;
};

inline std::unique_ptr<atp::CongestionControl> make(const atp::ControlledLane& lane) {
  return std::make_unique<Additive>(lane.most);
}

}  // namespace netsum::additive
