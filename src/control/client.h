// The worker's side of the control plane: one aggregator's gRPC service. Blocking calls, each with a deadline.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "netsum/error.h"
#include "session/chip_profile.h"
#include "session/job_view.h"
#include "session/netreduce_job.h"
#include "session/registry.h"
#include "telemetry/report.h"

namespace netsum::control {

// A rank in a life of its job.
struct Life {
  std::uint64_t job_epoch = 0;
  std::uint32_t rank = 0, rank_epoch = 0;
  session::Farewell farewell{};  // in Leave
};

struct Hello {
  std::vector<Endpoint> lanes;                      // the aggregator's data sockets, one per thread
  std::uint64_t instance = 0;                       // random, new at every start of the aggregator
  std::uint32_t pool_slots = 0, pool_elements = 0;  // of each lane, for ATP; 0: not a switch
  std::string local_socket;                         // for ranks on its host; empty: none
  std::vector<Endpoint> groups;                     // of the job, one per lane: results by IP multicast; empty: none
  bool same_host = false;                           // the aggregator sees this process at an address of its own host
  std::uint64_t receive_bytes = 0;  // of each lane's receive buffer, including the kernel's overhead per packet; 0: unknown
  bool in_wire = false;             // a bump in the wire: its lanes are for other bumps
  PacketSecurity security = PacketSecurity::none;  // of jobs' packets, if a rank asks for no more
  std::optional<session::ChipProfile> chip;        // SwitchML's data plane; none: a software switch
};

struct ClientOptions {
  std::string address;  // host:port
  std::string token;
  std::string tls_ca;
  std::string daemon_token{};  // a daemon's, for other daemons
};

class Client {
 public:
  explicit Client(ClientOptions options);
  ~Client();
  Client(Client&&) noexcept;

  // Each throws Error: unreachable (with the address), refused (with the aggregator's reason), deadline, internal (an
  // invalid answer).
  [[nodiscard]] Hello hello(std::chrono::milliseconds deadline, const std::string& job = {});
  // `rules`: of the request's protocol. `stop` ends the wait, with `closed`.
  [[nodiscard]] session::Admission join(const session::JoinRequest& request, const session::ProtocolRules& rules,
                                        std::chrono::milliseconds deadline, const std::stop_token& stop = {});
  [[nodiscard]] session::HeartbeatReply heartbeat(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch,
                                                  std::chrono::milliseconds deadline);
  void leave(const Life& life, std::chrono::milliseconds deadline);
  [[nodiscard]] telemetry::Report report(std::chrono::milliseconds deadline);
  // For operators.
  void end(const session::NamedJob& job, std::chrono::milliseconds deadline);
  void drain(bool undo, std::chrono::milliseconds deadline);
  [[nodiscard]] std::string flight_record(const session::NamedJob& job, std::chrono::milliseconds deadline);  // JSON

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::control
