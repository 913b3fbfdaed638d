// What happens to a job at an aggregator, for people who ask later: the registry says it, the flight recorder
// (telemetry/flight_recorder.h) keeps it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/time.h"

namespace netsum::session {

// Why a job failed. The numbers travel: later ones come last.
enum class FailureCause : std::uint8_t {
  none,
  silent,         // a rank's heartbeats stayed away
  died,           // a rank is known to have died
  gave_up,        // a rank went away while it joined
  left,           // a rank left while others waited for it
  mismatch,       // ranks issued different calls
  started_again,  // a later start of the same job is here, or a rank has begun anew
  shutting_down,
  not_started,      // the lanes could not serve it
  refused,          // all ranks were refused
  other,            // the text says: a switch that is needed, for example
  deadline,         // an operation did not end in time
  aggregator_lost,  // a rank heard nothing any more from one of the job's aggregators, or its packets did not come through
  ended_by_operator,
  straggler,  // the others go on without a rank that is late with its call
};
inline constexpr auto last_cause = FailureCause::straggler;

// Why a rank leaves; none: in good order.
struct Farewell {
  FailureCause cause = FailureCause::none;
  std::string reason{};
};

struct JobEvent {
  enum class Kind : std::uint8_t {
    joined,
    gave_up,       // joining
    rank_refused,  // the job waits for another
    refused,       // the whole job, before it ran
    started,
    left,
    failed,
    ended,
  };
  Kind kind = Kind::joined;
  std::string job, tenant;
  std::uint64_t job_epoch = 0;  // 0: the job does not run yet
  std::uint32_t world_size = 0;
  Time at{};
  std::optional<std::uint32_t> rank{};
  std::string what{};                       // in words; may be empty
  FailureCause cause = FailureCause::none;  // of Kind::failed and refused
};

[[nodiscard]] constexpr bool is_end(JobEvent::Kind kind) {
  return kind == JobEvent::Kind::refused || kind == JobEvent::Kind::failed || kind == JobEvent::Kind::ended;
}

}  // namespace netsum::session
