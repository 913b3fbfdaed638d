// An ATP parameter server inside this process: `netsum ps` runs one. It sums what the switches below it leave, sends the
// results, and admits the job's ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "netsum/error.h"
#include "netsum/export.h"
#include "netsum/tenant.h"
#include "netsum/types.h"

namespace netsum {

struct ParameterServerOptions {
  std::string listen = "127.0.0.1:0";  // control (TCP); data (UDP) takes the same port + thread, or any free port if 0
  std::uint32_t threads = 1;           // I/O threads; the switches below need at least as many
  std::uint32_t slots = 65536;         // chunks of 256 elements that all jobs may have in flight, over all threads
  bool pin_threads = false;
  DataPath data_path = DataPath::sockets;  // as AggregatorOptions', with what belongs to it
  std::vector<std::string> interfaces;
  DpdkOptions dpdk;
  bool busy_poll = true;                              // threads poll for a moment before they sleep
  std::map<std::string, std::string> switch_parents;  // for switches not next to this server: the next one upstream
  std::string indexing = "rehash";  // of chunks to the switches' slots: rehash, hash or linear (ATP §3.6, §5.4.2)
  // For comparison: if not 0, each switch's slots are divided into this many parts, one per job, instead of being shared one
  // by one.
  std::uint32_t parts = 0;
  std::uint32_t first_part = 0, own_parts = 0;  // this server's parts, which no other server may have; own_parts 0: the rest
  std::string overflow = "exact";  // or saturating, as in the paper: not bit-reproducible (docs/protocol-atp.md)
  std::string scaling = "fixed";   // or dynamic: smaller scales where 10^8 would overflow (ATP §B.3)
  std::string token;               // shared secret that every worker must show, and this server to the switches; empty: none
  std::string daemon_token;        // shared secret of daemons, proved to the switches; empty: none
  std::string tls_cert, tls_key;   // PEM files: switches the control channel to TLS
  std::string tls_ca;              // PEM file: the switches' control channels are TLS
  // As AggregatorOptions' (netsum/aggregator.h).
  std::optional<PacketSecurity> packet_security;
  bool require_keys = false;
  std::vector<Tenant> tenants;              // in place of `token`: each has a token, jobs and limits of its own
  std::uint64_t memory_bytes = 1ULL << 30;  // for all jobs together
  std::uint32_t heartbeat_timeout_ms = default_heartbeat_timeout_ms;  // a rank silent for this long is dead
  double loss = 0;  // tests and benchmarks: drop each received datagram with this probability
  std::uint64_t loss_seed = 1;
  std::string metrics;         // metrics and a web page: "host:port", or a port of listen's host; empty: none
  std::string flight_records;  // a folder, to which the record of each job that fails is written; empty: none
  std::function<void(const std::string&)> log;
};

class NETSUM_API ParameterServer {
 public:
  explicit ParameterServer(const ParameterServerOptions& options);  // throws Error: bad_argument, refused (address in use)
  ParameterServer(ParameterServer&&) noexcept;
  ~ParameterServer();  // tells every job that it stops, then stops

  // From now on; jobs of tenants that are gone run on. Any thread. Throws Error: bad_argument; the former tenants then stay.
  void set_tenants(std::vector<Tenant> tenants);
  // Reads tls_cert and tls_key again, for connections from now on. Any thread. Throws Error: bad_argument; the former ones
  // then stay.
  void reload_certificate();

  // False: one of its threads has hung for 10 seconds, as earlier calls found. Never waits. Any thread.
  [[nodiscard]] bool alive();
  [[nodiscard]] std::string address() const;  // "host:port" to give to workers; the real port if 0 was asked for

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum
