// What a host has learned by ARP: which Ethernet address an IPv4 address has, and behind which of the host's ports. No I/O,
// no time of its own, and no lock.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "base/time.h"
#include "wire/arp.h"

namespace netsum::transport {

class Neighbours {
 public:
  // How long an answer is believed without asking again, and how long until an unanswered question is repeated. A place is
  // used until another one is heard of: frames to the wrong one are lost, as they would be without any.
  static constexpr std::chrono::seconds holds{2};
  static constexpr std::chrono::milliseconds ask_again{100};
  static constexpr std::size_t most = 4096;

  struct Place {
    wire::ethernet::Address address{};
    std::uint32_t port = 0;

    bool operator==(const Place&) const = default;
  };
  struct Found {
    std::optional<Place> place;
    bool ask = false;  // send a request at every port
  };

  [[nodiscard]] Found find(const wire::Ipv4& address, Time now);

  // `to_us`: this host is meant, so its answers will go there. Others are learned only if they are known already, so that
  // what a network says to everybody fills no memory.
  void learn(const wire::Ipv4& address, const Place& place, bool to_us, Time now);

  [[nodiscard]] std::size_t size() const { return known_.size(); }

 private:
  struct Known {
    std::optional<Place> place{};
    Time asked = Time::min(), heard = Time::min();
  };

  [[nodiscard]] Known& entry(const wire::Ipv4& address);

  std::map<wire::Ipv4, Known> known_;
};

}  // namespace netsum::transport
