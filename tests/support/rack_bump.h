// One of the bumps of two racks, or the root above them, for rings of foreign hosts (protocol/netreduce/learned_racks.h), in
// memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/virtio_net.h"
#include "protocol/netreduce/bump.h"
#include "protocol/netreduce/learned_racks.h"
#include "support/netreduce_packets.h"
#include "support/recording_sink.h"
#include "wire/ethernet.h"

namespace netsum::testing {

class RackBump {
 public:
  static constexpr std::uint32_t root = 2;  // after the racks' bumps
  static constexpr std::size_t ip_at = virtio_net_header_bytes + wire::ethernet::header_bytes;

  // Ports of a rack's bump: of each host, and of the cable to the other rack.
  [[nodiscard]] static Endpoint port_of(std::uint32_t rack, std::uint8_t host) {
    return {.address = {'p'}, .port = static_cast<std::uint16_t>(rack << 8 | host)};
  }
  [[nodiscard]] static Endpoint trunk_of(std::uint32_t rack) { return port_of(rack, 0xff); }
  [[nodiscard]] static bool is_port(const Endpoint& to) { return to.address[0] == 'p'; }
  [[nodiscard]] static Endpoint socket_of(std::uint32_t number) {
    return endpoint_of(static_cast<std::uint8_t>(first_socket + number), 7170);
  }
  [[nodiscard]] static std::uint32_t number_of(const Endpoint& socket) { return socket.address[15] - first_socket; }

  [[nodiscard]] static Bytes framed(std::span<const std::byte> packet, std::uint8_t from, std::uint8_t to) {
    Bytes frame(ip_at + packet.size());
    std::byte* const ethernet = frame.data() + virtio_net_header_bytes;
    ethernet[0] = ethernet[6] = std::byte{2};
    ethernet[5] = std::byte{to};
    ethernet[11] = std::byte{from};
    ethernet[12] = std::byte{8};
    std::copy(packet.begin(), packet.end(), frame.begin() + ip_at);
    return frame;
  }

  // `racks`: ranks in each.
  [[nodiscard]] static netreduce::RingConfig ring_of(std::vector<std::uint32_t> racks, std::uint32_t id = 3) {
    netreduce::RingConfig ring;
    ring.incarnation = 0x1122334455667788 + id;
    ring.ring = id;
    for (const std::uint32_t ranks : racks) ring.members += ranks;
    ring.racks = std::move(racks);
    ring.window = 2;
    ring.message_packets = 2;
    ring.mtu = 256;
    return ring;
  }
  // Of its ring at a rack's bump.
  [[nodiscard]] static std::uint64_t incarnation_at(const netreduce::RingConfig& ring, std::uint32_t rack) {
    return ring.incarnation + rack + 1;
  }

  // What a process is given at its start.
  struct Start {
    std::vector<netreduce::RingConfig> rings;
    std::uint64_t process = 1;                      // as a random number
    std::function<std::uint64_t()> random{};        // at the root
    std::vector<netreduce::KnownConnection> known;  // of the former one's file
  };

  RackBump(std::uint32_t number, const Start& start, Time now) : number_(number) {
    netreduce::BridgeConfig bridge;
    for (std::uint8_t host = 1; number != root && host <= most_hosts; ++host) bridge.ports.push_back(port_of(number, host));
    if (number != root) bridge.ports.push_back(trunk_of(number));
    bump_ = std::make_unique<netreduce::Bump>(bridge);
    netreduce::LearningConfig learning;
    for (std::uint8_t host = 1; host <= most_hosts; ++host) learning.hosts.push_back(endpoint_of(host, 0).address);
    bump_->accelerator().learn(learning);
    for (const auto& each : start.known) bump_->accelerator().know(each, now);
    for (const netreduce::RingConfig& ring : start.rings) add(ring, start);
    if (number == root) return;
    for (std::uint8_t host = 1; host <= most_hosts; ++host) {  // the bridge has heard of everybody
      const bool here = (host > start.rings.front().racks.front()) == (number == 1);
      Bytes frame = framed({}, host, nobody);
      frame[virtio_net_header_bytes + 12] = std::byte{0x88};
      give_frame(here ? port_of(number, host) : trunk_of(number), frame, now);
      static_cast<void>(take());
    }
  }

  void give_frame(const Endpoint& port, std::span<const std::byte> frame, Time now) {
    const RxView view{frame, port};
    bump_->on_packets({&view, 1}, now, sink_);
  }
  void give_datagram(const Endpoint& from, std::span<const std::byte> bytes, Time now) {
    const RxView view{bytes, from};
    bump_->on_datagrams({&view, 1}, now, sink_);
  }
  // What it has sent since: frames to ports, and datagrams.
  [[nodiscard]] std::vector<Datagram> take() {
    bump_->accelerator().check();
    std::vector<Datagram> sent = sink_.take();
    for (Datagram& each : sent) each.from = socket_of(number_);
    return sent;
  }

  [[nodiscard]] netreduce::Bump* operator->() const { return bump_.get(); }

 private:
  static constexpr std::uint8_t first_socket = 100, most_hosts = 4, nobody = 0xfe;

  void add(const netreduce::RingConfig& ring, const Start& start) {
    const std::vector<Endpoint> bumps{socket_of(0), socket_of(1)};
    if (number_ == root) {
      const std::span<std::byte> memory = reserve(netreduce::root_ring(ring, bumps, 0).ring);
      bump_->learned_racks().add(ring, netreduce::LearnedRacks::Root{bumps, memory, start.random});
      return;
    }
    netreduce::RingConfig own = ring;
    own.incarnation = incarnation_at(ring, number_);
    const auto part = netreduce::rack_ring(own, number_, socket_of(root));
    if (!part) return;
    EXPECT_EQ("", netreduce::check(*part));
    EXPECT_TRUE(bump_->accelerator().add_ring(*part, reserve(*part)));
    bump_->learned_racks().add(own, netreduce::LearnedRacks::Rack{number_, socket_of(root), start.process});
  }
  [[nodiscard]] std::span<std::byte> reserve(const netreduce::RingConfig& ring) {
    const std::size_t bytes = netreduce::Accelerator::memory_bytes(ring);
    memory_.emplace_back(bytes / sizeof(std::max_align_t) + 8);
    void* at = memory_.back().data();
    std::size_t room = memory_.back().size() * sizeof(std::max_align_t);
    return {static_cast<std::byte*>(std::align(64, bytes, at, room)), bytes};
  }

  std::uint32_t number_;
  std::deque<std::vector<std::max_align_t>> memory_;
  RecordingSink sink_;
  std::unique_ptr<netreduce::Bump> bump_;
};

}  // namespace netsum::testing
