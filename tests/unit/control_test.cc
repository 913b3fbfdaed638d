// The control plane over real sockets on loopback: admission, secrets, TLS, and errors in words.

#include "control/client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <latch>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stop_token>
#include <thread>

#include "base/waiting.h"
#include "control/border.h"
#include "control/channel.h"
#include "control/credentials.h"
#include "control/server.h"
#include "jobs/atp_job.h"
#include "jobs/switchml_job.h"
#include "session/installations.h"
#include "telemetry/flight_file.h"
#include "telemetry/report.h"
#include "wire/atp.h"
#include "wire/switchml.h"

namespace netsum::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Endpoint at(std::uint16_t port) {
  return {.address = {0xfd, 1}, .port = port};
}
Endpoint group(std::size_t port) {
  return {.address = {0xff, 2}, .port = static_cast<std::uint16_t>(port)};
}

session::Admission join(Client& client, const session::JoinRequest& request, milliseconds deadline,
                        const std::stop_token& stop = {}) {
  const session::ProtocolRules rules = request.protocol == "atp" ? jobs::atp_rules() : jobs::switchml_rules();
  return client.join(request, rules, deadline, stop);
}

struct TestServer {
  explicit TestServer(ServerOptions options = {}) {
    options.listen = "127.0.0.1:0";
    options.registry.protocols = {jobs::switchml_rules()};
    ServerHooks hooks;
    hooks.lanes = [] { return std::vector<Endpoint>{at(7170)}; };
    // The control lock is not held where the data plane is asked for anything, which may wait.
    hooks.start_job = [this](const session::StartJob& start) {
      check_may_wait("a lane");
      ++started;
      listens = start.listens;
      if (fail) fail(start.job);
    };
    hooks.groups = [](const std::string& job) { return std::vector<Endpoint>{group(7000 + job.size())}; };
    hooks.stop_job = [this](const session::StopJob&) {
      check_may_wait("a lane");
      ++stopped;
    };
    hooks.reach_lanes = [this] {
      check_may_wait("a lane");
      std::function<void()> reach;
      {
        const std::lock_guard lock(reach_mutex);
        reach = reach_lanes;
      }
      if (reach) reach();
    };
    hooks.fill_report = [](telemetry::Report& report) {
      check_may_wait("a lane");
      report.version = "test";
    };
    hooks.log = [this](const std::string& line) {
      if (log) log(line);
    };
    server = std::make_unique<Server>(std::move(options), std::move(hooks));
  }
  std::function<void(const std::string& line)> log;  // set before the first job
  std::function<void(const std::string& job)> fail;  // what the data plane throws where a job starts
  std::mutex reach_mutex;                            // of reach_lanes
  std::function<void()> reach_lanes;                 // empty: they answer at once
  std::vector<bool> listens;                         // of the last job
  int started = 0, stopped = 0;                      // by control threads, one at a time; read when all of them are done
  std::unique_ptr<Server> server;
};

session::JoinRequest request(std::uint32_t rank, std::uint32_t world_size) {
  session::JoinRequest request;
  request.protocol_version = wire::switchml::version;
  request.protocol = "switchml";
  request.job = "j";
  request.rank = rank;
  request.world_size = world_size;
  request.packet_elements = 256;
  request.slots_measured = 16;
  request.endpoints = {at(static_cast<std::uint16_t>(1000 + rank))};
  return request;
}

// Ranks that join without a thread each. Their joins end with it.
class JoiningRanks {
 public:
  explicit JoiningRanks(std::string address, std::string token = "")
      : address_(std::move(address)), token_(std::move(token)) {}
  void add(const session::JoinRequest& asked) {
    Channel& channel = *channels_.emplace_back(std::make_unique<Channel>(ClientOptions{address_, token_, ""}, nullptr));
    channel.request(Kind::join, write(Join{asked, std::chrono::minutes(1)}),
                    Channel::Clock::now() + std::chrono::minutes(1));
  }
  // Until what they wait for is there.
  template <class There>
  void until(const There& there) {
    while (!there()) {
      for (const auto& channel : channels_) static_cast<void>(channel->step(Channel::Clock::now()));
    }
  }

 private:
  const std::string address_, token_;
  std::vector<std::unique_ptr<Channel>> channels_;
};

template <class Call>
Error error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return {ErrorCode::internal, ""};
}

bool says(const Error& error, const std::string& words) {
  return std::string(error.what()).find(words) != std::string::npos;
}

TEST(Control, AJobsGroupsAndWhoListens) {
  TestServer test;
  Client first({test.server->address(), "", ""}), second({test.server->address(), "", ""});
  EXPECT_TRUE(first.hello(seconds(5)).groups.empty());
  EXPECT_EQ(first.hello(seconds(5), "abc").groups, std::vector<Endpoint>{group(7003)});
  session::JoinRequest listener = request(1, 2);
  listener.listens = true;
  std::jthread rank1([&] { static_cast<void>(join(second, listener, seconds(10))); });
  static_cast<void>(join(first, request(0, 2), seconds(10)));
  rank1.join();
  test.server.reset();
  EXPECT_EQ(test.listens, (std::vector<bool>{false, true}));
}

