// What is due, by time; what is due at the same time, by a number that is given to it, and then in the order in which it was
// added.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/time.h"

namespace netsum::sim {

// `What` is small: entries move often. A heap of four children a node: half as deep as one of two, and a node's children
// lie side by side.
template <class What>
class EventQueue {
 public:
  struct Event {
    Time at;
    std::uint64_t order;
    What what;
  };

  [[nodiscard]] bool empty() const { return events_.empty(); }
  [[nodiscard]] std::size_t size() const { return events_.size(); }
  [[nodiscard]] const Event& first() const { return events_.front(); }

  // `tie`: below 2^24.
  void add(Time at, What what, std::uint64_t tie = 0) {
    std::size_t place = events_.size();
    events_.push_back({at, tie << 40 | next_order_++, what});
    const Event event = events_.back();
    while (place != 0) {
      const std::size_t above = (place - 1) / children;
      if (!before(event, events_[above])) break;
      events_[place] = events_[above];
      place = above;
    }
    events_[place] = event;
  }

  [[nodiscard]] Event take() {
    const Event taken = events_.front();
    const Event last = events_.back();
    events_.pop_back();
    if (events_.empty()) return taken;
    std::size_t place = 0;
    for (;;) {
      const std::size_t begin = place * children + 1, end = std::min(begin + children, events_.size());
      if (begin >= end) break;
      std::size_t first = begin;
      for (std::size_t child = begin + 1; child < end; ++child) {
        if (before(events_[child], events_[first])) first = child;
      }
      if (!before(events_[first], last)) break;
      events_[place] = events_[first];
      place = first;
    }
    events_[place] = last;
    return taken;
  }

 private:
  static constexpr std::size_t children = 4;
  [[nodiscard]] static bool before(const Event& a, const Event& b) {
    return a.at < b.at || (a.at == b.at && a.order < b.order);
  }

  std::vector<Event> events_;
  std::uint64_t next_order_ = 0;
};

}  // namespace netsum::sim
