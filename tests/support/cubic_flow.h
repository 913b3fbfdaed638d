// One TCP flow with CUBIC (RFC 9438) that always has more to send, under a virtual clock: as Linux has it, with ECN (RFC
// 3168), delayed acknowledgements, proportional rate reduction (RFC 6937), and losses found by later packets' arrival
// (RFC 8985, with three packets of reordering). There is no HyStart: slow start ends with the first mark or loss.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <set>

#include "support/virtual_network.h"

namespace netsum::testing {

struct CubicSegment {
  std::uint64_t number = 0;        // of the segment
  std::uint64_t transmission = 0;  // in the order of all transmissions
  bool reduced = false;            // CWR: the sender has reduced its window
};

struct CubicAcknowledgement {
  std::uint64_t next = 0;    // all segments before it have arrived
  std::uint64_t number = 0;  // the segment that made the receiver acknowledge
  std::uint64_t transmission = 0;
  bool congestion = false;  // ECE
};

inline constexpr std::size_t cubic_segment_bytes = 1472,
                             cubic_payload = 1448;              // behind IP and UDP headers, as the network counts
inline constexpr std::size_t cubic_acknowledgement_bytes = 32;  // sizeof; TCP's own headers over UDP's are 24 to 32

class CubicReceiver final : public VirtualNode {
 public:
  CubicReceiver(VirtualNetwork& network, const Endpoint& self, const Endpoint& sender)
      : VirtualNode(network, self), sender_(sender) {}

  void receive(const RxView& packet) override {
    CubicSegment segment;
    std::memcpy(&segment, packet.bytes.data(), sizeof(segment));
    if (segment.reduced) congestion_ = false;
    const bool first_mark = packet.congested && !congestion_;
    congestion_ |= packet.congested;
    last_ = segment;
    if (segment.number == next_) {
      ++next_;
      for (auto at = early_.begin(); at != early_.end() && *at == next_; at = early_.erase(at)) ++next_;
      ++unacknowledged_;
    } else if (segment.number > next_) {
      early_.insert(segment.number);
      unacknowledged_ = 2;
    } else {
      unacknowledged_ = 2;
    }
    if (unacknowledged_ >= 2 || first_mark || !early_.empty()) {
      acknowledge();
    } else {
      due_ = now() + std::chrono::milliseconds(40);
    }
  }
  [[nodiscard]] Time next_timeout() const override { return due_; }
  void on_timer() override { acknowledge(); }
  [[nodiscard]] std::uint64_t delivered() const { return next_; }

 private:
  void acknowledge() {
    unacknowledged_ = 0;
    due_ = never;
    const CubicAcknowledgement answer{next_, last_.number, last_.transmission, congestion_};
    const auto bytes = sink.datagram(sender_, cubic_acknowledgement_bytes);
    std::memcpy(bytes.data(), &answer, sizeof(answer));
  }

  Endpoint sender_;
  std::uint64_t next_ = 0;
  std::set<std::uint64_t> early_;
  CubicSegment last_;
  int unacknowledged_ = 0;
  bool congestion_ = false;
  Time due_ = never;
};

class CubicSender final : public VirtualNode {
 public:
  CubicSender(VirtualNetwork& network, const Endpoint& self, const Endpoint& receiver)
      : VirtualNode(network, self), receiver_(receiver) {}

  void begin() {
    send_more();
    sink.flush();
  }
  void receive(const RxView& packet) override {
    CubicAcknowledgement answer;
    std::memcpy(&answer, packet.bytes.data(), sizeof(answer));
    double acknowledged = 0;
    const auto arrived = [&](std::map<std::uint64_t, Sent>::iterator at) {
      if (at->second.transmissions == 1) measure(now() - at->second.at);
      newest_ = std::max(newest_, at->second.transmission);
      acknowledged += 1;
      if (at->second.lost) --lost_;
      return in_flight_.erase(at);
    };
    for (auto at = in_flight_.begin(); at != in_flight_.end() && at->first < answer.next;) at = arrived(at);
    if (const auto at = in_flight_.find(answer.number); at != in_flight_.end()) arrived(at);
    newest_ = std::max(newest_, answer.transmission);
    bool lost = false;
    for (auto& [number, sent] : in_flight_) {
      if (sent.lost || sent.transmission + 3 > newest_) continue;
      lost = sent.lost = true;
      ++lost_;
    }
    reduced_by_ += acknowledged;
    // Something sent after the reduction is acknowledged, and so the receiver has been told of it.
    if (recovering_ && std::min(in_flight_.empty() ? next_ : in_flight_.begin()->first, answer.next) > recovery_point_) {
      recovering_ = false;
    }
    if (!recovering_ && (lost || answer.congestion)) {
      reduce(answer.congestion && !lost);
    } else if (!recovering_) {
      grow(acknowledged);
    }
    if (acknowledged > 0) backoff_ = 0;
    send_more();
  }
  [[nodiscard]] Time next_timeout() const override {
    if (in_flight_.empty()) return never;
    return last_sent_ + timeout_ * (1 << backoff_);
  }
  void on_timer() override {
    ++backoff_;
    reduce(false);
    recovering_ = false;
    window_ = 1;
    lost_ = 0;
    for (auto& [number, sent] : in_flight_) {
      sent.lost = true;
      ++lost_;
    }
    send_more();
  }
  [[nodiscard]] double window() const { return window_; }
  [[nodiscard]] std::uint64_t reductions() const { return reductions_; }

