// The aggregator's side of the control plane: gRPC in front of a session::Registry, with a thread that keeps its time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "control/client.h"
#include "session/job_view.h"
#include "session/registry.h"

namespace netsum::control {

struct ServerOptions {
  std::string listen;  // host:port
  std::string token, tls_cert, tls_key;
  session::RegistryConfig registry;  // `random` may be empty: the server then takes the system's
};

// What the runtime does for the control plane. Called from control threads, one at a time.
struct ServerHooks {
  std::function<std::vector<Endpoint>()> lanes;             // the data sockets
  std::function<void(const session::StartJob&)> start_job;  // returns once every lane serves the job
  std::function<void(const session::StopJob&)> stop_job;    // returns once no lane does
  // Fills counters and stalled chunks of the whole and of each job in `report` (jobs' statuses are already there).
  std::function<void(telemetry::Report&)> fill_report;
  std::function<session::JobView(std::uint64_t job_epoch)> look;  // may be empty
  std::function<void(const std::string&)> log;
  std::function<std::vector<Endpoint>(const std::string& job)> groups;  // as Hello's; may be empty
  std::string local_socket;  // where ranks on this host get shared memory; empty: nowhere

  // A switch below parameter servers (ATP), or below other switches (NetReduce); all may be empty.
  std::function<std::pair<std::uint32_t, std::uint32_t>()> pool;  // slots of a lane, elements of a slot
  std::function<void(const session::Installation&)> install;      // idempotent; throws Error: refused
  // Idempotent; throws Error: refused, or closed: it knew the job once, and has lost it.
  std::function<session::JobView(const session::RingInstallation&)> install_ring;
  std::function<void(std::uint64_t job_epoch)> uninstall;

  // Switches below this aggregator. Called without locks, from one thread; may block for a while, and throw Error. `again`:
  // that switch was told of the job before.
  std::function<session::JobView(const session::StartJob&, std::uint32_t a_switch, bool again)> tell_switch;
  std::function<void(const std::string& a_switch, std::uint64_t job_epoch)> untell_switch;
};

class Server {
 public:
  Server(ServerOptions options, ServerHooks hooks);  // throws Error: bad_argument, refused
  ~Server();                                         // shuts the registry down, answers what waits, stops
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  [[nodiscard]] std::string address() const;
  [[nodiscard]] telemetry::Report report();
  void lose(std::uint64_t job_epoch, std::uint32_t rank, const std::string& how);  // as Registry's; any thread

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::control
