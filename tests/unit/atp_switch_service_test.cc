// What an ATP switch takes of the aggregators that tell it of jobs.
#include "service/atp_switch_service.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "netsum/error.h"
#include "protocol/atp/sealed_hops.h"
#include "support/atp_packets.h"

namespace netsum::service {
namespace {

class HeapMemory final : public Memory {
 public:
  explicit HeapMemory(std::size_t bytes) : lines_((bytes + sizeof(Line) - 1) / sizeof(Line)) {}
  [[nodiscard]] std::span<std::byte> bytes() override { return std::as_writable_bytes(std::span(lines_)); }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> lines_;
};

class OneLane final : public Lane {
 public:
  void serve(std::unique_ptr<Format> format) override { format_ = std::move(format); }
  void run(const std::function<void()>& command) override { command(); }
  [[nodiscard]] std::unique_ptr<Memory> allocate(std::size_t bytes, Pages) override {
    return std::make_unique<HeapMemory>(bytes);
  }
  [[nodiscard]] std::vector<testing::Datagram> give(const testing::Datagram& datagram) {
    const RxView view{datagram.bytes, datagram.from};
    testing::RecordingSink sink;
    format_->on_packets({&view, 1}, false, Time{}, sink);
    return sink.take();
  }

 private:
  std::unique_ptr<Format> format_;
};

Endpoint host(std::uint16_t port) {
  return {.address = {0xfd, 1}, .port = port};
}
const Endpoint own = host(3);

seal::PacketKey key(std::uint8_t number) {
  seal::PacketKey::Bytes bytes{};
  bytes[0] = std::byte{number};
  return seal::PacketKey(bytes);
}

jobs::AtpInstallation installation(PacketSecurity security) {
  jobs::AtpInstallation installation;
  installation.job = "train";
  installation.job_epoch = 7;
  installation.packet_elements = 64;
  installation.window = 4;
  installation.next_level = 1;
  installation.security = security;
  jobs::AtpInstallation::Lane& lane = installation.lanes.emplace_back();
  lane.parent = host(1);
  lane.children.push_back({.endpoint = host(2), .rank_epoch = 100, .ranks = {0}});
  if (security != PacketSecurity::none) {
    lane.keys = {key(1), key(2)};
    lane.children[0].keys = {key(3), key(4)};
  }
  return installation;
}

// The rank's packet to the switch.
testing::Datagram sealed(seal::Hops& hops, const testing::Bytes& packet) {
  testing::RecordingSink network;
  {
    seal::SealingSink sink(network, hops);
    const std::span<std::byte> place = sink.datagram(own, packet.size());
    std::copy(packet.begin(), packet.end(), place.begin());
  }
  network.flush();
  testing::Datagram sent = network.take().front();
  sent.from = host(2);
  return sent;
}

// The first answer was lost, or held up by who wants to see a nonce twice; after the lease the switch has forgotten the job,
// and the server does not know that it ever had it.
TEST(AtpSwitchService, KeysThatItHasForgottenSealNoSecondPacketWithOneNumber) {
  OneLane lane;
  AtpSwitchService service({&lane}, {.slots = 8, .packet_elements = 64});
  const jobs::AtpInstallation told = installation(PacketSecurity::encrypt);
  const jobs::AtpInstallation::Lane& hops = told.lanes.front();
  seal::Hops rank = atp::no_hops(), server = atp::no_hops();
  rank.set(told.job_epoch, told.security, std::vector<seal::Neighbour>{{own, hops.children[0].keys.up, {}}},
           {&told.job_epoch, 1});
  server.set(told.job_epoch, told.security, std::vector<seal::Neighbour>{{own, {}, hops.keys.up}}, {&told.job_epoch, 1});
  for (std::uint64_t life = 0; life < 3; ++life) {
    const InstalledJob installed = service.install(jobs::message_of(told), nullptr, [](const auto&) {});
    ASSERT_NE(nullptr, installed.job);
    EXPECT_EQ(nullptr, service.install(jobs::message_of(told), installed.job.get(), [](const auto&) {}).job) << "a repeat";
    wire::atp::Common common;
    common.job_epoch = told.job_epoch;
    common.rank_epoch = 100;
    common.sequence = life;
    const std::vector<testing::Datagram> sums =
        lane.give(sealed(rank, testing::gradient_bytes_of(common, {0, {1, 1, 0, 0}, {1, 1, 0, 0}}, {5})));
    ASSERT_EQ(1U, sums.size());
    const RxView view{sums.front().bytes, own};
    EXPECT_EQ(1U, server.open({&view, 1}).size()) << "a number that the server has seen";
  }
}

TEST(AtpSwitchService, AChipTakesJobsForChipsAlone) {
  OneLane lane;
  AtpSwitchService service({&lane}, {.slots = 8, .packet_elements = 256, .chip = true});
  const auto why = [&](const jobs::AtpInstallation& told) -> std::string {
    try {
      static_cast<void>(service.install(jobs::message_of(told), nullptr, [](const auto&) {}));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  jobs::AtpInstallation told = installation(PacketSecurity::none);
  EXPECT_NE(std::string::npos, why(told).find("--rules chip"));
  told.rules = atp::Rules::chip;
  EXPECT_EQ("", why(told));
  told.packet_elements = 65;
  EXPECT_NE(std::string::npos, why(told).find("64 or 256 elements"));
  told = installation(PacketSecurity::tag);
  told.rules = atp::Rules::chip;
  EXPECT_NE(std::string::npos, why(told).find("no packet keys"));
}

// Another process of it has sealed packets, and nobody knows how many.
TEST(AtpSwitchService, KeysOfAFormerProcessServeNobodyAgain) {
  OneLane lane;
  AtpSwitchService service({&lane}, {.slots = 8, .packet_elements = 64});
  jobs::AtpInstallation told = installation(PacketSecurity::encrypt);
  told.again = true;
  EXPECT_THROW(static_cast<void>(service.install(jobs::message_of(told), nullptr, [](const auto&) {})), Error);
  told = installation(PacketSecurity::none);
  told.again = true;
  EXPECT_NE(nullptr, service.install(jobs::message_of(told), nullptr, [](const auto&) {}).job);
}

TEST(AtpSwitchService, AMessageWithoutSenseIsRefusedBeforeAnythingIsTaken) {
  OneLane lane;
  AtpSwitchService service({&lane}, {.slots = 8, .packet_elements = 64});
  const jobs::AtpInstallation good = installation(PacketSecurity::none);
  EXPECT_LT(0U, service.cost(jobs::message_of(good)).own);
  session::SwitchMessage bytes = jobs::message_of(good);
  bytes.own.pop_back();
  jobs::AtpInstallation without = good;
  without.lanes.clear();
  for (const session::SwitchMessage& wrong : {bytes, jobs::message_of(without)}) {
    const auto prove = [](const auto&) { ADD_FAILURE() << "nothing is proved of it"; };
    EXPECT_THROW(static_cast<void>(service.cost(wrong)), Error);
    EXPECT_THROW(static_cast<void>(service.install(wrong, nullptr, prove)), Error);
  }
  EXPECT_NE(nullptr, service.install(jobs::message_of(good), nullptr, [](const auto&) {}).job);
}

}  // namespace
}  // namespace netsum::service
