// The NETSUM_* variables that the bindings have in common, checked: docs/pytorch.md and docs/mpi.md describe each.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "netsum/communicator.h"

namespace netsum::bindings {

// off: never the switch. probe: the switch if every rank reaches it. force: the switch, or an error.
enum class Mode : std::uint8_t { off, probe, force };
enum class LogLevel : std::uint8_t { off, info, debug };

struct Environment {
  Mode mode = Mode::probe;
  LogLevel log = LogLevel::info;
  std::string protocol = "switchml";
  std::vector<std::string> switches, servers, spines;
  std::string job;
  std::uint32_t threads = 1, slots = 0, packet_elements = 0;
  WireFormat wire = WireFormat::native;
  SharedMemory shared_memory = SharedMemory::automatic;
  std::chrono::milliseconds recovery{0};
  std::string verbs;  // each host's device has a name of its own
  VerbsSettings verbs_settings;
  std::string token, tls_ca;
  PacketSecurity packet_security = PacketSecurity::none;
  bool require_keys = false;
  std::string address;  // under which other hosts reach this host's own shard
  std::chrono::milliseconds connect_deadline{30'000};

  // Where the ranks join, if `switches` is the one that this rank is at: ATP's parameter servers, or the spines of a tree.
  [[nodiscard]] const std::vector<std::string>& above() const { return servers.empty() ? spines : servers; }
  // Whether every host runs a shard, since no aggregator is named.
  [[nodiscard]] bool wants_shards() const { return switches.empty() && above().empty(); }
  // What must be equal on all ranks: names and values.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> shared() const;
  // Everything of Options but the job, the rank and, with shards, the aggregators and their token.
  [[nodiscard]] Options options() const;
};

// Throws Error: bad_argument. The text names the variable and what it may be.
[[nodiscard]] Environment from_environment();

// One variable; empty is as good as not set. Throw as above.
[[nodiscard]] std::string choice(const std::string& name, const std::string& by_default,
                                 const std::vector<std::string>& choices);
[[nodiscard]] double number(const std::string& name, double by_default, double lowest, double highest);
[[nodiscard]] std::uint64_t whole_number(const std::string& name, std::uint64_t by_default, std::uint64_t lowest,
                                         std::uint64_t highest);

}  // namespace netsum::bindings
