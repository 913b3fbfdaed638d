// Rings whose connections a bump in the wire learns from their first packets, behind its bridge, on links that lose and
// repeat, and keep the order as Ethernet does: every rank gets the sum, in each life of the hosts, whatever a stranger sends
// and however late first packets of a former life come.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/virtio_net.h"
#include "protocol/netreduce/bump.h"
#include "protocol/netreduce/roce_host.h"
#include "support/virtual_network.h"
#include "wire/ethernet.h"
#include "wire/roce.h"

namespace netsum::testing {
namespace {

using namespace std::chrono_literals;
using netreduce::Bump;
using netreduce::Misfit;
using Bytes = std::vector<std::byte>;

constexpr std::size_t ip_at = virtio_net_header_bytes + wire::ethernet::header_bytes;
constexpr std::size_t at_source = 12, at_destination = 16;  // in an IPv4 header
constexpr std::uint64_t incarnation = 0x0123456789abcdef;
constexpr std::uint32_t qps_of_life = 0x100;
constexpr std::uint8_t bump_number = 200, stranger_number = 99;

Endpoint at(std::uint8_t number) {
  return {.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, number}, .port = 7170};
}

// A packet as a host's port gives it: behind an Ethernet header from its own address to the destination's.
Bytes framed(std::span<const std::byte> packet) {
  Bytes frame(ip_at + packet.size());
  std::byte* const ethernet = frame.data() + virtio_net_header_bytes;
  ethernet[0] = ethernet[6] = std::byte{2};
  ethernet[5] = packet.size() > at_destination + 3 ? packet[at_destination + 3] : std::byte{};
  ethernet[11] = packet.size() > at_source + 3 ? packet[at_source + 3] : std::byte{};
  ethernet[12] = std::byte{0x08};
  std::copy(packet.begin(), packet.end(), frame.begin() + ip_at);
  return frame;
}

struct Tally {
  std::uint64_t stale = 0, forged = 0, dropped_restart = 0, dropped_host = 0, retransmissions = 0, restarts = 0;
};

class BumpedRing {
 public:
  BumpedRing(std::uint64_t seed, Tally& tally)
      : random_(seed), network_(seed, faults()), tally_(tally), ranks_(2 + static_cast<std::uint8_t>(random_.below(4))) {
    network_.now = Time{1s};
    netreduce::BridgeConfig bridge{.ports = {at(stranger_number)}};
    netreduce::LearningConfig learning;
    for (std::uint8_t rank = 0; rank < ranks_; ++rank) {
      bridge.ports.push_back(at(rank));
      learning.hosts.push_back(at(rank).address);
    }
    bump_ = std::make_unique<BumpNode>(*this, bridge);
    ring_.incarnation = incarnation;
    ring_.members = ranks_;
    ring_.window = 1 + static_cast<std::uint32_t>(random_.below(4));
    ring_.message_packets = 1 + static_cast<std::uint32_t>(random_.below(5));
    ring_.mtu = 256;
    memory_.resize(netreduce::Accelerator::memory_bytes(ring_) / sizeof(Line));
    EXPECT_EQ("", netreduce::check(ring_));
    EXPECT_TRUE(bump_->bump.accelerator().add_ring(ring_, std::as_writable_bytes(std::span(memory_))));
    bump_->bump.accelerator().learn(learning);
    bump_->bump.accelerator().on_change([&](const netreduce::ConnectionChange& change) {
      if (change.kind == netreduce::ConnectionChange::Kind::forgotten) return;
      EXPECT_EQ(life_, change.known.connection.destination_qp / qps_of_life) << "of another life, or forged";
      tally_.restarts += change.kind == netreduce::ConnectionChange::Kind::restarted ? 1 : 0;
    });
  }

