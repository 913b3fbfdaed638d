// Destinations of a complete round's result: each rank by unicast, or an IP multicast group and the ranks outside of it.
//
// Whether and for how long a network carries multicast to a host is not known in advance: a switch without an IGMP querier
// forgets the group after minutes. A rank that asks again for most of its results does not receive the group's packets, and
// gets unicast from then on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/bit_rows.h"
#include "base/endpoint.h"

namespace netsum::switchml {

class Audience {
 public:
  Audience() = default;
  // `listeners`: by rank, whether it has joined the group. With fewer than two listeners a group saves nothing.
  // `within_host`: the group stays on a host. A busy one keeps ranks from running, which then ask for many results that have
  // come; one that hears nothing there, as something is between it and the switch, asks for each.
  Audience(std::vector<Endpoint> ranks, const std::optional<Endpoint>& group, bool within_host,
           const std::vector<bool>& listeners, std::uint32_t slots)
      : ranks_(std::move(ranks)), within_host_(within_host), patience_(4 * slots + 8) {
    if (!group || std::count(listeners.begin(), listeners.end(), true) < 2) return;
    group_ = *group;
    unheard_.assign(ranks_.size(), 0);
    asked_ = BitRows(std::size_t{2} * slots, ranks_.size());
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!listeners[rank]) unheard_[rank] = alone;
    }
    list();
  }

  [[nodiscard]] const std::vector<Endpoint>& ranks() const { return ranks_; }
  [[nodiscard]] std::span<const Endpoint> rank(std::size_t number) const { return std::span(ranks_).subspan(number, 1); }

  // The destinations of a result. Valid until take_out().
  [[nodiscard]] std::span<const Endpoint> everyone() const { return grouped() ? destinations_ : ranks_; }
  [[nodiscard]] bool grouped() const { return !destinations_.empty(); }

  // The rank has begun a round (2 * slot + version), so it had the result of the slot's one before; or it has asked for a
  // round's result again.
  void heard(std::size_t rank, std::size_t round) {
    if (!grouped() || unheard_[rank] == alone) return;
    const bool by_itself = asked_.contains(round ^ 1, rank);
    asked_.erase(round ^ 1, rank);
    if (within_host_ && !by_itself) unheard_[rank] = 0;
    if (unheard_[rank] != 0) --unheard_[rank];
  }
  // True if the rank has asked again for more than half of its results (within a host, for each), over at least four
  // windows; a burst of loss does not suffice. The caller then takes it out, once packets sent to everyone() have been
  // flushed.
  [[nodiscard]] bool asked(std::size_t rank, std::size_t round) {
    if (!grouped() || unheard_[rank] == alone || asked_.contains(round, rank)) return false;
    asked_.insert(round, rank);
    unheard_[rank] += 2;
    return unheard_[rank] > patience_;
  }
  void take_out(std::size_t rank) {
    unheard_[rank] = alone;
    list();
  }

  // By rank, if there is a group; determines all destinations.
  [[nodiscard]] const std::vector<std::uint32_t>& unheard() const { return unheard_; }
  [[nodiscard]] const BitRows& asked() const { return asked_; }  // by round

 private:
  static constexpr std::uint32_t alone = UINT32_MAX;

  void list() {
    destinations_.assign(1, group_);
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (unheard_[rank] == alone) destinations_.push_back(ranks_[rank]);
    }
    if (destinations_.size() >= ranks_.size()) destinations_.clear();  // at most one rank is left in the group
  }

  std::vector<Endpoint> ranks_, destinations_;  // destinations_: empty without a group
  Endpoint group_{};
  std::vector<std::uint32_t> unheard_;
  BitRows asked_;
  bool within_host_ = false;
  std::uint32_t patience_ = 0;
};

}  // namespace netsum::switchml
