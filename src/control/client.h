// The worker's side of the control plane: a connection to one aggregator. Blocking calls, each with a deadline,
// one at a time; no thread of its own. A connection that has ended is opened again by the next call.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "base/time.h"
#include "control/client_options.h"
#include "control/messages.h"
#include "netsum/error.h"
#include "session/registry.h"
#include "telemetry/report.h"

namespace netsum::control {

// The error of an answer that is none: refused, unreachable (busy), deadline or internal, with the aggregator's reason.
[[nodiscard]] Error error_of(const Failure& failure, const std::string& address);

class Client {
 public:
  explicit Client(const ClientOptions& options);  // throws Error: bad_argument (the CA)
  ~Client();
  Client(Client&&) noexcept;

  // Each throws Error: unreachable (with the address), refused (with the aggregator's reason), deadline, internal (an
  // invalid answer).
  // `stop` ends the wait, with `closed`.
  // `keeps_trying`: also finds a daemon that starts a moment later.
  [[nodiscard]] Hello hello(std::chrono::milliseconds deadline, const std::string& job = {},
                            const std::stop_token& stop = {}, bool keeps_trying = true);
  // `rules`: of the request's protocol. `stop` as above.
  [[nodiscard]] session::Admission join(const session::JoinRequest& request, const session::ProtocolRules& rules,
                                        std::chrono::milliseconds deadline, const std::stop_token& stop = {});
  [[nodiscard]] session::HeartbeatReply heartbeat(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch,
                                                  std::chrono::milliseconds deadline);
  void leave(const Life& life, std::chrono::milliseconds deadline);

  // Without waiting: step() when the descriptor has events, and at wake_by(), until there is a reply (to others than
  // heartbeats an empty one). One that is in flight is forgotten. step() throws Error as the call does.
  void begin_hello(std::chrono::milliseconds deadline);
  void begin_heartbeat(const Beat& beat, std::chrono::milliseconds deadline);
  void begin_leave(const Life& life, std::chrono::milliseconds deadline);
  [[nodiscard]] pollfd watched() const;
  [[nodiscard]] Time wake_by() const;
  [[nodiscard]] std::optional<session::HeartbeatReply> step();
  [[nodiscard]] bool refused() const;  // as Channel's

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
