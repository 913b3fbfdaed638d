#include "relay.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "calls.h"
#include "control/border.h"
#include "control/channel_server.h"
#include "jobs/switchml_job.h"
#include "transport/addresses/addresses.h"
#include "transport/system/socket.h"

namespace netsum::hostile {
namespace {

using control::Answer;
using control::ChannelServer;
using control::Kind;
using control::Life;
using Clock = Calls::Channel::Clock;
using Outcome = Calls::Channel::Outcome;

// Beats come every 0.5 s, and wait 1 s for their answers. Two in a row may fail, or one's answer may come too late.
constexpr int failures_in_a_row = 2;
constexpr auto longest_delay = std::chrono::milliseconds(400);
constexpr auto too_late = std::chrono::milliseconds(1200);
constexpr auto longest_call = std::chrono::hours(1);  // callers that wait for less go away, and their calls with them
constexpr std::size_t remembered = 64;

}  // namespace

// Requests come on the server's thread, which hands them to one of its own: that one passes them on and waits for the
// switch.
struct Relay::Impl {
  Impl(const std::string& a, std::uint64_t seed, double i, Flows& f, std::function<void(const std::string&)> s)
      : aggregator(a), intensity(i), flows(f), say(std::move(s)), random(seed), server("127.0.0.1:0", nullptr, {}, hooks()) {
    thread = std::thread([this] { run(); });
    server.start();
  }
  ~Impl() {
    server.stop();
    hand_in([this] { stopping = true; });
    thread.join();
  }

  ChannelServer::Hooks hooks() {
    ChannelServer::Hooks hooks;
    hooks.manners.wants = [] { return std::pair(false, false); };
    hooks.manners.judge = [](const auto&...) {
      return control::Verdict{.principal = control::Principal{}, .why = {}, .token = {}};
    };
    hooks.on_request = [this](const ChannelServer::Request& request) {
      hand_in([this, from = request.connection, kind = request.kind,
               message = control::Bytes(request.payload.begin(), request.payload.end())] { take(from, kind, message); });
      return std::nullopt;
    };
    hooks.on_closed = [this](ChannelServer::Connection from, bool) {
      hand_in([this, from] {
        calls.drop(from);
        upstream.erase(from);
        lives.erase(from);
      });
    };
    return hooks;
  }

