// The control service of p4lang/p4app-switchML: a session, and with it where workers and switch are; barriers and
// broadcasts among workers. A state machine: calls in, answers and the switch's settings out. There is one session at a
// time, and rank 0 begins it. docs/protocol-p4app.md has the order of calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "p4app/grpc_status.h"
#include "p4app/messages.h"

namespace netsum::p4app {

class Controller {
 public:
  using Call = std::uint64_t;

  struct Answer {
    Call call = 0;
    GrpcStatus status = GrpcStatus::ok;
    std::string bytes;  // of the message; of an error its text
  };
  struct Hooks {
    std::function<void(std::uint64_t session, std::uint32_t workers, std::uint32_t elements)> begin;
    std::function<void(std::uint32_t rank, const Station&)> worker;  // of the session that has begun
  };

  Controller(const Station& own, Hooks hooks) : own_(own), hooks_(std::move(hooks)) {}

  void on_call(Call call, std::string_view path, std::string_view payload);
  void on_gone(Call call);  // whoever made it waits no longer
  [[nodiscard]] std::vector<Answer> take_answers();

 private:
  struct Session {
    std::uint64_t number = 0;
    std::uint32_t workers = 0;
    std::uint64_t packet_size = 0;
    std::vector<std::optional<std::uint32_t>> addresses;  // by rank
  };
  struct Broadcast {
    std::uint32_t root = 0;
    std::vector<bool> called;  // by rank
    std::optional<std::uint64_t> value;
    struct Waiting {
      Call call;
      std::uint32_t rank;
    };
    std::vector<Waiting> waiting;
  };

  void udp_session(Call call, const UdpSessionRequest& request);
  void barrier(Call call, const BarrierRequest& request);
  void broadcast(Call call, const BroadcastRequest& request);
  void refuse(Call call, const std::string& why, GrpcStatus status = GrpcStatus::invalid_argument);
  template <class Message>
  void answer(Call call, const Message& message) {
    answers_.push_back({call, GrpcStatus::ok, to_bytes(message)});
  }

  const Station own_;
  const Hooks hooks_;
  std::optional<Session> session_;
  std::vector<Call> at_barrier_;
  std::vector<Broadcast> broadcasts_;  // oldest first
  std::vector<Answer> answers_;
};

}  // namespace netsum::p4app
