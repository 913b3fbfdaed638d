// Reliable windows: when to send again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/time.h"

namespace netsum::stream {

// The patience with a packet that has been sent more than once: up to half as long again as the time-out, by its place in
// the window. A queue shorter than the window would drop the same ones of all packets that were lost together each time.
[[nodiscard]] constexpr Duration spread(Duration timeout, std::size_t place) {
  constexpr std::int64_t phases = 32, step = 13;
  return timeout + timeout * (static_cast<std::int64_t>(place % phases) * step % phases) / (2 * phases);
}

// Among so many answers in a tree of switches, one is likely to be for a chunk that lost no packet on any link.
inline constexpr std::uint32_t answers_in_tree = 8;

// The time-out of a lane, from round trips whose answered transmission is certain (RFC 6298's smoothing).
class RetransmissionTimer {
 public:
  // `group`: of so many answers only the soonest is a sample. Where an answer waits for many others, most are late because
  // one of those was lost. Then time-outs that follow from all answers grow by the time that repairs take, and repairs,
  // which wait for time-outs, by theirs.
  RetransmissionTimer(Duration initial, Duration least, Duration most, std::uint32_t group = 1)
      : timeout_(initial), least_(least), most_(most), group_(group) {}

  // An answer, with its time since the first and since the last transmission. After a retransmission the answered one is
  // unknown (Karn). But an answer sooner than any round trip is for an earlier transmission, so the retransmission was
  // spurious. Without these answers, a time-out that is too short would stay so. The min(): a few packets that the network
  // held for long must not raise it to their delay.
  // `together`: all ranks had begun the operation as well. Where not, the answer may have waited for a late rank, and a rank
  // is late if it has waited for a time-out: time-outs would grow by themselves.
  // `overtaken`: answers to later packets came before (stream/overtaken.h). It has waited for the repair of another's loss.
  void answered(Duration after_first, Duration after_last, bool together = true, bool overtaken = false) {
    if (after_first == after_last) {
      const bool believed = together || smoothed_ == Duration::zero();
      if (!believed && after_first > most_alone * std::max(least_, least_round_trip_)) return;
      backoff_ = 0;
      certain_ = true;
      if (overtaken && smoothed_ != Duration::zero()) return;
      soonest_ = std::min(soonest_, after_first);
      if (++answers_ < group_ && smoothed_ != Duration::zero()) return;
      answers_ = 0;
      sample(std::exchange(soonest_, Duration::max()));
    } else if (after_last < least_round_trip_) {
      sample(std::min(after_first, timeout_));
    }
  }

  void sample(Duration round_trip) {
    if (smoothed_ == Duration::zero()) {
      least_round_trip_ = round_trip;
      smoothed_ = round_trip;
      variation_ = round_trip / 2;
    } else {
      const Duration error = round_trip > smoothed_ ? round_trip - smoothed_ : smoothed_ - round_trip;
      variation_ += (error - variation_) / 4;
      smoothed_ += (round_trip - smoothed_) / 8;
      least_round_trip_ = std::min(least_round_trip_, round_trip);
    }
    // Without `least_`, steady round trips would leave no margin for a peer that is scheduled late (RFC 6298's G).
    timeout_ = std::min(smoothed_ + std::max(least_, 4 * variation_), most_);
  }

  [[nodiscard]] Duration smoothed_round_trip() const { return smoothed_; }
  [[nodiscard]] Duration least_round_trip() const { return least_round_trip_; }

  // How long a sender that hears nothing waits until it probes (tail_probe.h): two round trips, or one and some variations.
  // `no_probe`: no round trip is known yet, or it has probed in vain often enough.
  static constexpr Duration no_probe = Duration::max();
  [[nodiscard]] Duration probe_after(std::uint32_t probes, std::int64_t variations = 4) const {
    if (smoothed_ == Duration::zero() || probes >= most_probes) return no_probe;
    return (smoothed_ + std::max(smoothed_, variations * variation_)) * (std::int64_t{1} << probes);
  }

  // A packet, last sent at `sent`, has had no answer for a time-out. If others that were sent once have had theirs, it is
  // lost. If none has, twice in a row, new packets have that much more patience, too, until one that was sent once is
  // answered (the other half of Karn's algorithm; RFC 6298, 5.5 to 5.7). Else, if round trips have become longer than the
  // time-out, each packet is sent again before its answer, and no answer tells so. Of a window that expires together one
  // packet counts.
  void expired(Time sent, Time now) {
    if (sent < counted_) return;
    counted_ = now;
    if (!std::exchange(certain_, false)) backoff_ = std::min(backoff_ + 1, most_doublings);
  }

  // For a packet's transmission number `transmissions` (1: the first): doubles with each, up to the maximum.
  [[nodiscard]] Duration timeout(std::uint32_t transmissions = 1) const {
    return std::min(most_, timeout_ * (std::int64_t{1} << std::min(std::max(transmissions - 1, backoff_), most_doublings)));
  }

 private:
  static constexpr std::int64_t most_alone = 4;  // times the least round trip
  static constexpr std::uint32_t most_doublings = 16, most_probes = 4;

  Duration timeout_, least_, most_;
  std::uint32_t group_, answers_ = 0;
  Duration soonest_ = Duration::max();  // of the group
  Duration smoothed_{}, variation_{}, least_round_trip_{};
  std::uint32_t backoff_ = 0;   // doublings for all packets
  bool certain_ = false;        // a packet sent once has been answered since one expired
  Time counted_ = Time::min();  // when one last did; those sent before say no more
};

}  // namespace netsum::stream
