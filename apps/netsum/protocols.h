// What tells protocols apart in `netsum bench`: one object for each, found by its name. Nothing else in apps/ knows which
// protocol runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "netsum/communicator.h"
#include "netsum/types.h"
#include "oracle/reduction.h"

namespace netsum::app {

using oracle::Numbers;

// The flags that protocols read. `bench parallel` declares only some of them: there the others keep these defaults.
struct ProtocolFlags {
  std::string protocol;
  std::string dtype = "float32";
  std::uint32_t packet_elements = 0;      // 0: chosen
  std::string switches, servers, spines;  // addresses; servers: ATP; spines: the others
  double loss = 0, recovery_seconds = 0;
  std::uint32_t survivors = 0, straggler_deadline_ms = 0;
  std::string standbys;  // addresses
  bool private_sums = false;
  std::string fixed_scale = "none";  // with private_sums
  std::uint32_t aggregators = 1;     // of a run on this machine, as are parameter_servers, racks and multicast
  // SwitchML
  std::string wire = "native", rounding = "chance", multicast, profile = "software";
  std::string transport;  // empty: shared memory where all ranks can, else UDP
  bool spin = false, local_checksums = false;
  // ATP
  std::string scaling = "fixed";
  bool congestion_control = true;
  std::uint32_t parameter_servers = 1;
  // SwitchML and NetReduce: "R", or "R,R2"
  std::string racks = "0";
  // NetReduce
  std::uint32_t message_packets = 0;
  std::string first_psn = "random", verbs;
  std::string verbs_gid_index = "first";
  std::uint32_t verbs_port = VerbsSettings{}.port, verbs_ack_timeout = VerbsSettings{}.ack_timeout,
                verbs_retries = VerbsSettings{}.retries, verbs_traffic_class = VerbsSettings{}.traffic_class,
                verbs_service_level = VerbsSettings{}.service_level;

  // Where ranks join, and the flag that says so.
  struct Roots {
    const char* flag;
    std::string addresses;
  };
  [[nodiscard]] Roots roots() const;
  [[nodiscard]] std::string own_switch() const;  // this rank's switch below the roots; empty: none
  // Of a run on this machine: switches with ranks, 0: none; and switches between those and the roots, 0: none.
  struct Levels {
    std::uint32_t racks = 0, rows = 0;
  };
  [[nodiscard]] Levels levels() const;  // throws UsageError
  [[nodiscard]] DType dtype_value() const;
  [[nodiscard]] WireFormat wire_value() const;
  [[nodiscard]] bool nearest_value() const;
  [[nodiscard]] bool chip_value() const;
  [[nodiscard]] std::optional<std::uint32_t> first_psn_value() const;  // none: random
  [[nodiscard]] VerbsSettings verbs_settings() const;
  [[nodiscard]] std::optional<int> fixed_scale_value() const;
};

// What --profile says of SwitchML's data plane. Throws UsageError.
[[nodiscard]] bool is_chip(const std::string& profile);

// A group of daemons that differ only in their seeds.
struct LocalDaemons {
  const char* flag;     // with which workers name them; empty: they do not
  const char* command;  // of netsum, which they run
  std::string name;     // for messages
  std::uint32_t count;
};

class BenchProtocol {
 public:
  virtual ~BenchProtocol() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual bool joins_at_servers() const { return false; }  // ranks need --ps

  // Of `bench all-reduce`. Throws UsageError: flags have values that this protocol does not take.
  virtual void check(const ProtocolFlags& flags) const = 0;
  // For runs of other protocols. Throws UsageError: a flag that only this protocol has is in use.
  virtual void check_unused(const ProtocolFlags& flags) const = 0;

  // Of a run on this machine. Ranks join at all of the first group; of a second, below those, each rank is at one. A third
  // is between the two: the first must be told which of them is above which of the second.
  [[nodiscard]] virtual std::vector<LocalDaemons> local_daemons(const ProtocolFlags& flags) const;
  [[nodiscard]] virtual Protocol settings(const ProtocolFlags& flags) const = 0;
  [[nodiscard]] virtual Numbers numbers(const ProtocolFlags& flags) const = 0;  // of its sums
};

// `names`: of all protocols, for the error. Throws UsageError.
[[nodiscard]] const BenchProtocol& bench_protocol(const std::string& name, const std::string& names);
// Both checks, of `chosen` and of the others.
void check_flags(const BenchProtocol& chosen, const ProtocolFlags& flags);

}  // namespace netsum::app