  // Hosts with new queue pairs, which sum some tensors. What the hosts before them sent first may still come.
  void live() {
    former_.insert(former_.end(), firsts_.begin(), firsts_.end());
    firsts_.clear();
    make_hosts();
    const std::size_t calls = 1 + random_.below(5);
    std::vector<std::vector<std::vector<std::uint32_t>>> tensors(calls);
    std::vector<std::vector<std::uint32_t>> expected(calls);
    for (std::size_t number = 0; number < calls; ++number) {
      expected[number].resize(1 + random_.below(2000));
      for (std::uint8_t rank = 0; rank < ranks_; ++rank) {
        auto& tensor = tensors[number].emplace_back(expected[number].size());
        for (std::size_t i = 0; i < tensor.size(); ++i)
          expected[number][i] += tensor[i] = static_cast<std::uint32_t>(random_.next());
      }
    }
    for (std::uint8_t rank = 0; rank < ranks_; ++rank) {
      for (std::size_t number = 0; number < calls; ++number) {
        stream::Operation operation;
        operation.number = number;
        operation.elements = expected[number].size();
        operation.dtype = DType::int32;
        operation.data = tensors[number][rank].data();
        Host& host = *hosts_[rank];
        ASSERT_TRUE(host.host.submit(operation, network_.now, host.sink));
        host.sink.flush();
      }
    }
    const Time end = network_.now + 1000s;
    const auto done = [&](const std::unique_ptr<Host>& host) {
      host->completed += host->host.take_completed().size();
      return host->completed == calls && host->host.drained();
    };
    while (!std::all_of(hosts_.begin(), hosts_.end(), done)) {
      ASSERT_TRUE(network_.step(end)) << failures() << "not done";
    }
    for (std::size_t number = 0; number < calls; ++number) {
      for (std::uint8_t rank = 0; rank < ranks_; ++rank)
        ASSERT_EQ(expected[number], tensors[number][rank]) << "rank " << int{rank};
    }
    for (const auto& host : hosts_) {
      ASSERT_EQ("", host->host.failure());
      tally_.retransmissions += host->host.sending().retransmissions;
    }
    // They end, and nobody hears of them for a while: so long that others may take their places.
    hosts_.clear();
    network_.now += netreduce::Accelerator::restart_after + 1ms;
  }

  void count() {
    const netreduce::AcceleratorCounters& c = bump_->bump.accelerator().counters();
    tally_.dropped_restart += c.dropped_restart;
    tally_.dropped_host += c.dropped_misfit[static_cast<std::size_t>(Misfit::host)];
  }

 private:
  [[nodiscard]] std::string failures() const {
    std::string all;
    for (const auto& host : hosts_) all += host->host.failure() + " ";
    return all;
  }

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  struct Host final : VirtualNode {
    Host(VirtualNetwork& network, const Endpoint& self, const netreduce::RoceHostConfig& config)
        : VirtualNode(network, self), host(config) {}
    void receive(const RxView& packet) override { host.on_packets({&packet, 1}, now(), sink); }
    [[nodiscard]] Time next_timeout() const override { return host.next_timeout(); }
    void on_timer() override { host.on_timer(now(), sink); }

    netreduce::RoceHost host;
    std::size_t completed = 0;
  };
  // The network carries IP packets alone.
  struct BumpNode final : VirtualNode {
    BumpNode(BumpedRing& in, const netreduce::BridgeConfig& bridge)
        : VirtualNode(in.network_, at(bump_number), ip_at), ring(in), bump(bridge) {}
    void receive(const RxView& packet) override {
      carry(packet.bytes, packet.source);
      ring.harm(packet.bytes);
    }
    void carry(std::span<const std::byte> packet, const Endpoint& port) {
      const Bytes frame = framed(packet);
      const RxView view{frame, port};
      bump.on_packets({&view, 1}, now(), sink);
      sink.flush();
      bump.accelerator().check();
    }

    BumpedRing& ring;
    Bump bump;
  };

  Faults faults() {
    Faults f;
    f.least_delay = f.most_delay = std::chrono::microseconds(5 + random_.below(100));
    f.loss = static_cast<double>(random_.below(100)) / 800;
    f.duplicate = static_cast<double>(random_.below(100)) / 400;
    return f;
  }

