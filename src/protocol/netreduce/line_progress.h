// What has come of a ring's stream on one line, and what has left on it: from these follows which sums leave, and which
// packets are missing. Part of a ring, which sends and asks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "protocol/netreduce/ring_config.h"
#include "protocol/netreduce/sum_store.h"

namespace netsum::netreduce {

class LineProgress {
 public:
  // `number`: the line's in the store.
  LineProgress(const Line& line, std::uint32_t number, Order order);

  // Whether its receiver goes back, and its NAKs are answered from here. This does not change.
  [[nodiscard]] bool answers() const { return answers_; }

  // ---- from the line's sender

  // The place of a packet that begins no message.
  [[nodiscard]] std::optional<Place> find(std::uint32_t psn, const SumStore& store) {
    return store.find(number_, psn, last_slot_);
  }
  void begin(std::uint32_t slot) { last_slot_ = slot; }  // of a message
  void on_packet(const Place& place) {
    if (place <= newest_) repeated_ = sent_;
    newest_ = place;
  }
  void on_stored(const Place& place, const SumStore& store);

  // Whether a packet whose sum is complete is answered with it, when it comes again.
  enum class Repeat : std::uint8_t {
    held,     // its sum will leave in order
    ignored,  // its sum left after its sender had gone back: its receiver misses it only if it was lost since, and says so
              // when something comes behind it
    answered,
  };
  [[nodiscard]] Repeat on_repeat(const Place& place, const SumStore& store) const;

  // Of a line with single repeats: what is missing before `psn` was lost, or dropped because its message's first packet was;
  // and so is this packet, if it has no place. Its sender repeats it.
  struct Missing {
    std::uint32_t psn = 0, count = 0;
  };
  [[nodiscard]] Missing missing(std::uint32_t psn, bool placed, const SumStore& store);

  // ---- to its receiver

  // The first place whose sum was not yet sent to it.
  [[nodiscard]] const Place& sent() const { return sent_; }
  // The sum of `place`, or the line's packet there, has come: calls `leave` with each place whose sum leaves now. A sum that
  // is returned leaves early.
  template <class Leave>
  [[nodiscard]] std::optional<Place> advance(const Place& place, const SumStore& store, const Leave& leave);
  // The place that a NAK names, if its sum has left here.
  [[nodiscard]] std::optional<Place> left(std::uint32_t psn, const SumStore& store);
  // Its NAK was answered. A sum that is returned leaves early: the NAK that a gap of the sender's own packets is to provoke
  // was this one.
  [[nodiscard]] std::optional<Place> on_nak_answered(const SumStore& store) {
    asked_ = false;
    return early(store);
  }

  void append_state(std::vector<std::byte>& out) const;
  // `held`: nothing leaves on it yet.
  void check(const SumStore& store, bool held) const;

 private:
  [[nodiscard]] std::optional<Place> early(const SumStore& store);

  std::uint32_t number_;
  bool sums_;      // they leave on it here; else headers do
  bool in_order_;  // in the order of the stream
  bool answers_;
  bool asked_ = false;  // a later sum was sent, so that the receiver asks for the missing one
  Place expected_;      // the first not yet arrived
  Place sent_;
  Place newest_;    // the one that came last
  Place repeated_;  // the first whose sum had not been sent to it when its sender last went back
  std::uint32_t last_slot_ = 0;
  std::uint32_t heard_ = 0;  // with single repeats: the PSN behind all that came
};

// ---- once a packet

inline void LineProgress::on_stored(const Place& place, const SumStore& store) {
  if (expected_ == place) asked_ = false;
  while (store.has(expected_, number_)) expected_ = store.after(expected_);
}

// A held sum while the line's own packets have a gap before it: a packet was lost on its way here, and its receiver, which
// alone can ask for it, sees no gap. This sum is sent early: behind a gap the receiver discards it and answers with a NAK.
// But while the sender goes back, no gap is one before the repeats have come past it.
inline std::optional<Place> LineProgress::early(const SumStore& store) {
  if (asked_ || !store.holds(expected_)) return std::nullopt;
  for (Place place = store.after(expected_); place <= newest_ && store.holds(place); place = store.after(place)) {
    if (!store.at(place).complete || !store.has(place, number_)) continue;
    asked_ = true;
    return place;
  }
  return std::nullopt;
}

template <class Leave>
std::optional<Place> LineProgress::advance(const Place& place, const SumStore& store, const Leave& leave) {
  const bool ready = sums_ && store.has(place, number_);
  if (ready && !in_order_) leave(place);
  while (store.holds(sent_) && store.at(sent_).complete && (!sums_ || store.has(sent_, number_))) {
    if (sums_ && in_order_) leave(sent_);
    sent_ = store.after(sent_);
  }
  return ready && in_order_ ? early(store) : std::nullopt;
}

}  // namespace netsum::netreduce
