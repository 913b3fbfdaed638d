// What the kernel drops for a lane, by a real socket, and when.
#include "runtime/flood_gate.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "runtime/aggregator_lane.h"
#include "service/switchml_service.h"
#include "transport/datagram/udp.h"
#include "unit/transport_fixture.h"
#include "wire/atp.h"
#include "wire/roce.h"
#include "wire/switchml.h"

namespace netsum::runtime {
namespace {

using namespace std::chrono_literals;
using transport::Udp;
using Bytes = std::vector<std::byte>;

constexpr std::uint64_t epoch = 0x0123456789abcdef, other_epoch = 0xfedcba9876543210;

Bytes contribution(std::uint64_t job_epoch) {
  Bytes bytes(wire::switchml::chunk_packet_bytes({.elements = 1}));
  wire::switchml::write_chunk_header(bytes, {wire::switchml::Type::contribution, 0, job_epoch, 1}, {.elements = 1});
  wire::switchml::seal(bytes);
  return bytes;
}

Bytes gradient(std::uint64_t job_epoch) {
  const wire::atp::Common common{.type = wire::atp::Type::gradient, .job_epoch = job_epoch, .elements = 1};
  Bytes bytes(wire::atp::gradient_bytes(common, {}));
  wire::atp::write_gradient_header(bytes, common, {});
  wire::atp::seal(bytes);
  return bytes;
}

Bytes probe() {
  Bytes bytes(wire::switchml::probe_reply_bytes);
  wire::switchml::write_probe(bytes, {{wire::switchml::Type::probe, 0, 0, 0}, 1});
  return bytes;
}

Bytes roce() {
  Bytes bytes(60);
  bytes[0] = std::byte{0x45};
  return bytes;
}

std::unique_ptr<Udp> a_socket() {
  return std::make_unique<Udp>(transport::UdpOptions{.bind = transport::resolve("127.0.0.1:0")});
}

void send(Udp& from, const Endpoint& to, const Bytes& bytes, int times = 1) {
  for (int i = 0; i < times; ++i) transport::write(from.sink(), to, bytes);
  from.sink().flush();
}

// How many of so many are received; the kernel has dropped the others.
std::uint64_t received_of(Udp& socket, std::uint64_t sent) {
  EXPECT_TRUE(transport::eventually([&] {
    static_cast<void>(socket.receive());
    const transport::Counters counters = socket.counters();
    return counters.packets_received + counters.dropped_kernel == sent;
  }));
  return socket.counters().packets_received;
}

// Which of these come through.
std::vector<bool> passing(const Guests& guests, const std::vector<Bytes>& datagrams) {
  std::vector<bool> passed;
  for (const Bytes& datagram : datagrams) {
    const std::unique_ptr<Udp> socket = a_socket(), sender = a_socket();
    EXPECT_TRUE(socket->set_filter(filter_of(guests, 0)));
    send(*sender, socket->local(), datagram);
    passed.push_back(received_of(*socket, 1) == 1);
  }
  return passed;
}

TEST(FloodFilter, PassesGuestsAndProbes) {
  using Verdicts = std::vector<bool>;
  const std::vector<Bytes> all = {contribution(epoch),
                                  contribution(other_epoch),
                                  gradient(epoch),
                                  gradient(other_epoch),
                                  probe(),
                                  roce(),
                                  Bytes(1),
                                  Bytes()};
  EXPECT_EQ(passing({}, all), Verdicts({false, false, false, false, true, false, false, false}));
  EXPECT_EQ(passing({.epochs = {epoch}}, all), Verdicts({true, false, true, false, true, false, false, false}));
  EXPECT_EQ(passing({.epochs = {other_epoch, epoch}}, all), Verdicts({true, true, true, true, true, false, false, false}));
  EXPECT_EQ(passing({.epochs = {other_epoch}, .rings = 1}, all),
            Verdicts({false, true, false, true, true, true, false, false}));
}

TEST(FloodFilter, HoldsHundredsOfJobsAndThenNone) {
  Guests guests;
  for (std::uint64_t i = 0; i < 600; ++i) guests.epochs.push_back(epoch + i);
  EXPECT_EQ(passing(guests, {contribution(guests.epochs.back()), contribution(epoch - 1)}),
            std::vector<bool>({true, false}));
  guests.epochs.resize(3000);
  EXPECT_TRUE(filter_of(guests).empty());
}

TEST(FloodFilter, LetsSomeStrangersIn) {
  const std::unique_ptr<Udp> socket = a_socket(), sender = a_socket();
  ASSERT_TRUE(socket->set_filter(filter_of({}, 16)));
  std::uint64_t passed = 0;
  for (std::uint64_t i = 1; i <= 1600; ++i) {
    send(*sender, socket->local(), contribution(epoch));
    passed = received_of(*socket, i);
  }
  EXPECT_GT(passed, 25U);  // 100 of them, give or take
  EXPECT_LT(passed, 400U);
  EXPECT_TRUE(socket->set_filter({}));
  EXPECT_TRUE(socket->set_filter({})) << "there is none";
  send(*sender, socket->local(), contribution(epoch));
  EXPECT_EQ(transport::collect(*socket, 1).size(), 1U);
}

TEST(FloodGate, ShutsInAFloodAndOpensWhenItEbbs) {
  FloodGate gate;
  Time now{5s};
  EXPECT_FALSE(gate.received(FloodGate::most_in_window, now));
  now += FloodGate::window + 1ns;
  EXPECT_FALSE(gate.received(FloodGate::most_in_window, now)) << "a new window";
  EXPECT_TRUE(gate.received(1, now));
  EXPECT_TRUE(gate.is_shut());
  EXPECT_FALSE(gate.received(FloodGate::most_in_window, now)) << "once";
  EXPECT_FALSE(gate.is_due(now));
  now += FloodGate::look_again;
  ASSERT_TRUE(gate.is_due(now));
  EXPECT_FALSE(gate.looked(1'000'000, now)) << "how many of them were dropped since is not known";
  EXPECT_FALSE(gate.is_due(now));
  EXPECT_FALSE(gate.looked(1'000'000 + FloodGate::most_in_window, now += FloodGate::look_again));
  EXPECT_TRUE(gate.looked(1'000'001 + FloodGate::most_in_window, now += FloodGate::look_again));
  EXPECT_FALSE(gate.is_shut());
  EXPECT_TRUE(gate.received(FloodGate::most_in_window + 1, now + FloodGate::window + 1ns));
}

// The jobs of a lane are served while it is flooded: those from before, and those that come.
TEST(AggregatorLane, ServesItsJobsInAFlood) {
  AggregatorLane lane(a_socket(), UINT64_MAX, 0, ThreadOptions{});
  service::SwitchMlService service({&lane});
  const std::unique_ptr<Udp> rank = a_socket(), stranger = a_socket();
  const auto start_job = [&](std::uint64_t job_epoch) {
    session::StartJob start;
    start.admission.job_epoch = job_epoch;
    start.admission.packet_elements = 256;
    start.admission.slots = 2;
    start.admission.rank_epochs = {1};
    start.endpoints = {{rank->local()}};
    start.listens = {false};
    return service.start(start);
  };
  transport::Counters seen;
  const auto look = [&] {
    lane.run([&] { seen = lane.counters(); });
    return seen;
  };
  // Bursts that the smallest receive buffer holds: what is dropped then, the filter drops.
  const auto is_flooded = [&] {
    send(*stranger, lane.local(), contribution(7), 100);
    return look().dropped_kernel > 0;
  };
  const auto job = start_job(epoch);
  EXPECT_TRUE(transport::eventually(is_flooded));
  const auto other_job = start_job(other_epoch);
  for (const std::uint64_t each : {epoch, other_epoch}) {
    send(*rank, lane.local(), contribution(each));
    EXPECT_EQ(transport::collect(*rank, 1).size(), 1U) << "the sum of one";
  }
  job->stop();
  EXPECT_TRUE(transport::eventually([&] {
    static_cast<void>(is_flooded());
    const std::uint64_t received = look().packets_received;
    send(*rank, lane.local(), contribution(epoch), 100);
    look();  // between this and the next look it receives
    return look().packets_received < received + 50;
  })) << "a stranger's, now";
}

}  // namespace
}  // namespace netsum::runtime