 private:
  static constexpr double beta = 0.7, scale = 0.4;  // RFC 9438, section 4
  struct Sent {
    Time at;
    std::uint64_t transmission;
    int transmissions = 1;
    bool lost = false;
  };
  static double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

  void measure(Duration round_trip) {
    if (smoothed_ == Duration::zero()) {
      smoothed_ = round_trip;
      variation_ = round_trip / 2;
    } else {
      variation_ += (std::chrono::abs(smoothed_ - round_trip) - variation_) / 4;
      smoothed_ += (round_trip - smoothed_) / 8;
    }
    timeout_ = smoothed_ + std::max<Duration>(std::chrono::milliseconds(200), 4 * variation_);
  }

  // RFC 9438, sections 4.2 to 4.5 and 4.10.
  void grow(double acknowledged) {
    if (window_ < threshold_) {
      window_ = std::min(window_ + acknowledged, threshold_);
      return;
    }
    if (!epoch_) {
      epoch_ = now();
      if (most_ < window_) most_ = window_;
      inflection_ = std::cbrt((most_ - window_) / scale);
      estimate_ = window_;
    }
    const auto cubic = [&](double t) { return scale * std::pow(t - inflection_, 3) + most_; };
    const double t = seconds(now() - *epoch_);
    estimate_ += 3 * (1 - beta) / (1 + beta) * acknowledged / window_;
    const double target = std::clamp(cubic(t + seconds(smoothed_)), window_, 1.5 * window_);
    if (cubic(t) < estimate_) {
      window_ = std::max(window_, estimate_);
    } else {
      window_ += (target - window_) / window_ * acknowledged;
    }
  }

  // RFC 9438, sections 4.6 and 4.7. The window falls over one round trip (RFC 6937).
  void reduce(bool by_mark) {
    ++reductions_;
    most_ = window_ < most_ ? window_ * (1 + beta) / 2 : window_;
    before_ = window_;
    threshold_ = window_ = std::max(2.0, window_ * beta);
    epoch_.reset();
    reduced_by_ = 0;
    recovering_ = true;
    recovery_point_ = next_;
    tell_ |= by_mark;
  }

  [[nodiscard]] double allowed() const {
    if (!recovering_) return window_;
    return std::max(window_, before_ - reduced_by_ * (1 - beta));
  }

  void send_more() {
    for (auto at = in_flight_.begin(); lost_ > 0 && at != in_flight_.end(); ++at) {
      if (!at->second.lost) continue;
      if (static_cast<double>(in_flight_.size() - lost_) + 1 > allowed()) return;
      --lost_;
      at->second = {now(), ++transmissions_, at->second.transmissions + 1, false};
      transmit(at->first);
    }
    while (static_cast<double>(in_flight_.size() - lost_) + 1 <= allowed()) {
      in_flight_.emplace(next_, Sent{now(), ++transmissions_});
      transmit(next_++);
    }
  }
  void transmit(std::uint64_t number) {
    last_sent_ = now();
    const CubicSegment segment{number, transmissions_, tell_};
    tell_ = false;
    const auto bytes = sink.datagram(receiver_, cubic_segment_bytes);
    std::memcpy(bytes.data(), &segment, sizeof(segment));
  }

  Endpoint receiver_;
  std::map<std::uint64_t, Sent> in_flight_;
  std::size_t lost_ = 0;  // of them
  std::uint64_t next_ = 0, transmissions_ = 0, newest_ = 0;
  double window_ = 10, threshold_ = 1e9;
  double most_ = 0, inflection_ = 0, estimate_ = 0, before_ = 0, reduced_by_ = 0;
  std::optional<Time> epoch_;
  bool recovering_ = false, tell_ = false;
  std::uint64_t recovery_point_ = 0;
  std::uint64_t reductions_ = 0;
  Duration smoothed_{}, variation_{}, timeout_ = std::chrono::seconds(1);
  int backoff_ = 0;
  Time last_sent_{};
};

}  // namespace netsum::testing
