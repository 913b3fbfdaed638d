#include "transport/own_addresses.h"

#include "transport/addresses.h"

namespace netsum::transport {
namespace {

// Anybody can send from many addresses. Those that are forgotten are learned again from their next packet.
constexpr std::size_t most_peers = 16384;

bool is_chosen_by_route(const OwnAddresses::Address& own) {
  const Endpoint endpoint{.address = own};
  if (is_ipv4(endpoint)) return own[12] >= 224 || own[12] == 0;  // multicast and broadcast
  return own[0] == 0xff || (own[0] == 0xfe && (own[1] & 0xc0) == 0x80) || is_unspecified(endpoint);
}

}  // namespace

void OwnAddresses::learn(const Endpoint& peer, const Address& own) {
  const std::lock_guard lock(mutex_);
  if (last_.first == peer && last_.second == own) return;
  if (is_chosen_by_route(own)) return;
  last_ = {peer, own};
  if (all_.size() >= most_peers && !all_.contains(peer)) all_.clear();
  const auto [known, is_new] = all_.try_emplace(peer, own);
  if (!is_new && known->second == own) return;
  known->second = own;
  version_.fetch_add(1, std::memory_order_relaxed);
}

std::optional<OwnAddresses::Address> OwnAddresses::find(const Endpoint& peer) const {
  const std::lock_guard lock(mutex_);
  const auto found = all_.find(peer);
  return found == all_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace netsum::transport