TEST(Control, JoinHeartbeatLeave) {
  TestServer test;
  Client first({test.server->address(), "", ""}), second({test.server->address(), "", ""});
  EXPECT_EQ(1U, first.hello(seconds(5)).lanes.size());
  EXPECT_EQ(first.hello(seconds(5)).instance, second.hello(seconds(5)).instance);

  session::Admission other;
  std::jthread rank1([&] { other = join(second, request(1, 2), seconds(10)); });
  const session::Admission mine = join(first, request(0, 2), seconds(10));
  rank1.join();
  EXPECT_EQ(mine.job_epoch, other.job_epoch);
  EXPECT_EQ((std::vector<std::uint32_t>{mine.rank_epoch, other.rank_epoch}), mine.rank_epochs);

  using State = session::HeartbeatReply::State;
  EXPECT_EQ(State::running, first.heartbeat(mine.job_epoch, 0, mine.rank_epoch, seconds(5)).state);
  EXPECT_EQ(State::unknown, first.heartbeat(mine.job_epoch + 1, 0, mine.rank_epoch, seconds(5)).state);
  second.leave({other.job_epoch, 1, other.rank_epoch}, seconds(5));
  EXPECT_TRUE(first.heartbeat(mine.job_epoch, 0, mine.rank_epoch, seconds(5)).left.contains(1));
  const telemetry::Report report = first.report(seconds(5));
  EXPECT_EQ("test", report.version);
  ASSERT_EQ(1U, report.jobs.size());
  EXPECT_EQ("j", report.jobs[0].job.job);
  EXPECT_TRUE(report.jobs[0].job.left.contains(1));
  first.leave({mine.job_epoch, 0, mine.rank_epoch}, seconds(5));
  test.server.reset();
  EXPECT_EQ(1, test.started);
  EXPECT_EQ(1, test.stopped);
}

TEST(Control, ProgressAndWhereToGoOnAreCarried) {
  TestServer test;
  Client first({test.server->address(), "", ""}), second({test.server->address(), "", ""});
  session::JoinRequest ahead = request(0, 2), behind = request(1, 2);
  ahead.recovers = behind.recovers = true;
  ahead.aggregators = behind.aggregators = {test.server->address()};
  ahead.reached = behind.reached = session::SiteSet::first(1);
  ahead.progress = {9, 6, {11}};
  behind.progress = {8, 8, {}};
  session::Admission other;
  std::jthread rank1([&] { other = join(second, behind, seconds(10)); });
  const session::Admission mine = join(first, ahead, seconds(10));
  rank1.join();
  EXPECT_EQ(mine.resumption, (stream::Resumption{8, {{8, 0}, {11, 0}}}));
  EXPECT_EQ(mine.resumption, other.resumption);
}

TEST(Control, AJoinCanBeGivenUp) {
  TestServer test;
  Client client({test.server->address(), "", ""});
  std::stop_source stop;
  std::jthread stopper([&] {
    while (test.server->report().jobs.empty()) std::this_thread::yield();
    stop.request_stop();
  });
  const Error error = error_of([&] { static_cast<void>(join(client, request(1, 3), seconds(60), stop.get_token())); });
  EXPECT_EQ(ErrorCode::closed, error.code());
}

TEST(Control, AJoinDeadlineNamesTheMissingRanks) {
  TestServer test;
  Client client({test.server->address(), "", ""});
  const Error error = error_of([&] { static_cast<void>(join(client, request(1, 3), milliseconds(200))); });
  EXPECT_EQ(ErrorCode::deadline, error.code());
  EXPECT_TRUE(says(error, "ranks 0, 2 of 3")) << error.what();
}

TEST(Control, ARefusalKeepsItsWords) {
  TestServer test;
  Client client({test.server->address(), "", ""});
  const Error error = error_of([&] { static_cast<void>(join(client, request(3, 3), seconds(5))); });
  EXPECT_EQ(ErrorCode::refused, error.code());
  EXPECT_TRUE(says(error, "rank 3 is not below the world size 3")) << error.what();
}

TEST(Control, ParametersThatDifferAreRefusedInTheRegistrysWords) {
  TestServer test;
  Client first({test.server->address(), "", ""}), second({test.server->address(), "", ""});
  session::JoinRequest other = request(1, 2);
  other.packet_elements = 512;
  std::jthread waiting([&] { static_cast<void>(join(first, request(0, 2), seconds(30))); });
  while (second.report(seconds(5)).jobs.empty()) {
  }
  const Error error = error_of([&] { static_cast<void>(join(second, other, seconds(5))); });
  EXPECT_EQ(ErrorCode::refused, error.code());
  EXPECT_TRUE(says(error, "elements per packet 512, rank 0 with 256")) << error.what();
  EXPECT_TRUE(says(error, test.server->address())) << error.what();
  static_cast<void>(join(second, request(1, 2), seconds(30)));
}

TEST(Control, ADaemonWhoseLanesDoNotAnswerIsNotAlive) {
  ServerOptions options;
  options.hangs_after = {};
  std::atomic<bool> asked = false;
  std::promise<void> answer;
  TestServer test(std::move(options));
  EXPECT_TRUE(test.server->alive());
  while (!test.server->alive()) {
  }
  {
    const std::lock_guard lock(test.reach_mutex);
    test.reach_lanes = [&asked, told = answer.get_future().share()] {
      asked = true;
      told.wait();
    };
  }
  while (!asked) static_cast<void>(test.server->alive());
  EXPECT_FALSE(test.server->alive());
  EXPECT_FALSE(test.server->alive());
  answer.set_value();
  while (!test.server->alive()) {
  }
}

