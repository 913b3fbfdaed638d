// A job as an aggregator's lanes see it: its counters, and the chunks that wait for ranks.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/counters.h"
#include "base/endpoint.h"
#include "session/registry.h"

namespace netsum::session {

struct JobReport {
  JobStatus job;
  Counters counters{};
  std::map<std::string, Endpoint> dropped_from{};  // by the name of a counter: the source of one of its packets
  struct Stalled {
    std::uint64_t operation;
    std::uint32_t chunk, slot;
    std::vector<std::uint32_t> missing;
  };
  std::vector<Stalled> stalled{};  // oldest first, a few
  // What the data plane calls an operation: "message" with a packet for a chunk (NetReduce), "sequence", the number of a
  // chunk in the job's stream (ATP).
  std::string stalled_unit = "operation";

  double stalled_seconds = 0;  // for how long the oldest has waited, to half a second; 0: for less than one

  // Where the job is, and what happened to it: who knows fills it in.
  struct Host {
    std::string address;
    std::vector<std::uint32_t> ranks;
    std::string name{};                      // as its ranks say; empty: unknown
    std::vector<std::uint32_t> processes{};  // of the ranks, in the same order; 0: unknown
  };
  struct Switch {
    std::string address, parent;       // the next one on the way to the aggregator; empty: that itself
    std::vector<std::uint32_t> ranks;  // that are at it
  };
  struct Event {
    double age_seconds = 0;
    std::string kind;
    std::optional<std::uint32_t> rank;
    std::string what;
  };
  std::vector<Host> hosts{};
  std::vector<Switch> switches{};
  std::vector<Event> events{};  // the latest, oldest first
};

}  // namespace netsum::session
