// One rank's view of its job: which aggregators answer, which ranks have left, which ranks an operation waits for; and the
// error texts. A pure state machine: the monitor's thread (or the simulator) sends heartbeats and hands in the answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bitmap.h"
#include "base/time.h"
#include "netsum/error.h"
#include "session/liveness.h"
#include "session/registry.h"

namespace netsum::session {

inline constexpr Duration beat_interval = std::chrono::milliseconds(500);
// In jobs that go on without ranks that died, for each rank: all together send an aggregator a thousand a second at most.
inline constexpr Duration beat_interval_of_survivors = std::chrono::milliseconds(1);
inline constexpr Duration least_beat_interval = std::chrono::milliseconds(50);
inline constexpr Duration beat_retry_interval = std::chrono::milliseconds(100);   // while it is unclear why a lane fell off
inline constexpr Duration beat_dispute_interval = std::chrono::milliseconds(20);  // until the others' calls are known
// A rank that lost its last result asks again, several times where links lose packets, and a switch that has forgotten the
// sum may answer that it waits for the ranks that have it.
inline constexpr Duration left_patience = std::chrono::seconds(2);
inline constexpr Duration beat_patience = std::chrono::seconds(1);  // for one answer

// For a job that recovers: whether joining again may help.
[[nodiscard]] bool recoverable(ErrorCode code);
// Empty, or the parameters on which two aggregators of a job disagree: a rank's admissions must match.
[[nodiscard]] std::string disagreement(const Admission& first, const Admission& other);

// The oldest chunk in flight and the ranks that it waits for, as its aggregator last said.
struct Stall {
  std::size_t site = 0;  // index of the aggregator
  std::uint64_t operation = 0;
  std::uint32_t chunk = 0;
  RankSet missing;  // empty: the aggregator has not answered
  Time told{};
};

class Supervisor {
 public:
  struct Config {
    std::string job;
    std::uint32_t rank = 0;
    std::vector<std::string> aggregators;           // addresses, by site
    std::optional<std::uint32_t> predecessor = {};  // the rank whose connection brings the results (NetReduce)
    Duration silence = std::chrono::milliseconds(default_heartbeat_timeout_ms);  // of an aggregator (liveness.h)
    Duration interval = beat_interval;
    Duration reconnect = reconnect_allowed;
  };

  Supervisor(Config config, Time now);

  // A returned error ends the job on this rank.
  [[nodiscard]] std::optional<Error> on_reply(std::size_t site, const HeartbeatReply& reply, Time now);
  // `closed`: no process answers there any more, not even to refuse.
  void on_no_reply(std::size_t site, const std::string& why, Time now, bool closed = false);

  // What people should know since the latest reply; nothing: as before.
  [[nodiscard]] std::optional<std::string> take_warning(std::size_t site);

  [[nodiscard]] const RankSet& left() const { return left_; }  // in good order, as last heard

  // The site's data plane does not know the job. Heartbeats go on, faster: their replies give the reason.
  void on_job_dropped(std::size_t site) { sites_[site].dropped = true; }
  [[nodiscard]] Duration interval() const;  // between heartbeats

  // Aggregators that have been silent for too long, at `now`; this rank meant to look at `meant`, as next_look() said.
  [[nodiscard]] std::optional<Error> look(Time now, Time meant);
  [[nodiscard]] Time next_look() const;
  [[nodiscard]] Duration silence(std::size_t site, Time now) const { return now - sites_[site].liveness.heard(); }

  // A rank that left will not contribute: waiting for it would last until the deadline.
  [[nodiscard]] std::optional<Error> check_left(const std::optional<Stall>& stall) const;

  // `own`: this rank's call in words, empty if it is not pending.
  [[nodiscard]] Error mismatch(std::uint64_t operation, std::uint32_t first_rank, std::uint32_t second_rank) const;
  // A result that is not the sum of all ranks (NetReduce); `what` names the packet.
  [[nodiscard]] Error unsealed(std::size_t site, std::uint64_t operation, const std::string& what) const;
  [[nodiscard]] Error changed_sum(std::size_t site, std::uint64_t operation) const;
  // This rank's end of a lane cannot go on.
  [[nodiscard]] Error lane_failed(std::uint64_t operation, const std::string& what) const;
  [[nodiscard]] Error overdue(std::uint64_t operation, const std::string& own, Duration patience,
                              const std::optional<Stall>& stall) const;

 private:
  struct Site {
    Liveness liveness{};
    bool dropped = false;
    RankSet missing{};      // as it last said
    std::string warning{};  // likewise
    bool warned = true;     // people know of it
    std::string why{};      // the latest heartbeat has no answer
  };

  // Adds the missing ranks from the aggregator's heartbeats, where a lane cannot know them.
  [[nodiscard]] std::optional<Stall> completed(std::optional<Stall> stall) const;

  [[nodiscard]] std::string job() const { return "job '" + config_.job + "'"; }

  Config config_;
  std::vector<Site> sites_;
  RankSet left_;
  std::string why_left_;  // the first one's words; empty: none
  Time left_since_{};     // when the latest one left
};

}  // namespace netsum::session
