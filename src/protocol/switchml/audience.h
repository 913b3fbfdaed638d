// To whom a complete round's result is sent: each rank by itself, or an IP multicast group and those that are not in it.
//
// Nothing tells beforehand whether a network carries multicast to a host, nor for how long: a switch without an IGMP querier
// forgets the group after minutes. Who asks again for most of its results does not hear them, and has them by itself from
// then on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/endpoint.h"

namespace netsum::switchml {

class Audience {
 public:
  Audience() = default;
  // `listeners`: the ranks that have joined the group, by rank. For fewer than two a group saves nothing.
  Audience(std::vector<Endpoint> ranks, const std::optional<Endpoint>& group, const std::vector<bool>& listeners,
           std::uint32_t slots)
      : ranks_(std::move(ranks)), patience_(4 * slots + 8) {
    if (!group || std::count(listeners.begin(), listeners.end(), true) < 2) return;
    group_ = *group;
    unheard_.assign(ranks_.size(), 0);
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

  // The rank has begun a round, so it had the result before; or it asked for that again.
  void heard(std::size_t rank) {
    if (grouped() && unheard_[rank] != alone && unheard_[rank] != 0) --unheard_[rank];
  }
  // True if it has asked for more than half of its results, over at least four windows: a burst that the network dropped is
  // no reason. It is to be taken out, once what is sent to everyone() has left.
  [[nodiscard]] bool asked(std::size_t rank) {
    if (!grouped() || unheard_[rank] == alone) return false;
    unheard_[rank] += 2;
    return unheard_[rank] > patience_;
  }
  void take_out(std::size_t rank) {
    unheard_[rank] = alone;
    list();
  }

  // By rank, if there is a group; all that decides who is sent what.
  [[nodiscard]] const std::vector<std::uint32_t>& unheard() const { return unheard_; }

 private:
  static constexpr std::uint32_t alone = UINT32_MAX;

  void list() {
    destinations_.assign(1, group_);
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (unheard_[rank] == alone) destinations_.push_back(ranks_[rank]);
    }
    if (destinations_.size() >= ranks_.size()) destinations_.clear();  // at most one rank is left in it
  }

  std::vector<Endpoint> ranks_, destinations_;  // destinations_: empty without a group
  Endpoint group_{};
  std::vector<std::uint32_t> unheard_;
  std::uint32_t patience_ = 0;
};

}  // namespace netsum::switchml
