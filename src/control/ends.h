// The two ends of a control connection (docs/architecture.md): a greeting and a challenge, proofs and a welcome, then one
// request at a time and its answer. Pure: bytes in and out, no sockets and no clock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "control/bytes.h"
#include "control/credentials.h"
#include "control/frames.h"
#include "control/messages.h"
#include "control/tls.h"

namespace netsum::control {

// A request's outcome, at either end.
struct Answer {
  std::optional<Failure> failure;  // none: `payload` is the answer
  Bytes payload{};
};

class CallerEnd {
 public:
  CallerEnd(Credentials credentials, std::unique_ptr<TlsStream> tls);

  // Once, and again after each answer; kept until the daemon has sent its challenge.
  void request(Kind kind, Bytes payload);
  // Throws Broken.
  void received(std::string_view bytes);
  // The answer in flight is of no use any more: it is left out when it comes.
  void skip_answer() { ++skipped_; }
  // The answer to the request, once.
  [[nodiscard]] std::optional<Answer> take_answer() { return std::exchange(answer_, std::nullopt); }

  [[nodiscard]] std::string_view outgoing() { return frames_.outgoing(); }
  void sent(std::size_t bytes) { frames_.sent(bytes); }
  [[nodiscard]] bool heard() const { return heard_; }  // anything that a daemon of netsum says
  [[nodiscard]] bool welcome() const { return welcome_; }

 private:
  void on_challenge(std::string_view payload);
  void send_request();

  const Credentials credentials_;
  Frames frames_;
  const Bytes greeting_;
  bool heard_ = false, proved_ = false, welcome_ = false;
  std::optional<std::pair<Kind, Bytes>> request_;  // not sent yet
  std::optional<Answer> answer_;
  std::uint32_t skipped_ = 0;  // answers to come, to requests before the one in flight
};

// Who is at the other end, as far as tokens show.
struct Principal {
  std::string tenant;   // empty: the daemon has no tenants
  std::string number;   // of the token; empty: none was needed
  bool daemon = false;  // has shown the daemons' token
};
struct Verdict {
  std::optional<Principal> principal;  // none: `why` says why not
  std::string why;
  std::string token;  // that keys the tags; empty: none
};

class DaemonEnd {
 public:
  struct Manners {
    std::function<std::pair<bool, bool>()> wants;  // a tenant's token, and a daemon's
    std::function<Verdict(const Proofs&, const std::string& transcript, const std::string& peer)> judge;
  };
  // `peer`: HOST:PORT, for the judge.
  DaemonEnd(const Manners& manners, std::unique_ptr<TlsStream> tls, std::string peer);

  // Throws Broken. Bytes behind a request are kept until it is answered.
  void received(std::string_view bytes);
  // A request that has come, once; no other one comes until it is answered. Throws Broken.
  [[nodiscard]] std::optional<Frame> take_request();
  void forget_request() { frames_.forget_taken(); }  // it has been read; its answer may come much later
  void answer(const Answer& answer);

  [[nodiscard]] std::string_view outgoing() { return frames_.outgoing(); }
  void sent(std::size_t bytes) { frames_.sent(bytes); }
  [[nodiscard]] const std::optional<Principal>& principal() const { return principal_; }
  [[nodiscard]] bool busy() const { return busy_; }                 // with a request
  [[nodiscard]] bool partial() const { return frames_.partial(); }  // part of a frame is here
  [[nodiscard]] std::size_t held_bytes() const { return frames_.held_bytes(); }

 private:
  [[noreturn]] void refuse(ErrorKind kind, const std::string& words);

  const Manners& manners_;
  const std::string peer_;
  Frames frames_;
  Bytes challenge_;
  std::string transcript_;
  std::optional<Principal> principal_;
  bool busy_ = false;
};

}  // namespace netsum::control
