// When a peer counts as dead: one rule, for a daemon that judges ranks and for a rank that judges its aggregators. Its
// process has ended, as its connection has closed and it has opened no other one since; or nothing has been heard from it
// for a time-out. Time in which the judge itself did not run does not count: a process that was stopped, swapped out or
// moved has heard nobody, and what was sent to it meanwhile is still in its sockets.
#pragma once

#include <algorithm>
#include <optional>

#include "base/time.h"

namespace netsum::session {

// From a connection's end until the process is dead. A living one connects again with its next heartbeat.
inline constexpr Duration reconnect_allowed = std::chrono::seconds(2);
// Where the others go on without it. A rank that lives ends no connection, whatever it waits for: only its host's kernel
// does, as the process ends, or a box on the way.
inline constexpr Duration reconnect_allowed_by_survivors = std::chrono::milliseconds(20);
// A judge that looks so much later than it meant to did not run, and hears first what waits in its sockets.
inline constexpr Duration usual_delay = std::chrono::milliseconds(200);
inline constexpr Duration hearing = std::chrono::seconds(1);

class Liveness {
 public:
  Liveness() = default;
  explicit Liveness(Time now) : heard_(now) {}

  void hear(Time now) {
    heard_ = now;
    closed_.reset();
  }
  void close(Time now) {
    if (!closed_) closed_ = now;
  }
  // The judge looks at `now`, and meant to look at `meant`.
  void look(Time now, Time meant) {
    if (meant == never || now <= meant + usual_delay) return;
    heard_ += now - meant + hearing;
    if (closed_) *closed_ += now - meant + hearing;
  }

  [[nodiscard]] Time heard() const { return heard_; }
  [[nodiscard]] Time dead_at(Duration timeout, Duration reconnect = reconnect_allowed) const {
    const Time silent = after(heard_, timeout);
    return closed_ ? std::min(silent, after(*closed_, reconnect)) : silent;
  }
  // Whether it counts as dead because its connection ended.
  [[nodiscard]] bool has_closed() const { return closed_.has_value(); }

 private:
  Time heard_{};
  std::optional<Time> closed_;
};

}  // namespace netsum::session