TEST(Control, ASilentRankIsNamedToTheOthers) {
  ServerOptions options;
  options.registry.heartbeat_timeout = milliseconds(1500);
  TestServer test(std::move(options));
  Client first({test.server->address(), "", ""}), second({test.server->address(), "", ""});
  std::jthread rank1([&] { static_cast<void>(join(second, request(1, 2), seconds(10))); });
  const session::Admission mine = join(first, request(0, 2), seconds(10));
  rank1.join();
  session::HeartbeatReply reply;
  do {
    reply = first.heartbeat(mine.job_epoch, 0, mine.rank_epoch, seconds(5));
  } while (reply.state == session::HeartbeatReply::State::running);
  EXPECT_EQ(session::HeartbeatReply::State::failed, reply.state);
  EXPECT_EQ(1U, reply.lost);
  EXPECT_NE(std::string::npos, reply.reason.find("rank 1 of job 'j'")) << reply.reason;
  EXPECT_EQ(default_slots, first.report(seconds(5)).slots_free);
}

TEST(Control, AJobThatTheDataPlaneCannotTakeIsRefusedAndOthersGoOn) {
  TestServer test;
  test.fail = [](const std::string& job) {
    if (job == "large") throw std::bad_alloc();
  };
  Client first({test.server->address(), "", ""}), second({test.server->address(), "", ""});
  session::JoinRequest large0 = request(0, 2), large1 = request(1, 2);
  large0.job = large1.job = "large";
  std::optional<Error> other;
  std::jthread rank1([&] { other = error_of([&] { static_cast<void>(join(second, large1, seconds(10))); }); });
  const Error error = error_of([&] { static_cast<void>(join(first, large0, seconds(10))); });
  rank1.join();
  for (const Error& each : {error, *other}) {
    EXPECT_EQ(ErrorCode::refused, each.code());
    EXPECT_TRUE(says(each, "job 'large': this daemon has no memory left for the job")) << each.what();
  }
  const telemetry::Report report = first.report(seconds(5));
  EXPECT_TRUE(report.jobs.empty());
  EXPECT_EQ(report.slots, report.slots_free);
  EXPECT_EQ(0U, report.memory_used);
  static_cast<void>(join(first, request(0, 1), seconds(10)));
}

