#include "wire/arp.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"

namespace netsum::wire {
namespace {

constexpr std::uint16_t of_ethernet = 1, request = 1, reply = 2;
// Where what is in a frame.
constexpr std::size_t at_hardware = ethernet::header_bytes, at_protocol = at_hardware + 2, at_sizes = at_hardware + 4,
                      at_kind = at_hardware + 6, at_sender = at_hardware + 8, at_of_sender = at_sender + 6,
                      at_target = at_of_sender + 4, at_of_target = at_target + 6, end = at_of_target + 4;
constexpr std::uint16_t sizes = 6 << 8 | 4;  // of the two kinds of addresses

template <class Address>
void put(std::byte* to, const Address& address) {
  std::memcpy(to, address.data(), address.size());
}
template <class Address>
void get(const std::byte* from, Address& address) {
  std::memcpy(address.data(), from, address.size());
}

}  // namespace

std::array<std::byte, arp_frame_bytes> arp_frame(const Arp& arp) {
  std::array<std::byte, arp_frame_bytes> frame{};
  ethernet::Address to = arp.target;
  if (!arp.reply) to.fill(0xff);
  put(frame.data(), to);
  put(frame.data() + to.size(), arp.sender);
  store_be(frame.data() + 12, ethernet::arp);
  store_be(frame.data() + at_hardware, of_ethernet);
  store_be(frame.data() + at_protocol, ethernet::ipv4);
  store_be(frame.data() + at_sizes, sizes);
  store_be(frame.data() + at_kind, arp.reply ? reply : request);
  put(frame.data() + at_sender, arp.sender);
  put(frame.data() + at_of_sender, arp.of_sender);
  if (arp.reply) put(frame.data() + at_target, arp.target);
  put(frame.data() + at_of_target, arp.of_target);
  return frame;
}

std::optional<Arp> read_arp(std::span<const std::byte> frame) {
  if (frame.size() < end) return std::nullopt;
  const auto at = [&](std::size_t place) { return load_be<std::uint16_t>(frame.data() + place); };
  if (at(12) != ethernet::arp || at(at_hardware) != of_ethernet || at(at_protocol) != ethernet::ipv4 ||
      at(at_sizes) != sizes || (at(at_kind) != request && at(at_kind) != reply)) {
    return std::nullopt;
  }
  Arp arp;
  arp.reply = at(at_kind) == reply;
  get(frame.data() + at_sender, arp.sender);
  get(frame.data() + at_of_sender, arp.of_sender);
  get(frame.data() + at_target, arp.target);
  get(frame.data() + at_of_target, arp.of_target);
  if (ethernet::is_multicast(arp.sender) || arp.sender == ethernet::Address{}) return std::nullopt;
  return arp;
}

}  // namespace netsum::wire
