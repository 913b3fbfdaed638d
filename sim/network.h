// The network between the simulated hosts: determines each datagram's fate; the cluster delivers.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/endpoint.h"
#include "base/time.h"
#include "sim/faults.h"
#include "sim/random.h"
#include "sim/scenario.h"

namespace netsum::sim {

using HostId = std::uint32_t;

struct Datagram {
  Endpoint from, to;
  std::vector<std::byte> bytes;
  bool marked = false;  // ECN: congestion experienced
};

class Network {
 public:
  Network(const Scenario& scenario, std::size_t hosts, Tally& tally);

  struct Arrival {
    Time at;
    Datagram datagram;
  };
  // The arrivals of a datagram sent now: none, one or several, damaged or not. Valid until the next call. `live`: it belongs
  // to a running job.
  [[nodiscard]] std::span<Arrival> send(Time now, HostId from, HostId to, const Endpoint& source,
                                        const Endpoint& destination, std::span<const std::byte> bytes, bool live);

  // One direction is dead until `until`; never: it does not heal.
  void cut(HostId from, HostId to, Time until);
  [[nodiscard]] bool is_dead(HostId from, HostId to) { return link(from, to).cut_until == never; }
  // From now on every `every`th datagram of one direction is lost, as `kind`. `port`: only of those that come from it, or go
  // there; 0: of all.
  void lose_every(std::uint32_t every, HostId from, HostId to, std::uint16_t port, Fault kind);

  // Control messages travel over a reliable transport; the remaining faults are calls that fail and are made again.
  struct ControlFate {
    bool lost = false, repeated = false;
    Duration delay{};
  };
  [[nodiscard]] ControlFate control(Time now, HostId from, HostId to);

  [[nodiscard]] const char* last_fate() const { return fate_; }  // of the last datagram, for the trace

 private:
  struct Link {
    std::uint64_t seed = 0, packets = 0, control_calls = 0;
    Time burst_until{}, cut_until{}, last_arrival{};
    std::uint32_t lost_every = 0, since_lost = 0;
    std::uint16_t lossy_port = 0;
    Fault lost_as{};
  };
  struct Port {
    Time free{};  // when the queue has drained
  };

  [[nodiscard]] Link& link(HostId from, HostId to);
  [[nodiscard]] bool chance(const Link& link, Fault fault, double probability);
  [[nodiscard]] std::uint64_t draw(const Link& link, Fault fault, std::uint64_t purpose) const;
  void injected(Fault fault, bool live);
  [[nodiscard]] bool pass(Port& port, Time now, std::size_t bytes, bool live, bool& marked, Duration& delay);
  void damage(std::vector<std::byte>& bytes, std::uint64_t bit);
  void arrive(Link& link, Time at, Datagram datagram, bool live);

  const LinkFaults plan_;
  const FaultSet kinds_;
  const std::uint64_t most_faults_;
  std::uint64_t faults_ = 0;
  const std::uint64_t seed_;
  const std::size_t hosts_;
  std::unordered_map<std::uint64_t, Link> links_;  // by from * hosts + to, once used
  std::vector<Port> up_, down_;
  std::unordered_map<std::uint64_t, bool> whole_;  // of what was damaged, by its hash before and after
  std::vector<Arrival> arrivals_;
  Tally& tally_;
  const char* fate_ = "";
};

}  // namespace netsum::sim
