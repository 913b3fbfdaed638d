// A daemon serves a protocol that neither it nor its lanes know: all that tells protocols apart comes in as a service.
#include "daemon/node.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "control/client.h"
#include "daemon/packet_security.h"
#include "daemon/proved_endpoints.h"
#include "jobs/switchml_job.h"
#include "transport/addresses/addresses.h"
#include "transport/datagram/path.h"
#include "transport/datagram/udp.h"
#include "unit/transport_fixture.h"
#include "wire/switchml.h"

namespace netsum::daemon {
namespace {

using std::chrono::seconds;
using transport::Bytes;

// Sends a rank's packets back while its job runs.
class EchoFormat final : public service::Format {
 public:
  static constexpr std::uint8_t first_byte = 0xec;

  [[nodiscard]] bool takes(std::uint8_t first) const override { return first == first_byte; }
  void on_packets(std::span<const RxView> packets, bool, Time, Sink& sink) override {
    for (const RxView& packet : packets) {
      if (std::find(ranks.begin(), ranks.end(), packet.source) == ranks.end()) {
        ++strange;
        continue;
      }
      ++echoes;
      std::ranges::copy(packet.bytes, sink.datagram(packet.source, packet.bytes.size()).begin());
    }
  }
  [[nodiscard]] std::uint64_t strangers() const override { return strange; }

  std::vector<Endpoint> ranks;
  std::uint64_t echoes = 0, strange = 0;
};

session::ProtocolRules echo_rules() {
  session::ProtocolRules rules = jobs::switchml_rules();
  rules.name = "echo";
  return rules;
}

class EchoService final : public service::Service {
 public:
  explicit EchoService(service::Lane& lane) : lane_(lane), format_(service::serve<EchoFormat>(lane)) {}

  void report(std::size_t, Counters& counters) const override { counters.add("strangers", format_->strange); }
  [[nodiscard]] std::optional<session::ProtocolRules> rules() const override { return echo_rules(); }
  [[nodiscard]] std::unique_ptr<service::ServedJob> start(const session::StartJob& start) override {
    return std::make_unique<Job>(*this, start.endpoints);
  }

 private:
  class Job final : public service::ServedJob {
   public:
    Job(EchoService& service, const std::vector<std::vector<Endpoint>>& ranks) : service_(service) {
      service_.lane_.run([&] {
        for (const auto& lanes : ranks) service_.format_->ranks.push_back(lanes.front());
      });
    }
    ~Job() override { stop(); }
    void stop() override {
      service_.lane_.run([&] { service_.format_->ranks.clear(); });
    }
    void report(std::size_t, session::JobReport& report) const override {
      report.counters.add("echoes", service_.format_->echoes);
    }

   private:
    EchoService& service_;
  };

