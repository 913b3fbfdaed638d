// The life of a daemon whose lanes sum: `netsum switch` and `netsum ps`. They differ in their options and their services.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/endpoint_cookies.h"
#include "control/server.h"
#include "daemon/data_sockets.h"
#include "netsum/daemon_options.h"
#include "runtime/thread.h"
#include "service/lane.h"
#include "service/service.h"

namespace netsum::daemon {

struct NodeOptions {
  DataSocketsConfig sockets;
  std::uint32_t number_of_threads = 1;  // at most as many as lanes
  runtime::ThreadOptions threads;
  EndpointCookies cookies;        // by which lanes know the endpoints that receive their packets
  control::ServerOptions server;  // Node fills in what the lanes and services say
  std::string metrics;            // as DaemonOptions'
};

// `slots`: of all threads. `own`: this process in words, for errors. `state`: of an aggregator. Where ranks join, those of a
// job that goes on probe anew. Throws Error: bad_argument.
[[nodiscard]] NodeOptions node_options(const DaemonOptions& daemon, std::uint32_t slots, const std::string& own,
                                       const std::string& state = {});

class Node {
 public:
  // Opens the lanes, each with one of the threads. Throws Error: bad_argument, refused (address in use).
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
