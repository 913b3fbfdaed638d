// A caller's connection to a daemon: it finds the host, connects, does TLS and proves the tokens as far as needed, and sends
// one request at a time. It never waits: its owner polls its descriptor, and calls step() when that is ready or time is up.
// One thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "control/client_options.h"
#include "control/ends.h"
#include "control/lookup.h"
#include "netsum/error.h"
#include "transport/system/own_descriptor.h"

namespace netsum::control {

class Channel {
 public:
  using Clock = std::chrono::steady_clock;

  // Throws Error: bad_argument (the address, the CA's file). `tls`: of options.tls_ca, or null.
  Channel(ClientOptions options, std::shared_ptr<const TlsContext> tls, Resolve resolve = &look_up);

  // One that is in flight is forgotten. `keeps_trying`: also finds a daemon that starts a moment later. Otherwise each
  // address is tried once.
  void request(Kind kind, Bytes payload, Clock::time_point deadline, bool keeps_trying = false);
  [[nodiscard]] bool busy() const { return busy_; }
  void give_up();  // the request in flight; the daemon learns of it, as the connection ends
  void forget();   // likewise, but the connection stays if the daemon's answer can be left out when it comes

  // For poll(): -1: there is no descriptor now.
  [[nodiscard]] int descriptor() const { return socket_ ? socket_->number() : -1; }
  [[nodiscard]] short events();
  [[nodiscard]] Clock::time_point wake_by() const;  // the latest time of the next step
  // The outcome of the request, once: an answer, or why there is none (unreachable, deadline).
  struct Outcome {
    Answer answer;
    std::optional<Error> error{};
  };
  [[nodiscard]] std::optional<Outcome> step(Clock::time_point now);

  // Whether the latest request found no process at that port: a daemon that is slow, or does not answer, is another matter.
  [[nodiscard]] bool refused() const { return refused_; }

  [[nodiscard]] std::string numeric_address() const;  // of the daemon; of the last connection

 private:
  void connect(Clock::time_point now);
  void on_connected();
  void exchange();
  void lose(const std::string& why, Clock::time_point now);
  [[nodiscard]] Outcome late() const;
  [[nodiscard]] Outcome failed() const;

  const ClientOptions options_;
  const std::shared_ptr<const TlsContext> tls_;
  const Resolve resolve_;
  std::unique_ptr<Lookup> lookup_;
  std::vector<Endpoint> addresses_;  // not tried yet, the next one last
  std::optional<transport::OwnDescriptor> socket_;
  std::optional<CallerEnd> end_;
  Endpoint peer_;
  bool connecting_ = false, reused_ = false, refused_ = false;

  bool busy_ = false, keeps_trying_ = false;
  Kind kind_{};
  Bytes payload_;
  Clock::time_point deadline_{}, try_again_{}, connected_by_{};
  std::string why_;  // the last attempt failed
};

}  // namespace netsum::control
