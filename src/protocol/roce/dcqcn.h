// The rate of a sender that is told of marked packets: the reaction point of DCQCN (Zhu et al., Congestion Control for
// Large-Scale RDMA Deployments, SIGCOMM 2015, sections 3.1 and 5.2). Nothing is limited before the first notification, nor
// once the rate is the line's again.
//
// A NIC knows its port's rate, and the paper's times suit round trips of some 50 us. Here rates are measured, and what the
// paper has in microseconds and Mbit/s is in round trips and MTUs:
//  - At the first notification the rate is what was in flight, in a round trip. The line's is the window in the least one.
//  - One notification counts in 50 us, or in a round trip, if that is longer: what it changes shows no sooner.
//  - The increase timer T is 55 us, or a round trip, if that is longer, or as many as let fast recovery take as long as a
//    flow of CUBIC's with the same rate takes to win back what a mark costs it: it gives up three tenths, and gets 0.53 MTU
//    a round (RFC 9438, section 4.3). So neither starves the other.
//  - R_AI is half an MTU a round. (The paper's is 40 Mbit/s for 55 us: 0.18 MTU at 40 Gbit/s, if that is a round.) R_HAI is
//    ten times as much. The byte counter is what the target sends in 36 periods of T, as the paper's 10 MB are there.
//  - g is DCTCP's 1/16. With the paper's 1/256 alpha would follow the marks in seconds, where T is milliseconds.
//  - Flows of one job that share a path are to grow as one, as ATP's lanes do (atp/congestion.h).
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/time.h"

namespace netsum::roce {

// The notification point: the receiver of marked packets notifies their sender so often (N).
inline constexpr Duration notification_interval = std::chrono::microseconds(50);

class Dcqcn {
 public:
  // Of a packet's payload, as all bytes here.
  explicit Dcqcn(std::size_t packet_bytes, std::uint32_t flows = 1)
      : mtu_(std::max(mtu_bytes, static_cast<double>(packet_bytes))), flows_(flows * std::sqrt(flows)) {}

  [[nodiscard]] bool limits() const { return limits_; }
  [[nodiscard]] double rate() const { return current_; }  // bytes per second, while it limits
  [[nodiscard]] double target() const { return target_; }
  [[nodiscard]] double alpha() const { return alpha_; }

  // What the sender knows of its path.
  struct Path {
    Duration round_trip{}, least_round_trip{};  // greater than 0
    std::size_t in_flight = 0;                  // bytes, the most since the last notification that counted
    std::size_t window = 0;                     // bytes, the most that may be
  };
  // False: it does not count, as one has counted just before.
  bool on_notification(Time now, const Path& path) {
    if (now < deaf_until_) return false;
    advance(now);
    deaf_until_ = now + std::max(notification_interval, path.round_trip);
    const double round_trip = seconds(path.round_trip);
    line_ = static_cast<double>(path.window) / seconds(path.least_round_trip);
    least_ = std::min(line_, mtu_ / round_trip);
    const double sent = std::max(least_, static_cast<double>(path.in_flight) / round_trip);
    target_ = limits_ ? current_ : std::min(line_, sent);
    current_ = std::max(least_, target_ * (1 - alpha_ / 2));
    alpha_ = (1 - gain) * alpha_ + gain;
    const double rounds = std::max(1.0, rounds_per_mtu / stages * flows_ * target_ * round_trip / mtu_);
    period_ = std::chrono::duration_cast<Duration>(std::max(least_period, path.round_trip) * rounds);
    step_ = mtus_per_round / flows_ * rounds * mtu_ / round_trip;
    due_ = now + period_;
    timer_stage_ = byte_stage_ = 0;
    bytes_ = 0;
    slack_ = std::min(most_slack, path.round_trip);
    limits_ = true;
    return true;
  }

  // To be called before may_send(): the timer's stages until now.
  void advance(Time now) {
    for (; due_ <= now && (limits_ || alpha_ > faded); due_ += period_) {
      alpha_ *= 1 - gain;
      if (limits_) increase(++timer_stage_, byte_stage_);
    }
  }

  [[nodiscard]] bool may_send(Time now) const { return !limits_ || ready_ <= now; }
  [[nodiscard]] Time ready() const { return ready_; }  // when the next packet may leave, while it limits
  void on_sent(Time now, std::size_t bytes) {
    if (!limits_) return;
    ready_ = std::max(ready_, now - slack_) +
             std::chrono::duration_cast<Duration>(std::chrono::duration<double>(static_cast<double>(bytes) / current_));
    bytes_ += static_cast<double>(bytes);
    if (bytes_ < periods_of_bytes * seconds(period_) * target_) return;
    bytes_ = 0;
    increase(++byte_stage_, timer_stage_);
  }

 private:
  static constexpr double gain = 1.0 / 16;    // g
  static constexpr std::uint32_t stages = 5;  // F
  static constexpr double hyper = 10;         // R_HAI / R_AI
  static constexpr double faded = 1e-3;       // an alpha that changes no rate
  static constexpr double mtu_bytes = 1500;
  static constexpr double rounds_per_mtu = 0.3 / 0.53, mtus_per_round = 0.5, periods_of_bytes = 36;
  static constexpr Duration least_period = std::chrono::microseconds(55);
  // What a late thread did not send leaves at once, as far as this.
  static constexpr Duration most_slack = std::chrono::milliseconds(1);

  [[nodiscard]] static double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

  // Of the timer or the byte counter, which has reached the stage `one`.
  void increase(std::uint32_t one, std::uint32_t other) {
    if (std::min(one, other) > stages) {
      target_ += hyper * step_;
    } else if (std::max(one, other) >= stages) {
      target_ += step_;
    }
    current_ = (target_ + current_) / 2;
    if (current_ < line_) return;
    current_ = line_;
    limits_ = false;
  }

  double mtu_, flows_;
  bool limits_ = false;
  double current_ = 0, target_ = 0, alpha_ = 1;  // R_C, R_T
  double line_ = 0, least_ = 0, step_ = 0;
  Duration period_{}, slack_{};
  Time due_ = never;  // the timer's next stage
  Time deaf_until_ = Time::min(), ready_ = Time::min() + most_slack;
  std::uint32_t timer_stage_ = 0, byte_stage_ = 0;  // T, BC
  double bytes_ = 0;                                // of the byte counter
};

}  // namespace netsum::roce
