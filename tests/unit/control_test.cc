// The control plane over real gRPC on loopback: admission, secrets, TLS, and errors in words.

#include "control/client.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <stop_token>
#include <thread>

#include "control/server.h"
#include "telemetry/report.h"

namespace netsum::control {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct TestServer {
  explicit TestServer(ServerOptions options = {}) {
    options.listen = "127.0.0.1:0";
    ServerHooks hooks;
    hooks.lanes = [] { return std::vector<Endpoint>(1); };
    hooks.start_job = [this](const session::StartJob& start) {
      ++started;
      listens = start.listens;
    };
    hooks.groups = [](const std::string& job) {
      return std::vector<Endpoint>(1, Endpoint{.port = static_cast<std::uint16_t>(7000 + job.size())});
    };
    hooks.stop_job = [this](const session::StopJob&) { ++stopped; };
    hooks.fill_report = [](telemetry::Report& report) { report.version = "test"; };
    server = std::make_unique<Server>(std::move(options), std::move(hooks));
  }
  std::vector<bool> listens;     // of the last job
  int started = 0, stopped = 0;  // by control threads, one at a time; read when all of them are done
  std::unique_ptr<Server> server;
};

session::JoinRequest request(std::uint32_t rank, std::uint32_t world_size) {
  session::JoinRequest request;
  request.protocol_version = 1;
  request.protocol = "switchml";
  request.job = "j";
  request.rank = rank;
  request.world_size = world_size;
  request.packet_elements = 256;
  request.slots_measured = 16;
  request.endpoints.resize(1);
  return request;
}

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
  EXPECT_EQ(first.hello(seconds(5), "abc").groups, std::vector<Endpoint>{Endpoint{.port = 7003}});
  session::JoinRequest listener = request(1, 2);
  listener.listens = true;
  std::jthread rank1([&] { static_cast<void>(second.join(listener, seconds(10))); });
  static_cast<void>(first.join(request(0, 2), seconds(10)));
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
  std::jthread rank1([&] { other = second.join(request(1, 2), seconds(10)); });
  const session::Admission mine = first.join(request(0, 2), seconds(10));
  rank1.join();
  EXPECT_EQ(mine.job_epoch, other.job_epoch);
  EXPECT_EQ((std::vector<std::uint32_t>{mine.rank_epoch, other.rank_epoch}), mine.rank_epochs);

  using State = session::HeartbeatReply::State;
  EXPECT_EQ(State::running, first.heartbeat(mine.job_epoch, 0, mine.rank_epoch, seconds(5)).state);
  EXPECT_EQ(State::unknown, first.heartbeat(mine.job_epoch + 1, 0, mine.rank_epoch, seconds(5)).state);
  second.leave(other.job_epoch, 1, other.rank_epoch, seconds(5));
  EXPECT_TRUE(first.heartbeat(mine.job_epoch, 0, mine.rank_epoch, seconds(5)).left.contains(1));
  const telemetry::Report report = first.report(seconds(5));
  EXPECT_EQ("test", report.version);
  ASSERT_EQ(1U, report.jobs.size());
  EXPECT_EQ("j", report.jobs[0].job.job);
  EXPECT_TRUE(report.jobs[0].job.left.contains(1));
  first.leave(mine.job_epoch, 0, mine.rank_epoch, seconds(5));
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
  ahead.progress = {9, 6, {11}};
  behind.progress = {8, 8, {}};
  session::Admission other;
  std::jthread rank1([&] { other = second.join(behind, seconds(10)); });
  const session::Admission mine = first.join(ahead, seconds(10));
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
  const Error error = error_of([&] { static_cast<void>(client.join(request(1, 3), seconds(60), stop.get_token())); });
  EXPECT_EQ(ErrorCode::closed, error.code());
}

TEST(Control, AJoinDeadlineNamesTheMissingRanks) {
  TestServer test;
  Client client({test.server->address(), "", ""});
  const Error error = error_of([&] { static_cast<void>(client.join(request(1, 3), milliseconds(200))); });
  EXPECT_EQ(ErrorCode::deadline, error.code());
  EXPECT_TRUE(says(error, "ranks 0, 2 of 3")) << error.what();
}

TEST(Control, ARefusalKeepsItsWords) {
  TestServer test;
  Client client({test.server->address(), "", ""});
  const Error error = error_of([&] { static_cast<void>(client.join(request(3, 3), seconds(5))); });
  EXPECT_EQ(ErrorCode::refused, error.code());
  EXPECT_TRUE(says(error, "rank 3 is not below the world size 3")) << error.what();
}

TEST(Control, ParametersThatDifferAreRefusedInTheRegistrysWords) {
  TestServer test;
  Client first({test.server->address(), "", ""}), second({test.server->address(), "", ""});
  session::JoinRequest other = request(1, 2);
  other.packet_elements = 512;
  std::jthread waiting([&] { static_cast<void>(first.join(request(0, 2), seconds(30))); });
  while (second.report(seconds(5)).jobs.empty()) {
  }
  const Error error = error_of([&] { static_cast<void>(second.join(other, seconds(5))); });
  EXPECT_EQ(ErrorCode::refused, error.code());
  EXPECT_TRUE(says(error, "elements per packet 512, rank 0 with 256")) << error.what();
  EXPECT_TRUE(says(error, test.server->address())) << error.what();
  static_cast<void>(second.join(request(1, 2), seconds(30)));
}

TEST(Control, ASilentRankIsNamedToTheOthers) {
  ServerOptions options;
  options.registry.heartbeat_timeout = milliseconds(1500);
  TestServer test(std::move(options));
  Client first({test.server->address(), "", ""}), second({test.server->address(), "", ""});
  std::jthread rank1([&] { static_cast<void>(second.join(request(1, 2), seconds(10))); });
  const session::Admission mine = first.join(request(0, 2), seconds(10));
  rank1.join();
  session::HeartbeatReply reply;
  do {
    reply = first.heartbeat(mine.job_epoch, 0, mine.rank_epoch, seconds(5));
  } while (reply.state == session::HeartbeatReply::State::running);
  EXPECT_EQ(session::HeartbeatReply::State::failed, reply.state);
  EXPECT_EQ(1U, reply.lost);
  EXPECT_NE(std::string::npos, reply.reason.find("rank 1 of job 'j'")) << reply.reason;
  EXPECT_EQ(16384U, first.report(seconds(5)).slots_free);
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
  std::jthread waiting([&] { error = error_of([&] { static_cast<void>(client.join(request(0, 2), seconds(30))); }); });
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
  EXPECT_EQ(ErrorCode::unreachable, without.code());
  EXPECT_TRUE(says(without, "without TLS")) << without.what();
  const Error other = error_of([&] { static_cast<void>(deceived.hello(milliseconds(500))); });
  EXPECT_EQ(ErrorCode::unreachable, other.code());
  EXPECT_TRUE(says(other, "over TLS with the CA " + stranger.certificate())) << other.what();
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

}  // namespace
}  // namespace netsum::control
