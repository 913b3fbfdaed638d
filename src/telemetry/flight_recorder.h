// The flight recorder of an aggregator: each job's latest events, and what its operations waited for, in bounded memory. It
// sees events of membership and, twice a second, a report of the job; nothing of packets. Pure: the owner hands in the time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/counters.h"
#include "base/time.h"
#include "session/job_event.h"
#include "session/job_report.h"
#include "telemetry/report.h"

namespace netsum::telemetry {

[[nodiscard]] const char* name_of(session::FailureCause cause);  // in records and metrics

struct FlightEvent {
  Time at{};
  std::string kind;  // "joined", "left", "stalled", ...: docs/operate-failures.md has the list
  std::optional<std::uint32_t> rank;
  std::string what;  // may be empty
};

struct FlightRecord {
  std::string job, tenant;
  std::uint64_t job_epoch = 0;  // 0: the job has not run
  std::uint32_t world_size = 0;
  Time began{};
  std::optional<Time> ended;
  std::deque<FlightEvent> events;  // oldest first
  std::uint64_t omitted = 0;       // events before these
  session::FailureCause cause = session::FailureCause::none;
  std::string failure;                       // empty: it ended in good order, or has not ended
  std::optional<std::uint32_t> lost;         // the rank whose fault it was
  std::optional<session::JobReport> looked;  // the last look at the job while its lanes served it
};

class FlightRecorder {
 public:
  struct Limits {
    std::size_t events = 128;    // of a job
    std::size_t jobs = 2048;     // that join or run; of one more nothing is kept
    std::size_t failures = 256;  // that nobody has taken
    std::size_t ended = 64;      // jobs that have ended, and whose failure was taken, if it is one
  };
  static constexpr Duration look_interval = std::chrono::milliseconds(500);

  FlightRecorder() : FlightRecorder(Limits()) {}
  explicit FlightRecorder(const Limits& limits) : limits_(limits) {}

  void record(const session::JobEvent& event);
  // At a job that runs, or that has failed a moment ago.
  void look(const session::JobReport& job, Time now);

  // Jobs that failed since the last call, and jobs that ended while an operation waited for a rank that had left.
  [[nodiscard]] std::vector<FlightRecord> take_failures();
  // The latest events of a job here, or of one that failed lately; oldest first.
  [[nodiscard]] std::vector<FlightEvent> latest(const session::JobStatus& job, std::size_t most) const;
  // For how long the job's oldest chunk has waited; 0: for no second.
  [[nodiscard]] Duration stalled_for(const session::JobStatus& job, Time now) const;
  // The latest job of this name, whether or not it has ended. None: it was never here, or too many have ended since.
  [[nodiscard]] std::optional<FlightRecord> find(const session::NamedJob& named) const;
  // Jobs that have ended: those that failed first, and then the latest first.
  [[nodiscard]] std::vector<EndedJob> ended(Time now) const;
  [[nodiscard]] bool any_running() const;
  [[nodiscard]] Counters failures() const;  // ever: jobs_failed, and jobs_failed_CAUSE of each cause

 private:
  struct Kept {
    FlightRecord record;
    // The oldest chunk that waits, since when, and whether its event is there.
    struct Stall {
      session::JobReport::Stalled chunk;
      Time since{};
      bool told = false;
    };
    std::optional<Stall> stall{};
    bool lossy = false;
    RankSet left{};
    RankSet deserters{};  // that left while an operation waited for them
  };

  using Key = std::pair<std::string, std::string>;  // tenant, job

  void add(FlightRecord& record, FlightEvent event) const;
  void look_at_stalls(Kept& kept, const session::JobReport& job, Time now) const;
  void look_at_counters(Kept& kept, const session::JobReport& job, Time now) const;
  void fail(std::map<Key, Kept>::iterator kept, const session::JobEvent& event);
  void keep_ended(FlightRecord record);

  Limits limits_;
  std::array<std::uint64_t, std::size_t{1} + static_cast<std::size_t>(session::last_cause)> failures_{};  // by cause
  std::map<Key, Kept> kept_;
  std::deque<FlightRecord> failed_;  // not taken yet, oldest first
  std::deque<FlightRecord> ended_;   // taken, or no failures; oldest first
};

}  // namespace netsum::telemetry
