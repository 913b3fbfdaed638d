// The congestion window of a worker: AIMD on ECN marks and on loss (ATP §3.7).
//
// A mark halves it, as in the paper. So does a loss before the threshold, where the window has doubled within a round trip.
// Beyond the threshold a loss leaves 0.7 of it, as CUBIC does (RFC 9438, section 4.6): marks are the primary signal, and a
// full queue without marks loses packets again and again. Where round trips show no full queue, a loss is by chance, and
// costs half a packet: in a tree each rank sees the losses of all links, and would be left with no window.
//
// After a mark the window comes back along a cubic: slowly at first, fast where it meets the queue again. Queues mark from a
// length on, and of the flows that share one, those are marked first whose packets meet it a little longer: other
// acknowledgements or delays on the way make a difference of three or four packets. If all windows grow by a packet for each
// round trip, the flow that is marked first makes room before the others are marked, and loses everything to them. If they
// grow by more in the end, one queue marks all. After a loss the window grows by one MTU for each window: losses by chance
// come again too soon for a slow beginning.
//
// Slow start ends where round trips grow, as in HyStart++ (RFC 9406): a window that doubles overruns a queue that does not
// mark, for all ranks at once. The paper does not take round trips for a signal, because they include the wait for late
// ranks. So what they say is taken back when they shrink, and while it holds, the window grows as beyond the threshold.
//
// By the paper's rules marks and losses halve it alike, it then grows by one MTU for each window, and round trips say
// nothing.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/time.h"
#include "protocol/atp/congestion_control.h"
#include "protocol/atp/numbers.h"

namespace netsum::atp {

class CongestionWindow final : public CongestionControl {
 public:
  // In packets of `packet_bytes`; `most` is the job's window. Disabled: always `most`.
  CongestionWindow(bool enabled, std::uint32_t most, std::size_t packet_bytes, Rules rules = Rules::netsum)
      : most_(most),
        step_(std::max(1.0, mtu_bytes / static_cast<double>(packet_bytes))),
        window_(enabled ? std::min(most_, std::max(least, first_window_bytes / static_cast<double>(packet_bytes))) : most_),
        threshold_(most_),
        enabled_(enabled),
        plain_(rules == Rules::paper) {}

  [[nodiscard]] std::unique_ptr<CongestionControl> copy() const override {
    return std::make_unique<CongestionWindow>(*this);
  }
  [[nodiscard]] std::uint32_t packets() const override { return static_cast<std::uint32_t>(window_); }
  [[nodiscard]] double step() const { return step_; }  // packets that it grows by for each result, at first
  [[nodiscard]] std::uint64_t reductions() const { return reductions_; }

  // A window that nothing waits for says nothing about the path, and does not grow (RFC 9002, section 7.8). A job's lanes
  // together are to grow as one. If each queue marked all of them at once, each would grow more slowly by their number; if
  // it marked one at a time, by its square (RFC 6356).
  void on_parameter(std::uint64_t sequence, std::uint64_t next, bool ecn, bool limited, std::uint32_t lanes = 1) override {
    if (!enabled_) return;
    if (ecn) return back_off(sequence, next, halved, !plain_);
    if (!limited) return;
    // By one MTU per parameter packet up to the threshold; beyond it by one per window, or back to the peak.
    double growth = step_;
    if (!slow_start()) {
      const double rounds = 1 / window_;
      growth = peak_ == 0 ? step_ * rounds : std::clamp(regained(rounds / (lanes * std::sqrt(lanes))) - window_, 0.0, step_);
    }
    window_ = std::min(most_, window_ + growth);
  }

  // A round lasts until what was sent after its beginning is answered.
  void on_round_trip(std::uint64_t sequence, std::uint64_t next, Duration round_trip) override {
    if (plain_) return;
    shortest_ = std::min(shortest_, round_trip);
    newest_[samples_in_all_++ % newest_.size()] = round_trip;
    if (sequence >= round_end_) {
      round_end_ = next;
      least_before_ = samples_ == 0 ? std::nullopt : std::optional(least_);
      samples_ = 0;
    }
    least_ = samples_++ == 0 ? round_trip : std::min(least_, round_trip);
    if (samples_ < enough_samples) return;
    if (queue_) {
      if (least_ < *queue_) queue_.reset();
    } else if (least_before_ && least_ >= *least_before_ + std::clamp(*least_before_ / 8, least_growth, most_growth)) {
      queue_ = least_;
    }
  }

  void on_loss(std::uint64_t sequence, std::uint64_t next) override {
    if (!enabled_) return;
    if (plain_ || slow_start()) return back_off(sequence, next, halved, false);
    if (sequence < recovered_from_) return;
    if (has_queue()) return back_off(sequence, next, after_loss, false);
    window_ = std::max(std::min(least, most_), window_ - by_chance);
    threshold_ = std::min(threshold_, window_);
  }

 private:
  static constexpr double mtu_bytes = 1500;
  static constexpr double least = 2;
  static constexpr double halved = 0.5, after_loss = 0.7;
  static constexpr double by_chance = 0.5;        // packets for each one lost, as RFC 8257 has it for marks
  static constexpr double rounds_per_mtu = 0.75;  // of the former window
  // RFC 9406 has 4 ms in place of 1 ms. That is a queue of 500 kB at 1 Gbit/s; time-outs allow a late host 1 ms, too.
  static constexpr Duration least_growth = std::chrono::milliseconds(1), most_growth = std::chrono::milliseconds(16);
  static constexpr std::uint32_t enough_samples = 8;

  [[nodiscard]] bool slow_start() const { return window_ < threshold_ && !queue_; }

  // The window when so many more rounds have passed since the last mark. It reaches the former one after three quarters as
  // many rounds as that had MTUs: a flow of CUBIC's grows by 0.53 MTU for each round, and loses three tenths (RFC 9438).
  [[nodiscard]] double regained(double rounds) {
    rounds_ += rounds;
    const double part = rounds_ * step_ / (rounds_per_mtu * peak_);
    return threshold_ + std::max(step_, peak_ - threshold_) * part * part * part;
  }

  // Whether what is lost may have met a full queue: then what came since has met it too, and it holds a round trip's
  // packets.
  [[nodiscard]] bool has_queue() const {
    return samples_in_all_ < newest_.size() || *std::min_element(newest_.begin(), newest_.end()) > 2 * shortest_;
  }

  // Once per window: the marks of one queue arrive on many packets.
  void back_off(std::uint64_t sequence, std::uint64_t next, double factor, bool marked) {
    if (sequence < recovered_from_) return;
    recovered_from_ = next;
    peak_ = marked ? window_ : 0;
    rounds_ = 0;
    window_ = std::max(std::min(least, most_), window_ * factor);
    threshold_ = window_;
    ++reductions_;
  }

  double most_, step_, window_, threshold_;
  bool enabled_, plain_;
  std::uint64_t recovered_from_ = 0;  // packets sent before it cause no second back-off
  std::uint64_t reductions_ = 0;
  double peak_ = 0, rounds_ = 0;         // the window before the last back-off, if a mark caused it, and rounds since
  std::uint64_t round_end_ = 0;          // the first sequence number of the next round
  Duration shortest_ = Duration::max();  // of all round trips
  std::array<Duration, enough_samples> newest_{};
  std::uint64_t samples_in_all_ = 0;
  std::uint32_t samples_ = 0;             // of this round
  Duration least_{};                      // of them
  std::optional<Duration> least_before_;  // of the round before
  std::optional<Duration> queue_;         // a round's least round trip that had grown; empty: none has
};

}  // namespace netsum::atp
