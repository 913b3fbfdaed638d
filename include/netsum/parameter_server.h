// An ATP parameter server inside this process: `netsum ps` runs one. It sums what the switches below it leave, sends the
// results, and admits the job's ranks.
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

struct ParameterServerOptions : DaemonOptions {
  std::uint32_t slots = 65536;      // chunks of 256 elements that all jobs may have in flight, over all lanes
  std::string indexing = "rehash";  // of chunks to the switches' slots: rehash, hash or linear (ATP §3.6, §5.4.2)
  // For comparison: if not 0, each switch's slots are divided into this many parts, one per job, instead of being shared one
  // by one.
  std::uint32_t parts = 0;
  std::uint32_t first_part = 0, own_parts = 0;  // this server's parts, which no other server may have; own_parts 0: the rest
  std::string overflow = "exact";  // or saturating, as in the paper: not bit-reproducible (docs/protocol-atp.md)
  // Or paper: Figures 7 and 17 as printed, for comparison. Or chip: jobs keep to what a chip can sum (docs/protocol-atp.md).
  std::string rules = "netsum";
  std::string scaling = "fixed";  // or dynamic: smaller scales where 10^8 would overflow (ATP §B.3)
  bool allow_fcs_only = false;    // with rules chip: its packets have no checksum but Ethernet's frame check
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
