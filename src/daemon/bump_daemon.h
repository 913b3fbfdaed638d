// A bump in the wire inside this process: ports, the threads that serve them and their rings, and status for operators.
// `netsum bump` runs one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "netsum/types.h"

namespace netsum::daemon {

struct BumpOptions {
  std::vector<std::string> ports;  // transport::open_port
  std::vector<std::string> rings;  // netreduce::parse_ring
  // Addresses, or lists separated by commas, of the hosts whose connections are learned, and which alone may join. Needed
  // with rings.
  std::vector<std::string> hosts;
  std::string state;   // file of known connections (connection_file.h); empty: they are forgotten at the end
  std::string listen;  // "host:port" of the control channel: for `netsum status`, and where ranks with RDMA hardware join;
                       // empty: none
  std::string metrics, flight_records;  // as in AggregatorOptions, like the rest
  std::uint32_t slots = default_slots;
  std::uint32_t heartbeat_timeout_ms = default_heartbeat_timeout_ms;
  std::string token, tls_cert, tls_key;
  // Rings of hosts in several racks, with a bump in each: the bumps send each other datagrams, at `listen`'s address and
  // port. Ranks join at one of them, and name the one next to them. Needs `listen`; then there may be no ports.
  bool racks = false;
  std::map<std::string, std::string> switch_parents;  // as in AggregatorOptions, like the next two
  std::string daemon_token, tls_ca;
  // With `racks`, for rings with racks=, whose connections are learned. Of a rack's bump: its rack, and "host:port" of the
  // root. Of the root: "host:port" of each rack's bump.
  std::optional<std::uint32_t> rack;
  std::string root;
  std::vector<std::string> rack_bumps;
  // One port, on a switch that redirects the RoCE packets of the rings' hosts to it, and delivers what returns there.
  bool one_arm = false;
  std::uint32_t threads = 1;  // 1 to 64; more than one: all but the first serve rings, and all ports are Ethernet interfaces
  bool pin_threads = false;
  std::function<void(const std::string&)> log;
};

class BumpDaemon {
 public:
  explicit BumpDaemon(const BumpOptions& options);  // throws Error: bad_argument, refused; std::runtime_error (the state)
  BumpDaemon(BumpDaemon&&) noexcept;
  ~BumpDaemon();  // the wire is cut

  void reload_certificate();                  // as Aggregator's
  [[nodiscard]] bool alive();                 // as Aggregator's
  [[nodiscard]] std::string address() const;  // as Aggregator's; empty if it does not listen
  [[nodiscard]] std::string summary() const;  // traffic carried so far, in one line

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::daemon
