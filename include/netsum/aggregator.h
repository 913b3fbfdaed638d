// An aggregator inside this process: `netsum switch` runs one, and a colocated shard on a worker's host is one. For SwitchML
// and NetReduce, a job's ranks join here. For ATP it sums on the way to the job's parameter servers
// (netsum/parameter_server.h), and in a NetReduce tree on the way to the aggregator where ranks join: these tell it of the
// job.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "netsum/daemon_options.h"
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

struct AggregatorOptions : DaemonOptions {
  std::uint32_t slots = default_slots;  // slots of 256 elements (two versions each), over all lanes
  // ATP: the aggregator slots of each lane, which all jobs share, and the elements of each; a job's packets have no more.
  // 0: 4096 slots of 2048 elements. At an address of the loopback device slots of 10880. As many as hold as many elements.
  std::uint32_t pool_slots = 0, pool_elements = 0;
  // SwitchML: results go once to an IP multicast group of the job, and by unicast to ranks that are not in it or do not hear
  // it. "GROUP:PORT", or "GROUP/BITS:PORT" for one group per job; lane i has PORT + i. Needs an IPv4 address to listen at.
  // "off": unicast to each rank. Empty: unicast, but at an IPv4 address of the loopback device groups within this host.
  std::string multicast{};
  // SwitchML: the data plane is as a chip's would be (docs/protocol-switchml-chip.md), in place of the software switch. Its
  // packets have no checksum but Ethernet's, so it must be allowed.
  bool chip = false, allow_fcs_only = false;
  // `data_path` is of what the data plane does not take; both need `interfaces` where they are xdp.
  DataPlane data_plane = DataPlane::sockets;
  std::string target{};  // of DataPlane::bmv2: "host:port" of the switch's runtime interface
  std::string state{};   // a folder for what outlives a restart: ATP's jobs go on with their switch; empty: none
  std::vector<std::string>
      local_users{};  // users, by name or number, whose ranks may share memory too; its own and root may
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