TEST(Control, JoinsWaitWithoutThreads) {
  TestServer test;
  const auto threads = [] {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  constexpr std::uint32_t ranks = 200;
  const auto joined = [&] {
    const auto jobs = test.server->report().jobs;
    return jobs.empty() ? 0 : jobs[0].job.joined.size();
  };
  JoiningRanks joining(test.server->address());
  joining.add(request(0, ranks + 1));
  joining.until([&] { return joined() == 1; });
  const auto before = threads();
  for (std::uint32_t rank = 1; rank < ranks; ++rank) joining.add(request(rank, ranks + 1));
  joining.until([&] { return joined() == ranks; });
  EXPECT_EQ(threads(), before);
}

TEST(Control, OneHostMayHaveSoManyRanksWait) {
  ServerOptions options;
  options.joins_of_one_peer = 2;
  TestServer test(std::move(options));
  JoiningRanks joining(test.server->address());
  joining.add(request(0, 4));
  joining.add(request(1, 4));
  joining.until([&] {
    const auto jobs = test.server->report().jobs;
    return !jobs.empty() && jobs[0].job.joined.size() == 2;
  });
  Client third({test.server->address(), "", ""});
  const Error error = error_of([&] { static_cast<void>(join(third, request(2, 4), seconds(5))); });
  EXPECT_EQ(ErrorCode::refused, error.code());
  EXPECT_TRUE(says(error, "this host has 2 ranks that wait")) << error.what();
}

// Connections from one address of this host, which say nothing unless they are told to.
class Connections {
 public:
  Connections(const TestServer& test, std::string from)
      : port_(static_cast<std::uint16_t>(std::stoi(test.server->address().substr(10)))), from_(std::move(from)) {}
  ~Connections() {
    for (const int number : open_) close(number);
  }
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  void add(bool speaks = false) {
    const int number = open_.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in from{}, to{};
    from.sin_family = to.sin_family = AF_INET;
    inet_pton(AF_INET, from_.c_str(), &from.sin_addr);
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    to.sin_port = htons(port_);
    EXPECT_EQ(0, bind(number, reinterpret_cast<sockaddr*>(&from), sizeof from));
    EXPECT_EQ(0, connect(number, reinterpret_cast<sockaddr*>(&to), sizeof to));
    if (!speaks) return;
    CallerEnd caller({}, nullptr);
    const auto say = [&] {
      const auto out = caller.outgoing();
      EXPECT_EQ(static_cast<ssize_t>(out.size()), send(number, out.data(), out.size(), MSG_NOSIGNAL));
      caller.sent(out.size());
    };
    say();
    std::array<char, 4096> heard;
    while (!caller.welcome()) {
      const ssize_t got = recv(number, heard.data(), heard.size(), 0);
      if (got <= 0) return refused_.push_back(number);
      caller.received({heard.data(), static_cast<std::size_t>(got)});
      say();
    }
  }
  void remove_first() {
    close(open_.front());
    open_.erase(open_.begin());
  }
  [[nodiscard]] bool any_is_refused() const { return !refused_.empty(); }
  // Those that the daemon has ended, once there are so many or time is up.
  [[nodiscard]] std::vector<std::size_t> ended(std::size_t count, seconds patience = seconds(4)) const {
    std::vector<std::size_t> all;
    for (const auto end = std::chrono::steady_clock::now() + patience;
         all.size() < count && std::chrono::steady_clock::now() < end;) {
      all.clear();
      for (std::size_t i = 0; i < open_.size(); ++i) {
        std::array<char, 4096> said;
        ssize_t got = 0;
        do {
          got = recv(open_[i], said.data(), said.size(), MSG_DONTWAIT);
        } while (got > 0);
        if (got == 0 || (got < 0 && errno == ECONNRESET)) all.push_back(i);
      }
    }
    return all;
  }

 private:
  std::uint16_t port_;
  std::string from_;
  std::vector<int> open_, refused_;
};

TEST(Control, OnePeersConnectionsKeepNoOtherPeerOut) {
  ServerOptions options;
  options.connections.of_one_host = 3;
  TestServer test(std::move(options));
  Connections connections(test, "127.0.0.2");
  for (int i = 0; i < 4; ++i) connections.add();
  EXPECT_EQ(std::vector<std::size_t>({0}), connections.ended(1)) << "the one that was silent for longest";
  Client other({test.server->address(), "", ""});
  EXPECT_EQ(1U, other.hello(seconds(5)).lanes.size());
}

TEST(Control, ConnectionsThatHaveSpokenAreCountedWhileTheyAreOpen) {
  ServerOptions options;
  options.connections.of_one_host = 2;
  TestServer test(std::move(options));
  Connections connections(test, "127.0.0.2");
  connections.add(true);
  connections.add(true);
  connections.add();
  EXPECT_EQ(std::vector<std::size_t>({0}), connections.ended(1)) << "it asks for nothing, and makes way";
  connections.remove_first();
  const auto end = std::chrono::steady_clock::now() + seconds(4);
  bool admitted = false;
  while (!admitted && std::chrono::steady_clock::now() < end) {  // until the daemon has noticed
    Connections once(test, "127.0.0.2");
    once.add(true);
    admitted = !once.any_is_refused();
  }
  EXPECT_TRUE(admitted);
}

TEST(Control, AConnectionThatSaysNothingIsEnded) {
  ServerOptions options;
  options.connections.handshake = std::chrono::milliseconds(50);
  TestServer test(std::move(options));
  Connections connections(test, "127.0.0.2");
  connections.add();
  connections.add(true);
  EXPECT_EQ(std::vector<std::size_t>({0}), connections.ended(1));
}

// ---- tenants

Tenant tenant(const std::string& name) {
  Tenant t;
  t.name = name;
  t.token = name + "'s token, which is long enough";
  return t;
}

TEST(Control, ARevokedTokenAdmitsNobodyAndItsJobsRunOn) {
  ServerOptions options;
  options.tenants = {tenant("a")};
  TestServer test(std::move(options));
  Client a({test.server->address(), tenant("a").token, ""});
  const session::Admission mine = join(a, request(0, 1), seconds(5));
  test.server->set_tenants({tenant("b")});
  EXPECT_EQ(session::HeartbeatReply::State::running, a.heartbeat(mine.job_epoch, 0, mine.rank_epoch, seconds(5)).state);
  const Error error = error_of([&] { static_cast<void>(a.report(seconds(5))); });
  EXPECT_TRUE(says(error, "was revoked")) << error.what();
  a.leave({mine.job_epoch, 0, mine.rank_epoch}, seconds(5));
  Client b({test.server->address(), tenant("b").token, ""});
  EXPECT_EQ(1U, b.report(seconds(5)).counters.value("wrong_tokens"));
}

TEST(Control, ATenantsTokensTakeEachOthersPlace) {
  const auto with = [](const std::string& first, const std::string& second) {
    Tenant t = tenant("a");
    t.token = first;
    t.second_token = second;
    return t;
  };
  const std::string former = "the former token of a", later = "the later token of a";
  ServerOptions options;
  options.tenants = {with(former, later)};
  TestServer test(std::move(options));
  Client before({test.server->address(), former, ""}), after({test.server->address(), later, ""});
  const session::Admission mine = join(before, request(0, 1), seconds(5));
  ASSERT_EQ(1U, after.report(seconds(5)).jobs.size());
  EXPECT_EQ("a", after.report(seconds(5)).jobs[0].job.tenant);
  test.server->set_tenants({with(later, "")});
  EXPECT_EQ(session::HeartbeatReply::State::running, before.heartbeat(mine.job_epoch, 0, mine.rank_epoch, seconds(5)).state);
  EXPECT_TRUE(says(error_of([&] { static_cast<void>(before.report(seconds(5))); }), "was revoked"));
  EXPECT_EQ(1U, after.report(seconds(5)).jobs.size());
  EXPECT_TRUE(says(error_of([&] { test.server->set_tenants({with(later, later)}); }), "the same token twice"));
  EXPECT_TRUE(says(error_of([&] { test.server->set_tenants({with(later, "short")}); }), "fewer than 16"));
}

TEST(Control, TenantsSeeAndTouchOnlyTheirOwnJobs) {
  ServerOptions options;
  options.tenants = {tenant("a"), tenant("b")};
  options.tenants.push_back(tenant("operator"));
  options.tenants.back().sees_all = true;
  TestServer test(std::move(options));
  const auto client = [&](const std::string& name) { return Client({test.server->address(), tenant(name).token, ""}); };
  Client a = client("a"), b = client("b"), all = client("operator");
  const session::Admission of_a = join(a, request(0, 1), seconds(5)), of_b = join(b, request(0, 1), seconds(5));
  EXPECT_NE(of_a.job_epoch, of_b.job_epoch) << "two tenants' jobs of one name are two jobs";

  using State = session::HeartbeatReply::State;
  EXPECT_EQ(State::unknown, b.heartbeat(of_a.job_epoch, 0, of_a.rank_epoch, seconds(5)).state);
  b.leave({of_a.job_epoch, 0, of_a.rank_epoch}, seconds(5));
  EXPECT_EQ(State::running, a.heartbeat(of_a.job_epoch, 0, of_a.rank_epoch, seconds(5)).state);

  const auto jobs = [](Client& c) { return c.report(seconds(5)).jobs; };
  ASSERT_EQ(1U, jobs(b).size());
  EXPECT_EQ(of_b.job_epoch, jobs(b)[0].job.job_epoch);
  EXPECT_EQ(2U, jobs(all).size());

  // An incomplete job of a's is not completed by a rank of b's.
  session::JoinRequest half0 = request(0, 2), half1 = request(1, 2);
  half0.job = half1.job = "half";
  JoiningRanks waiting(test.server->address(), tenant("a").token);
  waiting.add(half0);
  waiting.until([&] { return jobs(a).size() == 2; });
  EXPECT_EQ(ErrorCode::deadline, error_of([&] { static_cast<void>(join(b, half1, milliseconds(100))); }).code());
  Client stranger({test.server->address(), "a token of nobody's, long enough", ""});
  EXPECT_EQ(ErrorCode::refused, error_of([&] { static_cast<void>(stranger.report(seconds(5))); }).code());
}

TEST(Control, ATenantEndsAndExplainsItsOwnJobsAndTheDaemonsTokenReachesAll) {
  ServerOptions options;
  options.tenants = {tenant("a"), tenant("b")};
  options.daemon_token = "the token of daemons, which is long enough";
  TestServer test(std::move(options));
  const std::string address = test.server->address();
  Client a({address, tenant("a").token, ""}), b({address, tenant("b").token, ""});
  Client operator_({address, "", "", "the token of daemons, which is long enough"});
  const session::Admission of_a = join(a, request(0, 1), seconds(5));
  const auto refused = [&](const char* words, const auto& call) {
    const Error error = error_of(call);
    EXPECT_EQ(ErrorCode::refused, error.code());
    EXPECT_TRUE(says(error, words)) << error.what();
  };
  refused("no job 'j' is joining or running here", [&] { b.end({"j"}, seconds(5)); });
  refused("belongs to another tenant", [&] { b.end({"j", "a"}, seconds(5)); });
  refused("this daemon has no job 'j'", [&] { static_cast<void>(b.flight_record({"j"}, seconds(5))); });
  refused("a tenant's token cannot drain a daemon", [&] { a.drain(false, seconds(5)); });
  EXPECT_NE(telemetry::explain(operator_.flight_record({"j"}, seconds(5))).find("it has not ended"), std::string::npos);
  EXPECT_EQ(1U, operator_.report(seconds(5)).jobs.size());
  a.end({"j"}, seconds(5));
  const auto reply = a.heartbeat(of_a.job_epoch, 0, of_a.rank_epoch, seconds(5));
  EXPECT_TRUE(reply.ended_by_operator);
  EXPECT_EQ("an operator at 127.0.0.1 ended job 'j' (netsum end)", reply.reason);
  EXPECT_NE(telemetry::explain(a.flight_record({"j"}, seconds(5))).find("`netsum end` ended it"), std::string::npos);
  EXPECT_EQ(1U, a.report(seconds(5)).counters.value("jobs_failed_operator"));

  static_cast<void>(join(b, request(0, 1), seconds(5)));
  operator_.drain(false, seconds(5));
  EXPECT_TRUE(b.report(seconds(5)).draining);
  refused("an operator is draining this daemon", [&] { static_cast<void>(join(a, request(0, 1), seconds(5))); });
  operator_.end({"j", "b"}, seconds(5));
  operator_.drain(true, seconds(5));
  static_cast<void>(join(a, request(0, 1), seconds(5)));
}

TEST(Control, QuotasHoldForAllJobsOfATenant) {
  ServerOptions options;
  options.tenants = {tenant("a"), tenant("b")};
  options.tenants[0].jobs = 2;
  options.tenants[0].memory_bytes = 256 << 10;
  TestServer test(std::move(options));
  Client a({test.server->address(), tenant("a").token, ""}), b({test.server->address(), tenant("b").token, ""});
  session::JoinRequest large = request(0, 1);
  large.slots_fixed = 256;
  const Error memory = error_of([&] { static_cast<void>(join(a, large, seconds(5))); });
  EXPECT_TRUE(says(memory, "tenant 'a' has 0 bytes of its 256.0 KiB in use")) << memory.what();
  static_cast<void>(join(b, large, seconds(5)));
  session::JoinRequest first = request(0, 1), second = request(0, 1), third = request(0, 1);
  first.job = "1";
  second.job = "2";
  third.job = "3";
  static_cast<void>(join(a, first, seconds(5)));
  static_cast<void>(join(a, second, seconds(5)));
  const Error jobs = error_of([&] { static_cast<void>(join(a, third, seconds(5))); });
  EXPECT_TRUE(says(jobs, "tenant 'a' has 2 jobs, its maximum")) << jobs.what();
}

// Whoever begins jobs all the time fills no log.
TEST(Control, TheLinesOfATenantAreLimited) {
  std::mutex mutex;
  std::map<char, int> lines;  // by the job's first letter
  ServerOptions options;
  options.tenants = {tenant("a"), tenant("b")};
  constexpr int many = 400;
  {
    TestServer test(std::move(options));
    test.log = [&](const std::string& line) {
      const std::lock_guard lock(mutex);
      if (line.starts_with("job '")) ++lines[line[5]];
    };
    const auto begin = [&](const std::string& whose, int jobs) {
      Client client({test.server->address(), tenant(whose).token, ""});
      for (int i = 0; i < jobs; ++i) {
        session::JoinRequest asked = request(0, 1);
        asked.job = whose + std::to_string(i);
        const session::Admission job = join(client, asked, seconds(5));
        client.leave({job.job_epoch, 0, job.rank_epoch}, seconds(5));
      }
    };
    begin("a", many);
    begin("b", 1);
  }
  EXPECT_GE(lines['a'], 100);
  EXPECT_LT(lines['a'], many);
  EXPECT_GE(lines['b'], 1);
}

TEST(Control, TenantsCanBeReplacedWhileJobsRun) {
  ServerOptions options;
  options.tenants = {tenant("a")};
  TestServer test(std::move(options));
  Client a({test.server->address(), tenant("a").token, ""}), b({test.server->address(), tenant("b").token, ""});
  const session::Admission job = join(a, request(0, 1), seconds(5));
  EXPECT_EQ(ErrorCode::bad_argument, error_of([&] { test.server->set_tenants({tenant("b"), tenant("b")}); }).code());
  test.server->set_tenants({tenant("b")});
  EXPECT_EQ(session::HeartbeatReply::State::running, a.heartbeat(job.job_epoch, 0, job.rank_epoch, seconds(5)).state);
  EXPECT_TRUE(b.report(seconds(5)).jobs.empty());
  test.server->set_tenants({tenant("a"), tenant("b")});
  EXPECT_EQ(session::HeartbeatReply::State::running, a.heartbeat(job.job_epoch, 0, job.rank_epoch, seconds(5)).state);
}

// All that two ends say to each other until a request is answered.
std::string overheard(const std::string& token) {
  DaemonEnd::Manners manners;
  manners.wants = [] { return std::pair(true, false); };
  manners.judge = [&](const Proofs& proofs, const std::string& transcript, const std::string&) {
    Verdict verdict;
    if (Tenants({{"a", token}}).prove(proofs.token, transcript, "Connect", "") != nullptr) {
      verdict.principal.emplace();
      verdict.token = token;
    }
    return verdict;
  };
  CallerEnd caller({token, ""}, nullptr);
  DaemonEnd daemon(manners, nullptr, "");
  caller.request(Kind::status, write(StatusRequest{}));
  std::string said;
  while (true) {
    const std::string up(caller.outgoing());
    caller.sent(up.size());
    daemon.received(up);
    if (daemon.take_request()) daemon.answer({std::nullopt, write(StatusReply{"{}"})});
    const std::string down(daemon.outgoing());
    daemon.sent(down.size());
    caller.received(down);
    said += up + down;
    if (const auto answer = caller.take_answer()) {
      EXPECT_FALSE(answer->failure);
      return said;
    }
    EXPECT_FALSE(up.empty() && down.empty());
  }
}

TEST(Control, TokensAreNeverSent) {
  const std::string token = "a secret of sixteen characters or more";
  const std::string heard = overheard(token);
  EXPECT_EQ(std::string::npos, heard.find(token.substr(0, 8)));
  EXPECT_NE(heard, overheard(token)) << "nothing that can be said again";
  // A proof is of one challenge, one call and one request.
  const Tenants known({{"a", token}});
  const std::string proof = proof_of(token, "1", "Leave", "x");
  EXPECT_EQ(std::string::npos, proof.find(token.substr(0, 8)));
  EXPECT_NE(nullptr, known.prove(proof, "1", "Leave", "x"));
  EXPECT_EQ(nullptr, known.prove(proof, "2", "Leave", "x"));
  EXPECT_EQ(nullptr, known.prove(proof, "1", "Status", "x"));
  EXPECT_EQ(nullptr, known.prove(proof, "1", "Leave", "y"));
  EXPECT_EQ(nullptr, known.prove(proof_of(token + "!", "1", "Leave", "x"), "1", "Leave", "x"));
  for (const char* bad : {"", ":", "0123456789abcdef:", "0123456789abcdef"})
    EXPECT_EQ(nullptr, known.prove(bad, "1", "Leave", "x"));
}

TEST(Control, TheTokenIsAskedFor) {
  ServerOptions options;
  options.token = "secret";
  TestServer test(std::move(options));
  Client right({test.server->address(), "secret", ""}), wrong({test.server->address(), "secreT", ""}),
      none({test.server->address(), "", ""});
  EXPECT_EQ(1U, right.hello(seconds(5)).lanes.size());
  const Error bad = error_of([&] { static_cast<void>(wrong.hello(seconds(5))); });
  EXPECT_EQ(ErrorCode::refused, bad.code());
  EXPECT_TRUE(says(bad, "wrong token")) << bad.what();
  const Error missing = error_of([&] { static_cast<void>(none.hello(seconds(5))); });
  EXPECT_TRUE(says(missing, "--token-file")) << missing.what();
  EXPECT_EQ(ErrorCode::refused, error_of([&] { static_cast<void>(none.report(seconds(5))); }).code());
}

TEST(Control, NobodyThereIsUnreachableWithinTheDeadline) {
  Client client({"127.0.0.1:1", "", ""});
  const Error error = error_of([&] { static_cast<void>(client.hello(milliseconds(300))); });
  EXPECT_EQ(ErrorCode::unreachable, error.code());
  EXPECT_TRUE(says(error, "127.0.0.1:1")) << error.what();
}

TEST(Control, AStoppingServerAnswersWhoeverWaits) {
  TestServer test;
  Client client({test.server->address(), "", ""});
  Error error(ErrorCode::internal, "");
  std::jthread waiting([&] { error = error_of([&] { static_cast<void>(join(client, request(0, 2), seconds(30))); }); });
  Client observer({test.server->address(), "", ""});
  while (observer.report(seconds(5)).jobs.empty()) {
  }
  test.server.reset();
  waiting.join();
  EXPECT_EQ(ErrorCode::refused, error.code());
  EXPECT_TRUE(says(error, "shutting down")) << error.what();
}

// A key and a certificate of this host that vouches for itself, in a directory of their own.
class Certificate {
 public:
  Certificate() {
    std::string pattern = std::filesystem::temp_directory_path() / "netsum-tls-XXXXXX";
    directory = mkdtemp(pattern.data());
    const std::string command =
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext "
        "subjectAltName=IP:127.0.0.1 -keyout " +
        key() + " -out " + certificate() + " 2>/dev/null";
    EXPECT_EQ(0, std::system(command.c_str()));  // NOLINT: a test's own fixed command
  }
  ~Certificate() { std::filesystem::remove_all(directory); }
  Certificate(const Certificate&) = delete;
  Certificate& operator=(const Certificate&) = delete;

  [[nodiscard]] std::string key() const { return directory / "key.pem"; }
  [[nodiscard]] std::string certificate() const { return directory / "cert.pem"; }

 private:
  std::filesystem::path directory;
};

TEST(Control, TlsTrustsOnlyTheCa) {
  const Certificate own, stranger;
  ServerOptions options;
  options.tls_cert = own.certificate();
  options.tls_key = own.key();
  TestServer test(std::move(options));
  Client trusted({test.server->address(), "", own.certificate()}), plain({test.server->address(), "", ""}),
      deceived({test.server->address(), "", stranger.certificate()});
  EXPECT_EQ(1U, trusted.hello(seconds(5)).lanes.size());
  const Error without = error_of([&] { static_cast<void>(plain.hello(milliseconds(500))); });
  EXPECT_EQ(ErrorCode::refused, without.code());
  EXPECT_TRUE(says(without, "it accepts only TLS connections: pass --tls-ca")) << without.what();
  const Error other = error_of([&] { static_cast<void>(deceived.hello(milliseconds(500))); });
  EXPECT_EQ(ErrorCode::unreachable, other.code());
  EXPECT_TRUE(says(other, "its certificate is not signed by a CA in " + stranger.certificate())) << other.what();
}

TEST(Control, KeysTravelOverTlsAlone) {
  const Certificate own;
  for (const bool tls : {true, false}) {
    ServerOptions options;
    options.registry.keys = true;
    options.registry.security = PacketSecurity::encrypt;
    if (tls) {
      options.tls_cert = own.certificate();
      options.tls_key = own.key();
    }
    TestServer test(std::move(options));
    const std::string ca = tls ? own.certificate() : "";
    Client first({test.server->address(), "", ca}), second({test.server->address(), "", ca});
    const PacketSecurity expected = tls ? PacketSecurity::encrypt : PacketSecurity::none;
    EXPECT_EQ(expected, first.hello(seconds(5)).security);
    session::Admission other;
    std::jthread rank1([&] { other = join(second, request(1, 2), seconds(10)); });
    const session::Admission own_admission = join(first, request(0, 2), seconds(10));
    rank1.join();
    EXPECT_EQ(expected, own_admission.security);
    EXPECT_EQ(tls, static_cast<bool>(own_admission.keys.up));
    EXPECT_TRUE(own_admission.results == other.results);
    EXPECT_EQ(!tls, own_admission.keys.up == other.keys.up);
  }
}

TEST(Control, TlsFilesThatCannotServeAreRefused) {
  const Certificate own;
  ServerOptions half, absent, swapped;
  half.tls_cert = own.certificate();
  EXPECT_TRUE(says(error_of([&] { TestServer test(std::move(half)); }), "--tls-key"));
  absent.tls_cert = own.certificate();
  absent.tls_key = own.key() + "s";
  const Error missing = error_of([&] { TestServer test(std::move(absent)); });
  EXPECT_EQ(ErrorCode::bad_argument, missing.code());
  EXPECT_TRUE(says(missing, own.key() + "s")) << missing.what();
  swapped.tls_cert = own.key();
  swapped.tls_key = own.certificate();
  EXPECT_TRUE(says(error_of([&] { TestServer test(std::move(swapped)); }), "certificate"));
  EXPECT_EQ(ErrorCode::bad_argument, error_of([&] { Client client({"127.0.0.1:1", "", own.key() + "s"}); }).code());
}

// ---- switches below

// A name server that answers nobody.
class Silent final : public Lookup {
 public:
  [[nodiscard]] std::optional<std::vector<Endpoint>> result() override { return std::nullopt; }
};

// Whose jobs have switches, and tell these nothing but their names.
struct Teller {
  explicit Teller(ServerOptions options = {}) {
    options.listen = "127.0.0.1:0";
    options.registry.protocols = {jobs::atp_rules()};
    ServerHooks hooks;
    hooks.lanes = [] { return std::vector<Endpoint>(1); };
    hooks.start_job = [](const session::StartJob&) {};
    hooks.stop_job = [](const session::StopJob&) {};
    hooks.fill_report = [](telemetry::Report&) {};
    hooks.switches.complete = [](std::vector<Endpoint>&, const std::string&) {};
    hooks.switches.place = [this](const session::StartJob&, const SwitchLanes& lanes) {
      const std::lock_guard lock(mutex);
      placed = lanes;
      changed.notify_all();
    };
    hooks.switches.describe = [](const session::StartJob& start, std::uint32_t switch_id, bool, const SwitchLanes& lanes) {
      const std::vector<Endpoint> own = start.endpoints[0];
      return jobs::message_of(jobs::installation_for(start, switch_id, {}, session::switch_endpoints(lanes), own));
    };
    server = std::make_unique<Server>(std::move(options), std::move(hooks));
  }
  [[nodiscard]] bool is_placed(std::uint16_t port) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, seconds(20),
                            [&] { return placed.size() == 1 && !placed[0].empty() && placed[0][0].port == port; });
  }
  std::mutex mutex;
  std::condition_variable changed;
  SwitchLanes placed;
  std::unique_ptr<Server> server;
};

