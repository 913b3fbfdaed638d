// The NETSUM_* variables, checked: the one place where a binding learns what they say. docs/pytorch.md describes each.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bindings/settings/reader.h"
#include "netsum/communicator.h"

namespace netsum::settings {

// Whether all-reduces must not, should or must go through the switch.
enum class Mode : std::uint8_t { off, probe, force };
// Nothing; a line a group, at rank 0; everything, at every rank.
enum class LogLevel : std::uint8_t { off, info, debug };

[[nodiscard]] const char* to_string(Mode mode);
[[nodiscard]] const char* to_string(LogLevel level);

struct Settings {
  Mode mode = Mode::probe;
  LogLevel log = LogLevel::info;
  std::string job;                    // first part of the names of jobs; empty: the binding's own
  std::vector<std::string> switches;  // NETSUM_SWITCH
  std::vector<std::string> above;     // where ranks join if `switches` is the one they are at: NETSUM_PS or NETSUM_SPINE
  std::string address;                // where other hosts reach a shard of this host
  std::string tls_cert, tls_key;      // PEM files of such a shard; empty: it has no TLS
  // What Communicator::connect() needs, but for job, generation, rank and world_size. No aggregators: none is named.
  Options options;
};

// What the variables say, and `settings` where they are silent. Throws Error: bad_argument, with a text that names the
// variable and what it may be.
[[nodiscard]] Settings read(const Lookup& lookup = &from_environment, Settings settings = {});

// Of one job.
[[nodiscard]] std::uint32_t most_ranks(const Protocol& protocol);

// The variables that must be equal on all ranks, with what they say here.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> common_to_all_ranks(const Settings& settings);

}  // namespace netsum::settings
