#include "control/client.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>
#include <optional>
#include <utility>

#include "base/waiting.h"
#include "control/border.h"
#include "control/channel.h"
#include "transport/system/socket.h"

namespace netsum::control {
namespace {

using Clock = Channel::Clock;
using std::chrono::milliseconds;

// How much longer than its deadline a call waits for the aggregator's reason.
constexpr auto grace = std::chrono::seconds(2);

}  // namespace

struct Client::Impl {
  const ClientOptions options;
  std::mutex mutex;  // a call at a time
  Channel channel;
  Kind begun{};  // without waiting

  explicit Impl(const ClientOptions& o)
      : options(o), channel(o, o.tls_ca.empty() ? nullptr : TlsContext::of_caller(o.tls_ca)) {}

  struct Call {
    milliseconds deadline;
    const std::stop_token stop{};
    bool keeps_trying = false;
  };

  [[nodiscard]] Bytes exchange(Kind kind, Bytes request, const Call& call) {
    check_may_wait("an aggregator's answer");
    const std::lock_guard lock(mutex);
    std::optional<transport::Descriptor> stopped;
    if (call.stop.stop_possible()) stopped.emplace(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    const std::stop_callback on_stop(call.stop, [&] {
      if (stopped) static_cast<void>(eventfd_write(stopped->number(), 1));
    });
    channel.request(kind, std::move(request), Clock::now() + call.deadline, call.keeps_trying);
    while (true) {
      if (auto answer = step()) return std::move(*answer);
      const auto left = std::chrono::ceil<milliseconds>(channel.wake_by() - Clock::now()).count();
      std::array<pollfd, 2> watched{
          {{channel.descriptor(), channel.events(), 0}, {stopped ? stopped->number() : -1, POLLIN, 0}}};
      ::poll(watched.data(), watched.size(), static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000)));
      if (watched[1].revents != 0) {
        channel.give_up();
        throw Error(ErrorCode::closed, "a stop was requested before aggregator " + options.address + " answered");
      }
    }
  }

  // The answer to the request in flight, once.
  [[nodiscard]] std::optional<Bytes> step() {
    auto outcome = channel.step(Clock::now());
    if (!outcome) return std::nullopt;
    if (outcome->error) throw Error(*outcome->error);
    if (outcome->answer.failure) throw error_of(*outcome->answer.failure, options.address);
    return std::move(outcome->answer.payload);
  }

  template <class Value>
  [[nodiscard]] Value accept(Parsed<Value> parsed) const {
    if (parsed) return std::move(*parsed);
    throw Error(ErrorCode::internal, "invalid reply from aggregator " + options.address + ": " + parsed.why());
  }
};

Error error_of(const Failure& failure, const std::string& address) {
  const std::string at = "aggregator " + address;
  switch (failure.kind) {
    case ErrorKind::busy:  // to callers that ask again, as if it had not answered
      return {ErrorCode::unreachable, at + ": " + failure.words};
    case ErrorKind::late:
      return {ErrorCode::deadline, at + ": " + failure.words};
    case ErrorKind::excluded:
      return {ErrorCode::excluded, failure.words + " (said by " + at + ")"};
    case ErrorKind::internal:
      return {ErrorCode::internal, at + ": " + failure.words};
    case ErrorKind::invalid:
    case ErrorKind::refused:
    case ErrorKind::overloaded:
    case ErrorKind::unauthenticated:
      break;
  }
  return {ErrorCode::refused, at + " refused: " + failure.words};
}

Client::Client(const ClientOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Client::~Client() = default;
Client::Client(Client&&) noexcept = default;

Hello Client::hello(milliseconds deadline, const std::string& job, const std::stop_token& stop, bool keeps_trying) {
  return impl_->accept(parse<Hello>(view(impl_->exchange(
      Kind::hello, write(HelloRequest{job}), {.deadline = deadline, .stop = stop, .keeps_trying = keeps_trying}))));
}

session::Admission Client::join(const session::JoinRequest& request, const session::ProtocolRules& rules,
                                milliseconds deadline, const std::stop_token& stop) {
  Bytes reply;
  try {
    reply = impl_->exchange(Kind::join, write(Join{request, deadline}), {.deadline = deadline + grace, .stop = stop});
  } catch (const Error&) {
    if (stop.stop_requested()) throw Error(ErrorCode::closed, "joining job '" + request.job + "' was given up");
    throw;
  }
  session::Admission admission = impl_->accept(parse_admission(view(reply), request, rules));
  if (impl_->options.tls_ca.empty() && admission.security != PacketSecurity::none) {
    throw Error(ErrorCode::internal,
                "aggregator " + impl_->options.address + " sent keys without TLS, so that other hosts can read them");
  }
  return admission;
}

session::HeartbeatReply Client::heartbeat(std::uint64_t job_epoch, std::uint32_t rank, std::uint32_t rank_epoch,
                                          milliseconds deadline) {
  return impl_->accept(parse<session::HeartbeatReply>(
      view(impl_->exchange(Kind::heartbeat, write(Beat{{job_epoch, rank, rank_epoch, {}}}), {.deadline = deadline}))));
}

void Client::leave(const Life& life, milliseconds deadline) {
  static_cast<void>(impl_->exchange(Kind::leave, write(life), {.deadline = deadline}));
}

void Client::begin_hello(milliseconds deadline) {
  impl_->channel.request(Kind::hello, write(HelloRequest{}), Clock::now() + deadline);
  impl_->begun = Kind::hello;
}

void Client::begin_heartbeat(const Beat& beat, milliseconds deadline) {
  impl_->channel.request(Kind::heartbeat, write(beat), Clock::now() + deadline);
  impl_->begun = Kind::heartbeat;
}

void Client::begin_leave(const Life& life, milliseconds deadline) {
  impl_->channel.request(Kind::leave, write(life), Clock::now() + deadline);
  impl_->begun = Kind::leave;
}

pollfd Client::watched() const {
  return {impl_->channel.descriptor(), impl_->channel.events(), 0};
}

Time Client::wake_by() const {
  return Time(impl_->channel.wake_by().time_since_epoch());
}

std::optional<session::HeartbeatReply> Client::step() {
  const auto answer = impl_->step();
  if (!answer) return std::nullopt;
  if (impl_->begun != Kind::heartbeat) return session::HeartbeatReply{};
  return impl_->accept(parse<session::HeartbeatReply>(view(*answer)));
}

bool Client::refused() const {
  return impl_->channel.refused();
}

telemetry::Report Client::report(milliseconds deadline) {
  return impl_->accept(parse_report(view(impl_->exchange(Kind::status, write(StatusRequest{}), {.deadline = deadline}))));
}

void Client::end(const session::NamedJob& job, milliseconds deadline) {
  static_cast<void>(impl_->exchange(Kind::end, write(job), {.deadline = deadline}));
}

void Client::drain(bool undo, milliseconds deadline) {
  static_cast<void>(impl_->exchange(Kind::drain, write(Drain{undo}), {.deadline = deadline}));
}

std::string Client::flight_record(const session::NamedJob& job, milliseconds deadline) {
  return impl_->accept(parse<FlightRecord>(view(impl_->exchange(Kind::explain, write(job), {.deadline = deadline})))).json;
}

}  // namespace netsum::control
