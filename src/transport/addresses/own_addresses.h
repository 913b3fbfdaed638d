// Which of this host's addresses each peer sends to. A socket bound to no address answers from there: peers are connected to
// it, and take no answer from another address of this host.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "base/endpoint.h"

namespace netsum::transport {

// Any thread's.
class OwnAddresses {
 public:
  using Address = std::array<std::uint8_t, 16>;

  // The last one counts. Addresses that a host cannot send from (multicast), and those that its routes choose well enough
  // (link-local), are ignored.
  void learn(const Endpoint& peer, const Address& own);
  [[nodiscard]] std::optional<Address> find(const Endpoint& peer) const;  // nullopt: its route says
  // Changes whenever an answer of find() may.
  [[nodiscard]] std::uint64_t version() const { return version_.load(std::memory_order_relaxed); }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<Endpoint, Address, EndpointHash> all_;
  std::atomic<std::uint64_t> version_ = 0;
};

// What one thread looks up for each packet: without a lock while nothing changes.
class OwnAddressesView {
 public:
  explicit OwnAddressesView(const OwnAddresses& all) : all_(all) {}
  [[nodiscard]] std::optional<OwnAddresses::Address> find(const Endpoint& peer);

 private:
  const OwnAddresses& all_;
  std::uint64_t version_ = 0;
  std::unordered_map<Endpoint, std::optional<OwnAddresses::Address>, EndpointHash> known_;
};

}  // namespace netsum::transport