struct Below {
  explicit Below(const std::string& listen, std::uint16_t lane) {
    ServerOptions options;
    options.listen = listen;
    ServerHooks hooks;
    hooks.lanes = [lane] { return std::vector<Endpoint>{Endpoint{.port = lane}}; };
    hooks.stop_job = [](const session::StopJob&) {};
    hooks.fill_report = [](telemetry::Report&) {};
    hooks.cost = [](const session::SwitchMessage& message) {
      return session::InstallationCost{0, jobs::memory_bytes(jobs::read_installation(message))};
    };
    hooks.install = [this](const session::SwitchMessage& message, const Caller&) {
      const std::lock_guard lock(mutex);
      told = message.job_epoch;
      changed.notify_all();
      return session::JobView{};
    };
    hooks.uninstall = [](std::uint64_t) {};
    server = std::make_unique<Server>(std::move(options), std::move(hooks));
  }
  [[nodiscard]] bool is_told(std::uint64_t epoch) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, seconds(20), [&] { return told == epoch; });
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t told = 0;
  std::unique_ptr<Server> server;
};

session::JoinRequest request_at(const std::string& job, const std::string& switch_id) {
  session::JoinRequest alone = request(0, 1);
  alone.protocol = "atp";
  alone.protocol_version = wire::atp::version;
  alone.job = job;
  alone.switch_address = switch_id;
  alone.own = jobs::own_part(jobs::AtpAsk{1024});
  return alone;
}

