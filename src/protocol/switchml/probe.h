// The window from the measured bandwidth-delay product (SwitchML Appendix C), before a rank joins.
//
// First, single probes one after the other: the least round trip is the delay. Then one train: the time between its first
// and last reply shows the rate at which the bottleneck passes packets of this size. On a path that may hold more than twice
// as many packets a train four times as long follows.
#pragma once

#include <cstdint>

#include "base/packet_io.h"
#include "base/time.h"

namespace netsum::switchml {

struct ProbeConfig {
  Endpoint aggregator;
  std::uint32_t packet_bytes = 1076;                   // a contribution's datagram
  std::uint32_t singles = 8, train = 64;               // of the first train; 0: only tests for an answer
  Duration patience = std::chrono::milliseconds(200);  // for one reply
  std::uint32_t tries = 10;                            // unanswered singles in a row before giving up
};

class Probe {
 public:
  explicit Probe(const ProbeConfig& config) : config_(config) {}

  void start(Time now, Sink& sink) { send_single(now, sink); }
  void on_packets(std::span<const RxView> packets, Time now, Sink& sink);
  void on_timer(Time now, Sink& sink);
  [[nodiscard]] Time next_timeout() const { return done() ? never : deadline_; }

  [[nodiscard]] bool done() const { return phase_ == Phase::done || phase_ == Phase::unanswered; }
  [[nodiscard]] bool answered() const { return phase_ == Phase::done; }
  [[nodiscard]] Duration round_trip() const { return round_trip_; }
  [[nodiscard]] std::uint64_t cookie() const { return cookie_; }  // the aggregator's, for this endpoint; after an answer

  // The next power of two above bandwidth * delay / packet length plus an allowance that keeps the path busy while a host is
  // descheduled: the packets of half a millisecond, at most four segment trains. A longer window would fill short queues.
  // `beyond`: the round trip from there to the end of the path.
  [[nodiscard]] std::uint32_t slots(Duration beyond = Duration::zero()) const;

 private:
  enum class Phase : std::uint8_t { singles, train, done, unanswered };

  [[nodiscard]] double packets_in(std::chrono::duration<double> time) const;
  void send_single(Time now, Sink& sink);
  void send_train(std::uint32_t packets, Time now, Sink& sink);

  ProbeConfig config_;
  Phase phase_ = Phase::singles;
  std::uint32_t sequence_ = 0, answered_ = 0, unanswered_ = 0;
  std::uint32_t train_ = 0, train_first_ = 0, train_replies_ = 0;
  std::uint64_t cookie_ = 0;
  Time sent_{}, deadline_ = never, first_reply_{}, last_reply_{};
  Duration round_trip_ = Duration::max();
};

}  // namespace netsum::switchml
