#include "control/ends.h"

#include "control/border.h"
#include "control/broken.h"
#include "control/digest.h"
#include "control/fingerprint.h"

namespace netsum::control {
namespace {

// What a proof is a digest of: all that was said before it, over this very connection.
std::string transcript_of(const std::string& binding, std::string_view greeting, std::string_view challenge) {
  std::string said(magic);
  for (const std::string_view part : {std::string_view(binding), greeting, challenge}) {
    said.append(std::to_string(part.size())).append(":").append(part);  // no two sequences of parts read alike
  }
  return hexadecimal(sha256(said));
}

std::string proof(const std::string& token, const std::string& transcript) {
  return token.empty() ? std::string() : proof_of(token, transcript, "Connect", "");
}

// Empty, or why the two cannot work together.
std::string check_versions(const std::string& caller, const std::string& callers_print, const std::string& daemon,
                           const std::string& daemons_print) {
  if (callers_print == daemons_print) return "";
  return "the daemon runs netsum " + daemon + " (layouts " + daemons_print + "), the caller netsum " + caller +
         " (layouts " + callers_print + "): install the same version at both ends";
}

}  // namespace

CallerEnd::CallerEnd(Credentials credentials, std::unique_ptr<TlsStream> tls)
    : credentials_(std::move(credentials)),
      frames_(Frames::End::caller, std::move(tls)),
      greeting_(write(Greeting{version(), fingerprint(), new_nonce()})) {
  frames_.send(Kind::greeting, view(greeting_));
}

void CallerEnd::request(Kind kind, Bytes payload) {
  request_.emplace(kind, std::move(payload));
  send_request();
}

void CallerEnd::send_request() {
  if (!proved_ || !request_) return;
  frames_.send(request_->first, view(request_->second));
  request_.reset();
}

void CallerEnd::received(std::string_view bytes) {
  frames_.received(bytes);
  while (const auto frame = frames_.next()) {
    heard_ = true;
    if (skipped_ != 0 && welcome_ && (frame->kind == Kind::failure || frame->kind == Kind::answer)) {
      --skipped_;
    } else if (frame->kind == Kind::failure) {
      auto failure = parse<Failure>(frame->payload);
      if (!failure) throw Broken("it sent a malformed failure: " + failure.why());
      answer_ = Answer{std::move(*failure)};
    } else if (frame->kind == Kind::challenge && !proved_) {
      on_challenge(frame->payload);
    } else if (frame->kind == Kind::welcome && proved_ && !welcome_) {
      welcome_ = true;
    } else if (frame->kind == Kind::answer && welcome_ && !answer_) {
      answer_ = Answer{std::nullopt, Bytes(frame->payload.begin(), frame->payload.end())};
    } else {
      throw Broken("it sent an unexpected frame");
    }
  }
  frames_.forget_taken();
}

void CallerEnd::on_challenge(std::string_view payload) {
  const auto challenge = parse<Challenge>(payload);
  if (!challenge) throw Broken("it sent a malformed challenge: " + challenge.why());
  if (const auto why = check_versions(version(), fingerprint(), challenge->version, challenge->fingerprint); !why.empty()) {
    answer_ = Answer{Failure{ErrorKind::refused, why}};
    return;
  }
  const std::string transcript = transcript_of(frames_.binding(), view(greeting_), payload);
  Proofs proofs;
  if (challenge->wants_token) proofs.token = proof(credentials_.token, transcript);
  if (challenge->wants_daemon_token) proofs.daemon_token = proof(credentials_.daemon_token, transcript);
  const Bytes shown = write(proofs);
  frames_.send(Kind::proofs, view(shown));
  if (!proofs.token.empty()) {
    frames_.protect(session_key(credentials_.token, transcript));
  } else if (!proofs.daemon_token.empty()) {
    frames_.protect(session_key(credentials_.daemon_token, transcript));
  }
  proved_ = true;
  send_request();
}

DaemonEnd::DaemonEnd(const Manners& manners, std::unique_ptr<TlsStream> tls, std::string peer)
    : manners_(manners), peer_(std::move(peer)), frames_(Frames::End::daemon, std::move(tls)) {}

void DaemonEnd::refuse(ErrorKind kind, const std::string& words) {
  frames_.send(Kind::failure, view(write(Failure{kind, words})));
  throw Broken(words, true, kind == ErrorKind::unauthenticated);
}

void DaemonEnd::received(std::string_view bytes) {
  const bool had_tls = frames_.has_tls();
  try {
    frames_.received(bytes);
  } catch (const Broken&) {
    if (had_tls && !frames_.has_tls()) {
      frames_.send(
          Kind::failure,
          view(write(Failure{ErrorKind::refused, "it accepts only TLS connections: pass --tls-ca FILE (NETSUM_TLS_CA)"})));
    }
    throw;
  }
  while (!principal_) {
    const auto frame = frames_.next();
    if (!frame) return;
    if (frame->kind == Kind::greeting && challenge_.empty()) {
      const auto greeting = parse<Greeting>(frame->payload);
      if (!greeting) throw Broken("it sent a malformed greeting: " + greeting.why());
      const auto why = check_versions(greeting->version, greeting->fingerprint, version(), fingerprint());
      if (!why.empty()) refuse(ErrorKind::refused, why);
      const auto [token, daemon_token] = manners_.wants();
      challenge_ = write(Challenge{version(), fingerprint(), new_nonce(), token, daemon_token});
      transcript_ = transcript_of(frames_.binding(), frame->payload, view(challenge_));
      frames_.send(Kind::challenge, view(challenge_));
    } else if (frame->kind == Kind::proofs && !challenge_.empty()) {
      const auto proofs = parse<Proofs>(frame->payload);
      if (!proofs) throw Broken("it sent a malformed proof: " + proofs.why());
      Verdict verdict = manners_.judge(*proofs, transcript_, peer_);
      if (!verdict.principal) refuse(ErrorKind::unauthenticated, verdict.why);
      if (!verdict.token.empty()) frames_.protect(session_key(verdict.token, transcript_));
      frames_.send(Kind::welcome, {});
      principal_ = std::move(verdict.principal);
    } else {
      throw Broken("it sent a frame out of turn");
    }
  }
}

std::optional<Frame> DaemonEnd::take_request() {
  if (!principal_ || busy_) return std::nullopt;
  const auto frame = frames_.next();
  if (!frame) return std::nullopt;
  if (!is_request(frame->kind)) throw Broken("it sent a frame out of turn");
  busy_ = true;
  return frame;
}

void DaemonEnd::answer(const Answer& answer) {
  busy_ = false;
  if (answer.failure) {
    frames_.send(Kind::failure, view(write(*answer.failure)));
  } else {
    frames_.send(Kind::answer, view(answer.payload));
  }
}

}  // namespace netsum::control