  void hand_in(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex);
      handed_in.push_back(std::move(work));
    }
    static_cast<void>(eventfd_write(wake.number(), 1));
  }

  // ---- the relay's thread

  void run() {
    while (!stopping) {
      calls.proceed(late.empty() ? Clock::time_point::max() : late.begin()->first, wake.number());
      eventfd_t count = 0;
      static_cast<void>(eventfd_read(wake.number(), &count));
      std::vector<std::function<void()>> now;
      {
        const std::lock_guard lock(mutex);
        now.swap(handed_in);
      }
      while (!late.empty() && late.begin()->first <= Clock::now()) {
        now.push_back(std::move(late.begin()->second));
        late.erase(late.begin());
      }
      for (const auto& work : now) work();
    }
  }

  [[nodiscard]] std::shared_ptr<Calls::Channel> connection() const {
    return std::make_shared<Calls::Channel>(control::ClientOptions{aggregator, "", ""}, nullptr);
  }
  // Over a connection that ends with its caller's: the switch judges by it whether a rank lives.
  void forward(ChannelServer::Connection from, Kind kind, control::Bytes message, Calls::Done done) {
    auto& channel = upstream[from];
    if (!channel) channel = connection();
    calls.begin(channel, kind, std::move(message), longest_call, std::move(done), from);
  }
  // That nobody asked for.
  template <class Message>
  void forge(Kind kind, const Message& message) {
    calls.begin(connection(), kind, control::write(message), longest_call, [](const Outcome&) {});
  }
  // So often, one after the other; `done` gets the last one's outcome.
  void forward_all(ChannelServer::Connection from, Kind kind, const control::Bytes& message, int times, Calls::Done done) {
    forward(from, kind, message, [this, from, kind, message, times, done = std::move(done)](const Outcome& outcome) {
      if (times == 1) return done(outcome);
      forward_all(from, kind, message, times - 1, done);
    });
  }
  void answer(ChannelServer::Connection from, const Outcome& outcome) {
    server.answer(from, outcome.error ? failure(control::ErrorKind::busy, outcome.error->what()) : outcome.answer);
  }
  static Answer failure(control::ErrorKind kind, const std::string& words) { return {control::Failure{kind, words}}; }

  // Every 1/probability-th call, beginning anywhere: calls are few, and each fault is to happen.
  bool happens(Fault fault, double probability) {
    double& credit = credits.try_emplace(fault, random.unit()).first->second;
    credit += probability * intensity;
    if (credit < 1) return false;
    credit -= 1;
    ++counts[static_cast<std::size_t>(fault)];
    return true;
  }

  void take(ChannelServer::Connection from, Kind kind, const control::Bytes& message) {
    switch (kind) {
      case Kind::hello:
        return forward(from, kind, message, [this, from](Outcome outcome) {
          const auto hello = control::parse<control::Hello>(view(outcome.answer.payload));
          if (!outcome.error && !outcome.answer.failure && hello) outcome.answer.payload = with_flows(*hello);
          answer(from, outcome);
        });
      case Kind::join:
        return join(from, *control::parse<control::Join>(view(message)));
      case Kind::heartbeat:
        return beat(from, control::parse<control::Beat>(view(message))->life);
      case Kind::leave: {
        const int times = happens(Fault::leave_repeated, 0.5) ? 2 : 1;
        const bool answered = !happens(Fault::leave_unanswered, 0.3);
        return forward_all(from, kind, message, times, [this, from, answered](const Outcome& outcome) {
          if (answered) answer(from, outcome);
        });
      }
      default:
        return forward(from, kind, message, [this, from](const Outcome& outcome) { answer(from, outcome); });
    }
  }

  control::Bytes with_flows(control::Hello hello) {
    for (Endpoint& lane : hello.lanes) lane = flows.for_worker(flows.open(lane));
    return control::write(hello);
  }

  void join(ChannelServer::Connection from, const control::Join& asked) {
    control::Join rewritten = asked;
    std::vector<std::size_t> own;
    for (Endpoint& endpoint : rewritten.request.endpoints) {
      const auto flow = flows.of_worker(endpoint);
      if (!flow) {
        return server.answer(from, failure(control::ErrorKind::internal, "the proxy does not know this worker's sockets"));
      }
      own.push_back(*flow);
      endpoint = flows.for_switch(*flow);
    }
    forward(from, Kind::join, control::write(rewritten), [this, from, asked = asked.request, own](const Outcome& outcome) {
      if (!outcome.error && !outcome.answer.failure) {
        const auto admission = control::parse_admission(view(outcome.answer.payload), asked, jobs::switchml_rules());
        if (admission) admit(asked, *admission, own);
      }
      answer(from, outcome);
    });
  }

  void admit(const session::JoinRequest& asked, const session::Admission& admission, const std::vector<std::size_t>& own) {
    nlohmann::ordered_json line{{"job", asked.job},
                                {"job_epoch", admission.job_epoch},
                                {"rank", asked.rank},
                                {"rank_epoch", admission.rank_epoch},
                                {"packet_elements", admission.packet_elements},
                                {"slots", admission.slots},
                                {"worker", nlohmann::json::array()},
                                {"to_switch", nlohmann::json::array()}};
    for (std::size_t lane = 0; lane < own.size(); ++lane) {
      const Endpoint& worker = asked.endpoints[lane];
      flows.admit(own[lane], worker, {asked.job, admission.job_epoch, asked.rank, static_cast<std::uint32_t>(lane)});
      line["worker"].push_back(transport::to_string(worker));
      line["to_switch"].push_back(transport::to_string(flows.for_switch(own[lane])));
    }
    say(line.dump());
  }

  void beat(ChannelServer::Connection from, const Life& life) {
    int& failures = failures_of[{life.job_epoch, life.rank}];
    if (failures < failures_in_a_row && happens(Fault::beat_lost, 0.2)) {
      ++failures;
      return server.answer(from, failure(control::ErrorKind::busy, "lost on the way there"));
    }
    const bool unanswered = failures == 0 && happens(Fault::beat_unanswered, 0.2);
    failures = unanswered ? failures_in_a_row : 0;
    if (happens(Fault::leave_forged, 0.3)) {
      Life forged = life;
      forged.rank_epoch ^= static_cast<std::uint32_t>(random.between(1, 0xffffffff));
      forge(Kind::leave, forged);
    }
    lives[from] = life;
    if (!past.empty() && happens(Fault::beat_stale, 0.3)) {
      const Life& stale = past[random.below(past.size())];
      if (stale.job_epoch != life.job_epoch || is_connected(stale)) forge(Kind::heartbeat, control::Beat{stale});
    }
    if (past.size() < remembered) {
      past.push_back(life);
    } else {
      past[random.below(past.size())] = life;
    }
    const int times = happens(Fault::beat_repeated, 0.3) ? 2 : 1;
    const Duration delay = happens(Fault::beat_delayed, 0.2) ? random.between(Duration(0), longest_delay) : Duration(0);
    after(delay, [this, from, life, times, unanswered] {
      if (!lives.contains(from)) return;  // it would open a connection that nobody closes, and the rank would live on
      forward_all(from, Kind::heartbeat, control::write(control::Beat{life}), times,
                  [this, from, unanswered](const Outcome& outcome) {
                    if (!unanswered) return answer(from, outcome);
                    after(too_late, [this, from, outcome] { answer(from, outcome); });
                  });
    });
  }
  // Beats of a dead rank would keep it alive while its job runs, rightly, and a test waits for the others to name it.
  [[nodiscard]] bool is_connected(const Life& life) const {
    return std::any_of(lives.begin(), lives.end(), [&](const auto& entry) {
      return entry.second.job_epoch == life.job_epoch && entry.second.rank == life.rank &&
             entry.second.rank_epoch == life.rank_epoch;
    });
  }
  void after(Duration delay, std::function<void()> work) { late.emplace(Clock::now() + delay, std::move(work)); }

  const std::string aggregator;
  const double intensity;
  Flows& flows;
  const std::function<void(const std::string&)> say;
  const transport::Descriptor wake{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::mutex mutex;  // of the next one
  std::vector<std::function<void()>> handed_in;
  // The relay's thread's own.
  bool stopping = false;
  Calls calls;
  std::map<ChannelServer::Connection, std::shared_ptr<Calls::Channel>> upstream;
  std::multimap<Clock::time_point, std::function<void()>> late;
  Random random;
  std::array<std::atomic<std::uint64_t>, fault_kinds> counts{};
  std::map<Fault, double> credits;
  std::map<std::pair<std::uint64_t, std::uint32_t>, int> failures_of;
  std::map<ChannelServer::Connection, Life> lives;  // as they last beat
  std::vector<Life> past;
  std::thread thread;
  ChannelServer server;
};

Relay::Relay(const std::string& aggregator, std::uint64_t seed, double intensity, Flows& flows,
             std::function<void(const std::string&)> say)
    : impl_(std::make_unique<Impl>(aggregator, seed, intensity, flows, std::move(say))) {}

Relay::~Relay() = default;

std::string Relay::address() const {
  return "127.0.0.1:" + std::to_string(impl_->server.port());
}

Counts Relay::counts() const {
  Counts counts{};
  std::copy(impl_->counts.begin(), impl_->counts.end(), counts.begin());
  return counts;
}

}  // namespace netsum::hostile
