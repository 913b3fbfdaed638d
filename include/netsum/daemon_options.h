// Options that an aggregator (netsum/aggregator.h) and a parameter server (netsum/parameter_server.h) have in common.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "netsum/tenant.h"
#include "netsum/types.h"

namespace netsum {

struct DaemonOptions {
  std::string listen = "127.0.0.1:0";  // control (TCP); data (UDP) takes the same port + lane, or any free port if 0
  std::uint32_t threads = 1;           // I/O threads
  // Each has a socket and slots of its own, and one of the threads. A job has as many as this daemon or its ranks have
  // threads, whichever is more, and at most these. 0: one for each thread, as always where the data plane is not this
  // process's sockets.
  std::uint32_t lanes = 0;
  bool pin_threads = false;  // thread i to the i-th allowed CPU, those of the interface's NUMA node first
  bool busy_poll = true;     // threads poll for a moment before they sleep
  DataPath data_path = DataPath::sockets;
  // Of DataPath::xdp: where packets of ranks and of other switches come. None: that with listen's address.
  std::vector<std::string> interfaces{};
  DpdkOptions dpdk{};  // of DataPath::dpdk: the lanes have this address, and the ports of `listen`
  // Of switches below this daemon but not next to it (an aggregator's: for SwitchML and NetReduce): the next switch
  // upstream.
  std::map<std::string, std::string> switch_parents{};
  std::string token{};         // shared secret that every worker must show, and a daemon to the switches below; empty: none
  std::string daemon_token{};  // shared secret of daemons, needed to tell one of jobs; empty: none
  std::string tls_cert{}, tls_key{};  // PEM files: switches the control channel to TLS
  std::string tls_ca{};               // PEM file: the control channels of the switches below are TLS
  // Of packets between hosts: tag with TLS, none without, since keys travel over TLS alone (docs/security.md). More without
  // TLS is an error. Ranks may ask for more.
  std::optional<PacketSecurity> packet_security{};
  bool require_keys = false;                // no job without keys
  std::vector<Tenant> tenants{};            // in place of `token`: each has a token, jobs and limits of its own
  std::uint64_t memory_bytes = 1ULL << 30;  // for all jobs together
  std::uint32_t heartbeat_timeout_ms = default_heartbeat_timeout_ms;  // a rank silent for this long is dead
  std::uint32_t survivor_timeout_ms = default_survivor_timeout_ms;    // likewise, in a job that goes on without it
  std::string metrics{};         // metrics and a web page: "host:port", or a port of listen's host; empty: none
  std::string flight_records{};  // a folder, to which the record of each job that fails is written; empty: none
  double loss = 0;               // tests and benchmarks: drop each received datagram with this probability
  std::uint64_t loss_seed = 1;
  std::function<void(const std::string&)> log{};
};

}  // namespace netsum
