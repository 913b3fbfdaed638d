#include "transport/addresses/own_addresses.h"

#include "transport/addresses/addresses.h"

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
  if (is_chosen_by_route(own)) return;
  const std::lock_guard lock(mutex_);
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

std::optional<OwnAddresses::Address> OwnAddressesView::find(const Endpoint& peer) {
  const std::uint64_t version = all_.version();
  if (version != version_ || known_.size() >= most_peers) known_.clear();
  version_ = version;
  const auto known = known_.find(peer);
  return known != known_.end() ? known->second : known_.emplace(peer, all_.find(peer)).first->second;
}

}  // namespace netsum::transport