using Clock = std::chrono::steady_clock;

TEST(Control, DeadSwitchesAndASilentNameServerDelayNoOtherJob) {
  std::atomic<int> names_asked_for = 0;
  Below live("127.0.0.1:0", 7);
  ServerOptions options;
  options.switches.resolve = [&](const std::string& address) -> std::unique_ptr<Lookup> {
    if (address.front() != 'd') return look_up(address);
    ++names_asked_for;
    return std::make_unique<Silent>();
  };
  const auto dead = [](int i) {
    return (i % 2 == 0 ? "dead" : "127.0.0.1:") + std::to_string(i + 1) + (i % 2 == 0 ? ".test:7170" : "");
  };
  Teller test(options);
  constexpr int slow_jobs = 64;
  JoiningRanks slow(test.server->address());
  for (int i = 0; i < slow_jobs; ++i) slow.add(request_at("slow" + std::to_string(i), dead(i)));
  Client client({test.server->address(), "", ""});
  slow.until([&] { return test.server->report().jobs.size() == slow_jobs; });
  std::vector<Clock::duration> took;
  for (int i = 0; i < 11; ++i) {
    const auto begin = Clock::now();
    const auto mine = join(client, request_at("quick", live.server->address()), seconds(30));
    EXPECT_TRUE(live.is_told(mine.job_epoch));
    static_cast<void>(client.heartbeat(mine.job_epoch, 0, mine.rank_epoch, seconds(30)));
    client.leave({mine.job_epoch, 0, mine.rank_epoch}, seconds(30));
    took.push_back(Clock::now() - begin);
  }
  // What waits behind one dead switch waits for its deadline. The median: a busy machine is late now and then.
  std::nth_element(took.begin(), took.begin() + 5, took.end());
  EXPECT_LT(took[5], session::installation_deadline) << "of a join, a heartbeat and a goodbye";
  EXPECT_GT(names_asked_for, 0);
}