  service::Lane& lane_;
  EchoFormat* const format_;
};

TEST(Node, ServesAProtocolThatItDoesNotKnow) {
  NodeOptions options;
  options.sockets.listen = options.server.listen = "127.0.0.1:0";
  options.cookies = EndpointCookies({1, 2});
  Node node(options);
  std::vector<std::unique_ptr<service::Service>> services;
  services.push_back(std::make_unique<EchoService>(*node.lanes().front()));
  node.serve(std::move(services), {});

  control::Client client({node.address(), "", ""});
  const Endpoint lane = client.hello(seconds(5)).lanes.front();
  transport::Udp rank({.bind = transport::resolve("127.0.0.1:0")});
  session::JoinRequest request;
  request.protocol_version = wire::switchml::version;
  request.protocol = "echo";
  request.job = "j";
  request.world_size = 1;
  request.packet_elements = 256;
  request.slots_measured = 16;
  request.endpoints = {rank.local()};
  EXPECT_THROW(static_cast<void>(client.join(request, echo_rules(), seconds(5))), Error)
      << "without proof that its endpoint receives";
  request.cookies = {options.cookies.of(rank.local())};
  const session::Admission admission = client.join(request, echo_rules(), seconds(5));

  const Bytes packet(100, std::byte{EchoFormat::first_byte});
  const auto send = [&] {
    transport::write(rank.sink(), lane, packet);
    rank.sink().flush();
  };
  send();
  const auto echoed = transport::collect(rank, 1);
  ASSERT_EQ(echoed.size(), 1U);
  EXPECT_EQ(echoed[0].bytes, packet);
  const telemetry::Report report = client.report(seconds(5));
  ASSERT_EQ(report.jobs.size(), 1U);
  EXPECT_EQ(report.jobs[0].counters.value("echoes"), 1U);
  EXPECT_EQ(report.counters.value("packets_received"), 1U);
  EXPECT_GT(report.counters.value("busy_nanoseconds"), 0U);

  client.leave({admission.job_epoch, 0, admission.rank_epoch}, seconds(5));
  EXPECT_TRUE(transport::eventually([&] {
    send();
    return client.report(seconds(5)).counters.value("strangers") > 0;
  }));
}

// Whoever knew the secret could have results sent anywhere.
TEST(ProvedEndpoints, TheSecretOfCookiesIsRandomAndOutlivesARestart) {
  const std::string folder = ::testing::TempDir() + "netsum_cookies." + std::to_string(::getpid());
  const Endpoint endpoint = transport::resolve("192.0.2.1:7");
  const auto cookie = [&](const std::string& state, const std::string& listen = "0.0.0.0:7170") {
    return cookies_of(listen, state).of(endpoint);
  };
  EXPECT_NE(cookie(""), cookie(""));
  const std::uint64_t first = cookie(folder);
  EXPECT_EQ(first, cookie(folder));
  EXPECT_NE(first, cookie(folder, "0.0.0.0:7171")) << "another daemon with this folder";
  EXPECT_EQ(0600U, static_cast<unsigned>(std::filesystem::status(folder + "/cookies").permissions()));
  std::filesystem::resize_file(folder + "/cookies", 5);  // a start that was cut short
  EXPECT_NE(first, cookie(folder));
  EXPECT_EQ(cookie(folder), cookie(folder));
  std::filesystem::remove_all(folder);
  EXPECT_THROW(static_cast<void>(cookie("/proc/nowhere")), Error);
}

// Packets without a seal are believed of near ranks, so nobody else may say that it is one.
TEST(ProvedEndpoints, ANearRankUsesTheLoopbackDevice) {
  const EndpointCookies cookies({1, 2});
  session::JoinRequest request;
  const Endpoint own = transport::path_towards(transport::resolve("192.0.2.1:7")).local;  // on a link, unless there is none
  for (const std::string& address :
       {std::string("127.0.0.1:7"), std::string("[::1]:7"), std::string("192.0.2.1:7"), transport::to_string(own)}) {
    request.endpoints = {transport::resolve(address)};
    request.cookies = {cookies.of(request.endpoints.front())};
    request.near = false;
    EXPECT_EQ("", check_endpoints(request, cookies)) << address;
    request.near = true;
    EXPECT_EQ(address.starts_with("127.") || address.starts_with("[::1]"), check_endpoints(request, cookies).empty())
        << address;
  }
}

TEST(PacketSecurity, KeysNeedTls) {
  session::RegistryConfig registry;
  choose_keys(PacketSecurityOptions{}, registry);
  EXPECT_FALSE(registry.keys);
  EXPECT_EQ(PacketSecurity::none, registry.security);
  choose_keys(PacketSecurityOptions{.tls = true}, registry);
  EXPECT_TRUE(registry.keys && !registry.keys_below);
  EXPECT_EQ(PacketSecurity::tag, registry.security);
  choose_keys(PacketSecurityOptions{.wanted = PacketSecurity::encrypt, .tls = true, .tls_to_switches = true}, registry);
  EXPECT_TRUE(registry.keys && registry.keys_below);
  EXPECT_EQ(PacketSecurity::encrypt, registry.security);
  for (const PacketSecurityOptions& wrong :
       {PacketSecurityOptions{.required = true}, PacketSecurityOptions{.wanted = PacketSecurity::tag},
        PacketSecurityOptions{.wanted = PacketSecurity::none, .required = true, .tls = true}}) {
    EXPECT_THROW(choose_keys(wrong, registry), Error);
  }
}

TEST(PacketSecurity, OneWarningSaysWhatItMeansToHaveNoKeys) {
  std::vector<std::string> lines;
  const auto log = [&](const std::string& line) { lines.push_back(line); };
  session::RegistryConfig registry;
  warn_of_no_keys(registry, "127.0.0.1:0", log);
  EXPECT_TRUE(lines.empty()) << "no host is in between";
  warn_of_no_keys(registry, "0.0.0.0:0", log);
  ASSERT_EQ(1U, lines.size());
  EXPECT_NE(std::string::npos, lines[0].find("--tls-cert"));
  registry.security = PacketSecurity::tag;
  warn_of_no_keys(registry, "0.0.0.0:0", log);
  EXPECT_EQ(1U, lines.size());
}

}  // namespace
}  // namespace netsum::daemon