  void make_hosts() {
    ++life_;
    std::vector<netreduce::Member> members(ranks_);
    for (std::uint8_t rank = 0; rank < ranks_; ++rank) {
      members[rank].address = at(rank).address;
      members[rank].send_qp = qps_of_life * life_ + 2 * rank;
      members[rank].receive_qp = members[rank].send_qp + 1;
      members[rank].send_psn = static_cast<std::uint32_t>(random_.next()) & wire::roce::psn_mask;
      members[rank].memory_address = 0x10000 * life_;
      members[rank].memory_key = life_;
    }
    for (std::uint8_t rank = 0; rank < ranks_; ++rank) {
      netreduce::RoceHostConfig c;
      c.worker.incarnation = incarnation;
      c.worker.rank = rank;
      c.worker.world_size = ranks_;
      c.worker.window = ring_.window;
      c.worker.message_packets = ring_.message_packets;
      c.worker.mtu = ring_.mtu;
      c.self = members[rank];
      c.successor = members[(rank + 1) % ranks_];
      c.predecessor = members[(rank + ranks_ - 1) % ranks_];
      c.accelerator = at(bump_number);
      hosts_.push_back(std::make_unique<Host>(network_, at(rank), c));
    }
    psns_.clear();
    for (const netreduce::Member& member : members) psns_.push_back(member.send_psn);
  }

  // `packet` was seen. A first packet of a former life comes, or one like it from a stranger.
  void harm(std::span<const std::byte> packet) {
    wire::roce::Packet parsed;
    if (wire::roce::parse(packet, parsed) != wire::ParseError::none) return;
    const std::uint8_t rank = parsed.ip.source[15];
    const bool begins =
        wire::roce::shape_of(parsed.bth.opcode).request && rank < psns_.size() && parsed.bth.psn == psns_[rank];
    if (begins && firsts_.size() < 32) firsts_.emplace_back(packet.begin(), packet.end());
    if (!former_.empty() && random_.chance(0.05)) {
      const Bytes& stale = former_[random_.below(former_.size())];
      ++tally_.stale;
      bump_->carry(stale, at(std::to_integer<std::uint8_t>(stale[at_source + 3])));
    }
    if (!firsts_.empty() && random_.chance(0.05)) {
      forge(firsts_[random_.below(firsts_.size())], at(stranger_number));
    }
    // In the name of a host of which the ring hears right now.
    const bool gradient =
        wire::roce::shape_of(parsed.bth.opcode).request && bump_->bump.accelerator().bound(incarnation).contains(rank);
    if (gradient && random_.chance(0.05)) {
      const auto own = std::find_if(firsts_.begin(), firsts_.end(), [&](const Bytes& each) {
        return std::to_integer<std::uint8_t>(each[at_source + 3]) == rank;
      });
      if (own != firsts_.end()) forge(*own, at(rank));
    }
  }

  // The beginning of a stream on another connection.
  void forge(Bytes first, const Endpoint& from) {
    wire::roce::Packet parsed;
    ASSERT_EQ(wire::ParseError::none, wire::roce::parse(first, parsed));
    const Bytes payload(parsed.payload.begin(), parsed.payload.end());
    parsed.payload = payload;
    parsed.ip.source = from.address;
    parsed.bth.destination_qp ^= 0x800000;
    wire::roce::write(first, parsed);
    ++tally_.forged;
    bump_->carry(first, from);
  }

  Random random_;
  VirtualNetwork network_;
  Tally& tally_;
  const std::uint8_t ranks_;
  netreduce::RingConfig ring_;
  std::vector<Line> memory_;
  std::unique_ptr<BumpNode> bump_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::uint32_t> psns_;     // of each rank's first packet
  std::vector<Bytes> firsts_, former_;  // packets that begin message 0: of this life, and of those before
  std::uint32_t life_ = 0;
};

TEST(NetreduceBumpCluster, LearnedRingsAreSummedInEveryLife) {
  Tally all;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    BumpedRing ring(seed, all);
    for (int life = 0; life < 3; ++life) {
      SCOPED_TRACE("life " + std::to_string(life));
      ring.live();
      if (HasFatalFailure() || HasNonfatalFailure()) FAIL();
    }
    ring.count();
  }
  // Everything that can happen did.
  EXPECT_GT(all.stale, 1000U);
  EXPECT_GT(all.forged, 1000U);
  EXPECT_GT(all.dropped_restart, 100U);
  EXPECT_GT(all.dropped_host, 100U);
  EXPECT_GT(all.retransmissions, 300U);
  EXPECT_GE(all.restarts, 2U * 150U) << "each life's";
}

}  // namespace
}  // namespace netsum::testing
