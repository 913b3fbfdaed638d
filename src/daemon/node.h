// The life of a daemon whose lanes sum: `netsum switch` and `netsum ps`. They differ in their options and their services.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/endpoint_cookies.h"
#include "control/server.h"
#include "daemon/data_sockets.h"
#include "daemon/packet_security.h"
#include "daemon/proved_endpoints.h"
#include "daemon/switches.h"
#include "netsum/error.h"
#include "runtime/thread.h"
#include "service/lane.h"
#include "service/service.h"

namespace netsum::daemon {

struct NodeOptions {
  DataSocketsConfig sockets;
  runtime::ThreadOptions threads;
  EndpointCookies cookies;        // by which lanes know the endpoints that receive their packets
  control::ServerOptions server;  // Node fills in what the lanes and services say
  std::string metrics;            // as AggregatorOptions'
};

// `DaemonOptions`: AggregatorOptions, ParameterServerOptions. `own`: this process in words, for errors. `state`: of an
// aggregator. Where ranks join, those of a job that goes on probe anew.
template <class DaemonOptions>
[[nodiscard]] NodeOptions node_options(const DaemonOptions& daemon, const std::string& own, const std::string& state = {}) {
  check_threads(daemon.threads);
  NodeOptions node;
  node.sockets = {daemon.listen, daemon.threads,   daemon.loss,       daemon.loss_seed,
                  daemon.log,    daemon.data_path, daemon.interfaces, daemon.dpdk};
  node.threads = {daemon.pin_threads, daemon.busy_poll};
  node.cookies = cookies_of(daemon.listen, state);
  node.metrics = daemon.metrics;
  control::ServerOptions& server = node.server;
  server.listen = daemon.listen;
  server.token = daemon.token;
  server.tenants = daemon.tenants;
  server.daemon_token = daemon.daemon_token;
  server.tls_cert = daemon.tls_cert;
  server.tls_key = daemon.tls_key;
  server.flight_records = daemon.flight_records;
  server.registry.memory_bytes = daemon.memory_bytes;
  server.registry.switch_parents = daemon.switch_parents;
  server.registry.lanes = daemon.threads;
  server.registry.slots = daemon.slots;
  server.registry.heartbeat_timeout = std::chrono::milliseconds(daemon.heartbeat_timeout_ms);
  server.switches = switch_teller_options(daemon, own, server.registry);
  choose_keys(daemon, server.registry);
  warn_of_no_keys(server.registry, daemon.listen, daemon.log);
  return node;
}

class Node {
 public:
  // Opens the lanes. Throws Error: bad_argument, refused (address in use).
  explicit Node(NodeOptions options);
  ~Node();  // tells every job that it stops, then stops
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  [[nodiscard]] service::Lanes lanes() const;
  [[nodiscard]] const EndpointCookies& cookies() const;
  [[nodiscard]] std::vector<Endpoint> endpoints() const;  // of the lanes
  // Lets ranks join, and other daemons tell of their jobs; once. `services` are on the lanes. `hooks`: what belongs to
  // neither lanes nor services. Throws as the constructor.
  void serve(std::vector<std::unique_ptr<service::Service>> services, control::ServerHooks hooks);

  // From serve() on:
  void set_tenants(std::vector<Tenant> tenants);
  void reload_certificate();   // as Server's
  [[nodiscard]] bool alive();  // as Aggregator's
  [[nodiscard]] std::string address() const;
  void lose(std::uint64_t job_epoch, std::uint32_t rank, const std::string& how);  // as Server's; before serve(): no effect

  // A child of fork() has none of the threads, and must not end them.
  [[nodiscard]] bool is_another_process() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::daemon
