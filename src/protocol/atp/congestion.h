// The congestion window of a worker: AIMD on ECN marks and on loss (ATP §3.7).
//
// A mark halves it, as in the paper. So does a loss before the threshold, where the window has doubled within a round trip.
// Beyond the threshold a loss leaves 0.7 of it, as CUBIC does (RFC 9438, section 4.6): marks are the primary signal, and a
// full queue without marks loses packets again and again.
#pragma once

#include <algorithm>
#include <cstdint>

namespace netsum::atp {

class CongestionWindow {
 public:
  // In packets of `packet_bytes`; `most` is the job's window. Disabled: always `most`.
  CongestionWindow(bool enabled, std::uint32_t most, std::size_t packet_bytes)
      : most_(most),
        step_(std::max(1.0, mtu_bytes / static_cast<double>(packet_bytes))),
        window_(enabled ? std::min(most_, std::max(least, initial_bytes / static_cast<double>(packet_bytes))) : most_),
        threshold_(most_),
        enabled_(enabled) {}

  [[nodiscard]] std::uint32_t packets() const { return static_cast<std::uint32_t>(window_); }
  [[nodiscard]] std::uint64_t reductions() const { return reductions_; }

  // A parameter packet for `sequence` arrived; `next` is the first sequence number not yet sent. `limited`: chunks waited
  // for the window. A window that nothing waits for says nothing about the path, and does not grow (RFC 9002, section 7.8).
  void on_parameter(std::uint64_t sequence, std::uint64_t next, bool ecn, bool limited) {
    if (!enabled_) return;
    if (ecn) return back_off(sequence, next, halved);
    if (!limited) return;
    // Grows by one MTU per parameter packet up to the threshold, then by one per window.
    window_ = std::min(most_, window_ + (window_ < threshold_ ? step_ : step_ / window_));
  }

  // Three out of order (§3.7), or a time-out.
  void on_loss(std::uint64_t sequence, std::uint64_t next) {
    if (enabled_) back_off(sequence, next, window_ < threshold_ ? halved : after_loss);
  }

 private:
  static constexpr double mtu_bytes = 1500;
  static constexpr double initial_bytes = 60'000;  // 200 packets of 300 bytes (§3.7)
  static constexpr double least = 2;
  static constexpr double halved = 0.5, after_loss = 0.7;

  // Once per window: the marks of one queue arrive on many packets.
  void back_off(std::uint64_t sequence, std::uint64_t next, double factor) {
    if (sequence < recovered_from_) return;
    recovered_from_ = next;
    window_ = std::max(std::min(least, most_), window_ * factor);
    threshold_ = window_;
    ++reductions_;
  }

  double most_, step_, window_, threshold_;
  bool enabled_;
  std::uint64_t recovered_from_ = 0;  // packets sent before it cause no second back-off
  std::uint64_t reductions_ = 0;
};

}  // namespace netsum::atp
