// The aggregator's side of the control plane: connections (channel_server.h) in front of a session::Rendezvous, and a thread
// that carries out its steps.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"
#include "control/connection_limits.h"
#include "control/switch_teller.h"
#include "netsum/tenant.h"
#include "session/job_view.h"
#include "session/registry.h"
#include "session/switch_message.h"
#include "telemetry/metrics_server.h"

namespace netsum::control {

struct ServerOptions {
  std::string listen;  // host:port
  std::string token, tls_cert, tls_key;
  std::string daemon_token{};     // not empty: needed to tell this process of other daemons' jobs
  std::vector<Tenant> tenants{};  // empty: any caller that knows `token`; any at all if that is empty
  ConnectionLimits connections{};
  std::uint32_t joins_of_one_peer = 1024;           // ranks that wait for the rest of their jobs
  std::string flight_records{};                     // a folder for records of jobs that fail; empty: none
  SwitchTellerOptions switches{};                   // the caller fills in tokens and tls_ca
  session::RegistryConfig registry{};               // `random` may be empty: then the system's source
  std::uint32_t threads = 1;                        // as Hello's
  Duration hangs_after = std::chrono::seconds(10);  // as alive() says
};

// The caller that tells a switch of a job. Ranks' endpoints have cookies; other daemons' endpoints are believed if the
// caller is a daemon, or at their address.
struct Caller {
  std::string address;  // HOST:PORT
  bool daemon = false;  // has proved the daemons' token
};

// The runtime's services for the control plane. Hooks that change or read the data plane are called from the control plane's
// thread, one at a time and without its lock: they may wait for the data plane's threads, but not for another process. An
// exception (Error, std::bad_alloc) refuses the job or the switch's installation, and leaves nothing behind.
struct ServerHooks {
  std::function<std::vector<Endpoint>()> lanes;             // the data sockets; any thread, never waits
  std::function<void(const session::StartJob&)> start_job;  // returns once every lane serves the job
  std::function<void(const session::StopJob&)> stop_job;    // returns once no lane does
  // Fills in `report`'s counters and stalled chunks, in all and per job (jobs' statuses are already there).
  std::function<void(telemetry::Report&)> fill_report;
  std::function<session::JobView(std::uint64_t job_epoch)> look;  // at a watched job; may be empty
  std::function<void(const std::string&)> log;
  std::function<void()> reach_lanes;                                    // returns once each lane has answered; may be empty
  std::function<std::vector<Endpoint>(const std::string& job)> groups;  // as Hello's; may be empty; any thread, never waits
  std::string local_socket;                                   // where ranks on this host get shared memory; empty: none
  std::function<bool(const std::string& address)> same_host;  // whether HOST:PORT is of this host; may be empty; any thread

  std::vector<session::Profile> profiles{};       // as Hello's
  std::optional<PacketSecurity> said_security{};  // in Hello, in place of what the registry has

  // At a switch below other aggregators; all may be empty. Each throws Error: refused.
  std::function<session::InstallationCost(const session::SwitchMessage&)> cost;
  std::function<session::JobView(const session::SwitchMessage&, const Caller&)> install;  // idempotent
  std::function<void(std::uint64_t job_epoch)> uninstall;

  // Switches below this aggregator; `switches.describe` empty: none.
  SwitchTellerHooks switches;
};

class Server {
 public:
  Server(ServerOptions options, ServerHooks hooks);  // throws Error: bad_argument, refused
  ~Server();                                         // shuts the registry down, answers pending calls, stops
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // False: the control plane, or a lane, has not answered an earlier call for hangs_after. Never waits. Any thread.
  [[nodiscard]] bool alive();
  [[nodiscard]] std::string address() const;
  [[nodiscard]] telemetry::Report report();
  // The page's viewers: tenants, if there are any. Any thread.
  [[nodiscard]] telemetry::PageAdmittance page_admittance();
  // Applies from now on. Jobs of removed tenants run on. Throws Error: bad_argument; the former tenants then stay.
  void set_tenants(std::vector<Tenant> tenants);
  // Reads the files of tls_cert and tls_key again, for connections from now on. Throws Error: bad_argument; the former ones
  // then stay.
  void reload_certificate();
  void lose(std::uint64_t job_epoch, std::uint32_t rank, const std::string& how);  // as Registry's; any thread

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::control
