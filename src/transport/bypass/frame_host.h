// A host of its own over ports that are this process's alone: it has one IPv4 address at all of them, does ARP there, and
// its lanes send and receive UDP. Which port leads to an address is learned with the address. No kernel takes part.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/endpoint.h"
#include "base/time.h"
#include "transport/bypass/frame_ports.h"
#include "transport/bypass/neighbours.h"
#include "transport/datagram/transport.h"
#include "wire/arp.h"

namespace netsum::transport {

// "10.0.0.1/24", or "10.0.0.1/24,10.0.0.254" with the way to other networks.
struct HostAddress {
  wire::Ipv4 own{};
  std::uint32_t bits = 32;
  std::optional<wire::Ipv4> gateway;

  [[nodiscard]] bool has(const wire::Ipv4& address) const;  // in its network
  // Who is to be asked for: the address itself or the gateway. None: neither is of this network.
  [[nodiscard]] std::optional<wire::Ipv4> next_of(const wire::Ipv4& to) const;
};
// Throws Error: bad_argument.
[[nodiscard]] HostAddress host_address(const std::string& text);

struct HostLaneOptions {
  std::uint16_t port = 0;          // 0: any free one
  std::optional<Endpoint> peer{};  // datagrams from others are dropped
  bool ecn = false;                // as UdpOptions'
};

class FrameHost : public std::enable_shared_from_this<FrameHost> {
 public:
  FrameHost(std::unique_ptr<FramePorts> ports, const HostAddress& address);
  ~FrameHost();
  FrameHost(const FrameHost&) = delete;
  FrameHost& operator=(const FrameHost&) = delete;

  [[nodiscard]] const HostAddress& address() const { return address_; }
  [[nodiscard]] std::uint32_t mtu() const;  // of its shortest port, IP headers included
  // Whether a port has a link. Ports without one look for it, as long as there is no lane.
  [[nodiscard]] bool find_link();
  [[nodiscard]] std::string description() const;

  // Its descriptor is -1: whoever waits for it looks again and again. Any thread's, and the lane is one thread's at a time.
  // Throws Error: refused (the port is taken, all are; no memory).
  [[nodiscard]] std::unique_ptr<Transport> open(const HostLaneOptions& options);

 private:
  class Lane;
  struct Inbox;
  // Of one direction of a queue, which lanes may have to share. One alone nearly always has it: an exchange takes it, and a
  // store gives it back.
  class Lock {
   public:
    [[nodiscard]] bool try_lock() { return !taken_.test_and_set(std::memory_order_acquire); }
    void lock() {
      while (!try_lock()) std::this_thread::yield();
    }
    void unlock() { taken_.clear(std::memory_order_release); }

   private:
    std::atomic_flag taken_;
  };
  struct Queue {
    Lock receiving, sending;
  };

  [[nodiscard]] Queue& queue(std::uint32_t port, std::uint32_t number) const { return *queues_[port][number]; }
  // A frame for another lane of this host, if there is such a one: the port's queues do not tell them apart.
  void hand_over(std::uint16_t to, std::span<const std::byte> frame);
  // The answer, if one is to leave by the same port.
  [[nodiscard]] std::optional<wire::Arp> hear(const wire::Arp& arp, std::uint32_t port);
  [[nodiscard]] Neighbours::Found find(const wire::Ipv4& address);
  [[nodiscard]] std::uint16_t free_port();
  void close(std::uint16_t port, std::size_t number);

  const std::unique_ptr<FramePorts> ports_;
  const HostAddress address_;
  std::vector<std::vector<std::unique_ptr<Queue>>> queues_;  // by port
  std::mutex neighbours_mutex_;
  Neighbours neighbours_;
  std::mutex lanes_mutex_;
  std::map<std::uint16_t, std::shared_ptr<Inbox>> lanes_;  // by UDP port
  std::vector<bool> numbers_;                              // of lanes, that are taken
  std::uint16_t next_port_;
};

}  // namespace netsum::transport
