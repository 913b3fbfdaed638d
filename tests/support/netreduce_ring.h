// A fixture: one ring whose hosts' packets are made by hand, at an accelerator.
#pragma once

#include <string>
#include <tuple>
#include <utility>

#include "support/netreduce_packets.h"

namespace netsum::testing {

// A packet's place, and whose.
struct At {
  std::uint32_t rank = 0;
  std::uint64_t message = 0;
  std::uint32_t packet = 0;
};

class OneRing : public ::testing::Test {
 protected:
  using Verdict = Bump::Verdict;

  static netreduce::RingConfig ring_of(std::uint32_t members) {
    netreduce::RingConfig config;
    config.incarnation = 0x1122334455667788;
    config.ring = 3;
    config.members = members;
    config.window = 2;
    config.message_packets = 3;
    config.mtu = 256;
    return config;
  }

  // Begins with another accelerator.
  void start(const netreduce::RingConfig& config) {
    ASSERT_EQ("", netreduce::check(config));
    hosts_ = std::make_unique<RingHosts>(config);
    bump_ = std::make_unique<Bump>();
    ASSERT_TRUE(bump_->accelerator.add_ring(hosts_->config, hosts_->memory()));
  }
  void start(std::uint32_t members) { start(ring_of(members)); }

  Verdict give(const Crafted& packet, std::uint32_t rank) { return bump_->give(packet, hosts_->egress[rank]); }
  void give(const At& at) { EXPECT_EQ(Verdict::taken, give(hosts_->gradient(at.rank, at.message, at.packet), at.rank)); }
  // That packet of all ranks but one.
  void give_all(std::uint64_t message, std::uint32_t packet, std::uint32_t but = ~0U) {
    for (std::uint32_t rank = 0; rank < hosts_->config.members; ++rank) {
      if (rank != but) give(At{rank, message, packet});
    }
  }
  // All packets of all ranks.
  void give_message(std::uint64_t message) {
    for (std::uint32_t packet = 0; packet < hosts_->packets_of(message); ++packet) give_all(message, packet);
  }
  // Those packets of each rank, whose results leave in one go.
  [[nodiscard]] std::vector<At> of_all(const std::vector<std::pair<std::uint64_t, std::uint32_t>>& packets) const {
    std::vector<At> list;
    for (std::uint32_t rank = 0; rank < hosts_->config.members; ++rank) {
      for (const auto& [message, packet] : packets) list.push_back({rank, message, packet});
    }
    return list;
  }
  [[nodiscard]] std::vector<At> of_all(std::uint64_t message, std::uint32_t packet) const {
    return of_all({{message, packet}});
  }
  void drop_sent() { static_cast<void>(bump_->take()); }

  // What was sent since the last call is results of those packets, in this order, bit by bit, each to its host.
  void expect_results(const std::vector<At>& list) {
    const std::vector<Sent> sent = bump_->take();
    ASSERT_EQ(list.size(), sent.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      const At& at = list[i];
      SCOPED_TRACE("result " + std::to_string(i) + ": packet " + std::to_string(at.packet) + " of message " +
                   std::to_string(at.message) + " of rank " + std::to_string(at.rank));
      EXPECT_EQ(hosts_->egress[at.rank], sent[i].to);
      EXPECT_EQ(hosts_->result(at.rank, at.message, at.packet).frame(), sent[i].frame);
    }
  }
  void expect_nothing() { EXPECT_TRUE(bump_->take().empty()); }

  [[nodiscard]] const netreduce::RingCounters& counters() const {
    return *bump_->accelerator.ring_counters(hosts_->config.incarnation);
  }

  std::unique_ptr<RingHosts> hosts_;
  std::unique_ptr<Bump> bump_;
};

}  // namespace netsum::testing
