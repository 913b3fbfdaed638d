// What an ATP switch takes of the aggregators that tell it of jobs.
#include "service/atp_switch_service.h"

#include <gtest/gtest.h>

#include <vector>

#include "netsum/error.h"

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

 private:
  std::unique_ptr<Format> format_;
};

session::Installation installation(PacketSecurity security) {
  session::Installation installation;
  installation.job = "train";
  installation.job_epoch = 7;
  installation.packet_elements = 64;
  installation.window = 4;
  installation.security = security;
  session::Installation::Lane& lane = installation.lanes.emplace_back();
  lane.parent = {.address = {0xfd}, .port = 1};
  lane.children.push_back({.endpoint = {.address = {0xfd}, .port = 2}, .rank_epoch = 100, .ranks = {0}});
  return installation;
}

// The first answer was lost, or held up by who wants to see a nonce twice; after the lease the switch has forgotten the job,
// and the server does not know that it ever had it.
TEST(AtpSwitchService, KeysThatItHasForgottenServeNobodyAgain) {
  OneLane lane;
  AtpSwitchService service({&lane}, {.slots = 8, .packet_elements = 64});
  for (const PacketSecurity security : {PacketSecurity::none, PacketSecurity::encrypt}) {
    const session::SwitchMessage message = installation(security);
    Part first = service.install(message, nullptr, [](const auto&) {});
    EXPECT_EQ(nullptr, service.install(message, first.job.get(), [](const auto&) {}).job) << "a repeat";
    first.job.reset();
    if (security == PacketSecurity::none) {
      EXPECT_NE(nullptr, service.install(message, nullptr, [](const auto&) {}).job);
    } else {
      EXPECT_THROW(static_cast<void>(service.install(message, nullptr, [](const auto&) {})), Error);
    }
  }
}

}  // namespace
}  // namespace netsum::service
