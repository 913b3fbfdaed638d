// The aggregator's side of the control plane: gRPC in front of a session::Aggregator, with a thread that carries out its
// steps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "control/client.h"
#include "control/listener.h"
#include "control/switch_teller.h"
#include "netsum/tenant.h"
#include "session/job_view.h"
#include "session/registry.h"

namespace netsum::control {

struct ServerOptions {
  std::string listen;  // host:port
  std::string token, tls_cert, tls_key;
  std::string daemon_token{};     // not empty: only who has it tells this process of other daemons' jobs
  std::vector<Tenant> tenants{};  // whom the daemon serves; empty: whoever knows the token, or anybody without one
  ConnectionLimits connections{};
  std::uint32_t joins_of_one_peer = 1024;  // ranks that wait for the rest of their jobs
  SwitchTellerOptions switches{};          // of which tokens, tls_ca and lanes are the caller's to say
  session::RegistryConfig registry{};      // `random` may be empty: the server then takes the system's
};

// Who tells a switch of a job: ranks' endpoints have cookies, other daemons' are believed of daemons, or of who is there.
struct Caller {
  std::string address;  // HOST:PORT
  bool daemon = false;  // has the daemons' token
};

// What the runtime does for the control plane. Those that change or look at the data plane are called from the control
// plane's own thread, one at a time and without its lock: they may wait for the data plane's threads, but for no other
// process. What they throw (Error, std::bad_alloc) refuses the job or the switch's installation; nothing of it is then left.
struct ServerHooks {
  std::function<std::vector<Endpoint>()> lanes;             // the data sockets; any thread, at once
  std::function<void(const session::StartJob&)> start_job;  // returns once every lane serves the job
  std::function<void(const session::StopJob&)> stop_job;    // returns once no lane does
  // Fills counters and stalled chunks of the whole and of each job in `report` (jobs' statuses are already there).
  std::function<void(telemetry::Report&)> fill_report;
  std::function<session::JobView(std::uint64_t job_epoch)> look;  // at a watched job; may be empty
  std::function<void(const std::string&)> log;
  std::function<std::vector<Endpoint>(const std::string& job)> groups;  // as Hello's; may be empty; any thread, at once
  std::string local_socket;                                   // where ranks on this host get shared memory; empty: nowhere
  std::function<bool(const std::string& address)> same_host;  // whether HOST:PORT is of this host; may be empty; any thread

  // A switch below parameter servers (ATP), or below other switches (NetReduce); all may be empty.
  std::function<std::pair<std::uint32_t, std::uint32_t>()> pool;  // slots of a lane, elements of a slot; any thread, at once
  std::uint64_t pool_bytes = 0;                                   // what the pool takes, from the first installation on
  // Idempotent; throws Error: refused.
  std::function<void(const session::Installation&, const Caller&)> install;
  // Idempotent; throws Error: refused, or closed: it knew the job once, and has lost it.
  std::function<session::JobView(const session::RingInstallation&, const Caller&)> install_ring;
  std::function<void(std::uint64_t job_epoch)> uninstall;

  // Switches below this aggregator; `switches.describe` may be empty: it has none.
  SwitchTellerHooks switches;
};

class Server {
 public:
  Server(ServerOptions options, ServerHooks hooks);  // throws Error: bad_argument, refused
  ~Server();                                         // shuts the registry down, answers what waits, stops
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  [[nodiscard]] std::string address() const;
  [[nodiscard]] telemetry::Report report();
  // From now on. Jobs of tenants that are gone run on. Throws Error: bad_argument; the former tenants then stay.
  void set_tenants(std::vector<Tenant> tenants);
  void lose(std::uint64_t job_epoch, std::uint32_t rank, const std::string& how);  // as Registry's; any thread

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::control
