#include "protocol/netreduce/line_progress.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "wire/roce.h"

namespace netsum::netreduce {

LineProgress::LineProgress(const Line& line, std::uint32_t number, Order order)
    : number_(number),
      sums_(line.way != Way::leaving),
      // A switch below keeps the order itself.
      in_order_(order == Order::ring && line.way != Way::child && !line.repair),
      answers_(in_order_ && line.answers.has_value()),
      heard_(line.repair ? line.repair->first_psn : 0) {}

LineProgress::Repeat LineProgress::on_repeat(const Place& place, const SumStore& store) const {
  if (in_order_ && place >= sent_) return Repeat::held;
  if (answers_ && place >= repeated_ && store.after(place) != sent_) return Repeat::ignored;
  return Repeat::answered;
}

LineProgress::Missing LineProgress::missing(std::uint32_t psn, bool placed, const SumStore& store) {
  const std::int32_t gap = wire::roce::psn_distance(heard_, psn);
  if (gap < 0 || static_cast<std::size_t>(gap) > store.size()) return {};
  const Missing missing{heard_, static_cast<std::uint32_t>(gap) + (placed ? 0 : 1)};
  heard_ = (psn + 1) & wire::roce::psn_mask;
  return missing;
}

std::optional<Place> LineProgress::left(std::uint32_t psn, const SumStore& store) {
  const std::optional<Place> place = find(psn, store);
  return place && *place < sent_ && store.has(*place, number_) ? place : std::nullopt;
}

void LineProgress::append_state(std::vector<std::byte>& out) const {
  append_bytes(out, sent_.message, sent_.packet, expected_.message, expected_.packet, static_cast<std::uint8_t>(asked_),
               heard_, static_cast<std::uint8_t>(in_order_ && expected_ < newest_));
  if (!answers_) return;
  const Place repeated = std::max(repeated_, newest_);  // what comes before the newest begins anew
  append_bytes(out, newest_.message, newest_.packet, repeated.message, repeated.packet);
}

void LineProgress::check(const SumStore& store, bool held) const {
  NETSUM_CHECK(expected_ >= sent_);
  NETSUM_CHECK(held || !store.holds(sent_) || !store.at(sent_).complete || !store.has(sent_, number_));
}

}  // namespace netsum::netreduce