TEST(Control, ATenantIsChargedForWhatItsJobsTakeAtASwitch) {
  Below below("127.0.0.1:0", 7);
  Teller test;
  Client client({test.server->address(), "", ""});
  const auto mine = join(client, request_at("j", below.server->address()), seconds(30));
  ASSERT_TRUE(below.is_told(mine.job_epoch));
  const std::uint64_t least = std::uint64_t{mine.slots} * 2 * sizeof(std::uint64_t);  // the rings of the window alone
  EXPECT_GT(below.server->report().memory_used, least);
}

TEST(Control, ASwitchIsToldOfRunningJobsWithinASecondOfBeingReachable) {
  const std::string address = Below("127.0.0.1:0", 1).server->address();
  Teller test;
  Client client({test.server->address(), "", ""});
  const auto mine = join(client, request_at("j", address), seconds(30));  // without it
  auto begin = Clock::now();
  {
    Below late(address, 8);
    EXPECT_TRUE(late.is_told(mine.job_epoch));
    EXPECT_LT(Clock::now() - begin, seconds(1));
    EXPECT_TRUE(test.is_placed(8));
  }
  begin = Clock::now();
  Below again(address, 9);  // restarted, and its data sockets are elsewhere
  EXPECT_TRUE(again.is_told(mine.job_epoch));
  EXPECT_TRUE(test.is_placed(9));
  EXPECT_LT(Clock::now() - begin, seconds(1));
}

}  // namespace
}  // namespace netsum::control
