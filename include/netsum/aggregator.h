// An aggregator inside this process: `netsum switch` runs one, and a colocated shard on a worker's host is one. For SwitchML
// and NetReduce, a job's ranks join here. For ATP it sums on the way to the job's parameter servers
// (netsum/parameter_server.h), and in a NetReduce tree on the way to the aggregator where ranks join: these tell it of the
// job.
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

// Where an aggregator sums SwitchML's packets: docs/data-planes.md.
enum class DataPlane {
  sockets,  // in its own threads
  xdp,      // in the kernel, where a network interface's driver has received them; the chip profile alone
  bmv2,     // in a P4 switch between the ranks and this host, which bmv2 runs; the chip profile alone
};

struct AggregatorOptions {
  std::string listen = "127.0.0.1:0";   // control (TCP); data (UDP) takes the same port + thread, or any free port if 0
  std::uint32_t threads = 1;            // I/O threads; each has its own socket and slots
  std::uint32_t slots = default_slots;  // slots of 256 elements (two versions each), over all threads
  // ATP: the aggregator slots of each thread, which all jobs share, and the elements of each; a job's packets have no more.
  // 0: 4096 slots of 2048 elements. At an address of the loopback device slots of 10880. As many as hold as many elements.
  std::uint32_t pool_slots = 0, pool_elements = 0;
  // SwitchML, NetReduce: switches below this one but not next to it; the value is the next switch upstream.
  std::map<std::string, std::string> switch_parents;
  bool pin_threads = false;
  // SwitchML: results go once to an IP multicast group of the job, and by unicast to ranks that are not in it or do not hear
  // it. "GROUP:PORT", or "GROUP/BITS:PORT" for one group per job; thread i has PORT + i. Needs an IPv4 address to listen at.
  // Empty: unicast to each rank.
  std::string multicast;
  // SwitchML: the data plane is as a chip's would be (docs/protocol-switchml-chip.md), in place of the software switch. Its
  // packets have no checksum but Ethernet's, so it must be allowed.
  bool chip = false, allow_fcs_only = false;
  DataPlane data_plane = DataPlane::sockets;
  // Of the threads' sockets: for all that the data plane does not take.
  DataPath data_path = DataPath::sockets;
  // Of DataPlane::xdp and DataPath::xdp: where packets of ranks and of other switches come. DataPath::xdp takes that with
  // listen's address, if none is given.
  std::vector<std::string> interfaces;
  DpdkOptions dpdk;  // of DataPath::dpdk: the threads have this address, and the ports of `listen`
  // Of DataPlane::bmv2: "host:port" of the switch's runtime interface.
  std::string target;
  bool busy_poll = true;          // threads poll for a moment before they sleep
  std::string metrics;            // metrics and a web page: "host:port", or a port of listen's host; empty: none
  std::string flight_records;     // a folder, to which the record of each job that fails is written; empty: none
  std::string state;              // a folder for what outlives a restart: ATP's jobs go on with their switch; empty: none
  std::string token;              // shared secret that every worker must show; empty: none
  std::string daemon_token;       // shared secret of daemons, needed to tell this one of jobs; empty: none
  std::string tls_cert, tls_key;  // PEM files: switches the control channel to TLS
  std::string tls_ca;             // PEM file: the control channels of the switches below are TLS
  // Of packets between hosts: tag with TLS, none without, since keys travel over TLS alone (docs/security.md). More without
  // TLS is an error. Ranks may ask for more.
  std::optional<PacketSecurity> packet_security;
  bool require_keys = false;             // no job without keys
  std::vector<std::string> local_users;  // users, by name or number, whose ranks may share memory, besides its own and root
  std::vector<Tenant> tenants;           // in place of `token`: each has a token, jobs and limits of its own
  std::uint64_t memory_bytes = 1ULL << 30;                            // for all jobs together
  std::uint32_t heartbeat_timeout_ms = default_heartbeat_timeout_ms;  // a rank silent for this long is dead
  double loss = 0;  // tests and benchmarks: drop each received datagram with this probability
  std::uint64_t loss_seed = 1;
  std::function<void(const std::string&)> log;
};

class NETSUM_API Aggregator {
 public:
  explicit Aggregator(const AggregatorOptions& options);  // throws Error: bad_argument, refused (address in use)
  Aggregator(Aggregator&&) noexcept;
  Aggregator& operator=(Aggregator&&) noexcept;
  ~Aggregator();  // tells every job that it stops, then stops

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
