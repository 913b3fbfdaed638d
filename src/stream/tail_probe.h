// When to send the last packets of a stream again: none behind them would show that they were lost, and a time-out has to
// be so long that a busy host does not exceed it. So they go again when nothing was heard for about two round trips (RFC
// 8985, section 7), a few times, twice as late each time. Who has them has to answer, and to notice what else is missing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/time.h"
#include "stream/overtaken.h"
#include "stream/retransmission_timer.h"

namespace netsum::stream {

class TailProbe {
 public:
  static constexpr std::size_t packets = Overtaken::reordering;  // that show the loss of one before them

  // `variations` of round trips, by which it waits longer. `shortens`: while it waits, round trips become shorter as the
  // last queues drain, and the wait with them. Where threads are late, that finds them silent more often.
  explicit TailProbe(std::int64_t variations, bool shortens = true) : variations_(variations), shortens_(shortens) {}

  void on_sent(Time now) { since_ = now; }
  void on_answer(Time now) {
    since_ = now;
    probes_ = 0;
  }
  // There are packets in flight.
  void listen(const RetransmissionTimer& timer) {
    const Duration after = timer.probe_after(probes_, variations_);
    if (after != RetransmissionTimer::no_probe && (shortens_ || at_ == never)) at_ = std::min(at_, since_ + after);
  }
  // Whether they are to be sent again now. Otherwise, and after that, listen() again.
  [[nodiscard]] bool due(const RetransmissionTimer& timer, Time now) {
    if (now < at_) return false;
    at_ = never;
    const Duration after = timer.probe_after(probes_, variations_);
    if (after == RetransmissionTimer::no_probe || now - since_ < after) return false;
    ++probes_;
    since_ = now;
    return true;
  }
  [[nodiscard]] Time next() const { return at_; }  // due() is false before

 private:
  Time since_{}, at_ = never;
  std::int64_t variations_;
  bool shortens_;
  std::uint32_t probes_ = 0;  // since something was heard
};

}  // namespace netsum::stream
