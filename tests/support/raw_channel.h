// Calls of the control plane with messages that no program of netsum sends; also calls that wait, without a thread each.
#pragma once

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "control/border.h"
#include "control/channel.h"

namespace netsum::testing {

class RawChannel {
 public:
  using Outcome = control::Channel::Outcome;
  static constexpr std::chrono::seconds patience{60};

  explicit RawChannel(const control::ClientOptions& options)
      : channel_(options, options.tls_ca.empty() ? nullptr : control::TlsContext::of_caller(options.tls_ca)) {}

  // On its way to the daemon. A connection is proved by a hello first, for which alone this waits.
  void begin(control::Kind kind, control::Bytes payload, std::chrono::milliseconds limit = patience) {
    if (channel_.descriptor() < 0) static_cast<void>(call(control::Kind::hello, control::write(control::HelloRequest{})));
    start(kind, std::move(payload), limit);
    static_cast<void>(look());
  }
  template <class Message>
  void begin(control::Kind kind, const Message& message) {
    begin(kind, control::write(message));
  }
  // Whether it has ended.
  [[nodiscard]] bool look() {
    if (!outcome_) outcome_ = channel_.step(control::Channel::Clock::now());
    return outcome_.has_value();
  }
  // Waits for that.
  Outcome end() {
    while (!look()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(channel_.wake_by() - control::Channel::Clock::now());
      pollfd ready{channel_.descriptor(), channel_.events(), 0};
      ::poll(&ready, 1, static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000)));
    }
    return *std::exchange(outcome_, std::nullopt);
  }

  Outcome call(control::Kind kind, control::Bytes payload, std::chrono::milliseconds limit = patience) {
    start(kind, std::move(payload), limit);
    return end();
  }
  template <class Message>
  Outcome call(control::Kind kind, const Message& message) {
    return call(kind, control::write(message));
  }
  // What is wrong with it, in the daemon's words or the connection's; nothing: it was taken.
  [[nodiscard]] static std::string why(const Outcome& outcome) {
    if (outcome.error) return outcome.error->what();
    return outcome.answer.failure ? outcome.answer.failure->words : "";
  }

 private:
  void start(control::Kind kind, control::Bytes payload, std::chrono::milliseconds limit) {
    outcome_.reset();
    channel_.request(kind, std::move(payload), control::Channel::Clock::now() + limit);
  }

  control::Channel channel_;
  std::optional<Outcome> outcome_;
};

}  // namespace netsum::testing
