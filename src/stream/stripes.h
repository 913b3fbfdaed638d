// How an operation is cut up: stripes of whole exponent blocks, dealt to lanes; chunks (packets) within a stripe.
//
// A stripe is max(packet_elements, 256) elements, so that exponent blocks, which are 256 elements whatever the packet's
// length, never straddle two stripes; or a packet, if the values have no exponents. Stripe u of operation o belongs to lane
// (u + o) mod lanes: successive small operations use different lanes. A slot carries a stripe's chunks one after the other.
#pragma once

#include <algorithm>
#include <cstdint>

#include "wire/switchml.h"

namespace netsum::stream {

class Stripes {
 public:
  Stripes() = default;
  Stripes(std::uint64_t wire_elements, std::uint64_t operation, std::uint32_t packet_elements, std::uint32_t lane,
          std::uint32_t lanes, bool blocks = true)
      : elements_(wire_elements),
        packet_elements_(packet_elements),
        stripe_elements_(blocks ? std::max(packet_elements, wire::block_elements) : packet_elements),
        lanes_(lanes),
        first_((lane + lanes - static_cast<std::uint32_t>(operation % lanes)) % lanes) {
    const std::uint64_t stripes = std::max<std::uint64_t>(1, (elements_ + stripe_elements_ - 1) / stripe_elements_);
    count_ = first_ < stripes ? (stripes - 1 - first_) / lanes + 1 : 0;
    for_last_chunks(stripes);
  }

  [[nodiscard]] std::uint64_t count() const { return count_; }    // stripes on this lane
  [[nodiscard]] std::uint64_t chunks() const { return chunks_; }  // chunks on this lane

  // Of the lane's stripe `index`:
  [[nodiscard]] std::uint64_t offset(std::uint64_t index) const { return (first_ + index * lanes_) * stripe_elements_; }
  [[nodiscard]] std::uint32_t elements(std::uint64_t index) const {
    return static_cast<std::uint32_t>(
        std::min<std::uint64_t>(stripe_elements_, elements_ - std::min(elements_, offset(index))));
  }
  [[nodiscard]] std::uint32_t chunks_of(std::uint64_t index) const { return chunks_in(elements(index)); }
  [[nodiscard]] std::uint32_t blocks_of(std::uint64_t index) const {
    return (elements(index) + wire::block_elements - 1) / wire::block_elements;
  }
  // The number of a chunk within the operation, the same on all lanes.
  [[nodiscard]] std::uint32_t chunk(std::uint64_t index, std::uint32_t part) const {
    return static_cast<std::uint32_t>(offset(index) / packet_elements_) + part;
  }

 private:
  [[nodiscard]] std::uint32_t chunks_in(std::uint32_t elements) const {
    return std::max(1U, (elements + packet_elements_ - 1) / packet_elements_);
  }
  void for_last_chunks(std::uint64_t stripes) {
    chunks_ = count_ * (stripe_elements_ / packet_elements_);
    const bool has_last = count_ > 0 && first_ + (count_ - 1) * lanes_ == stripes - 1;
    if (has_last) chunks_ -= stripe_elements_ / packet_elements_ - chunks_of(count_ - 1);
  }

  std::uint64_t elements_ = 0;
  std::uint32_t packet_elements_ = wire::block_elements, stripe_elements_ = wire::block_elements, lanes_ = 1, first_ = 0;
  std::uint64_t count_ = 0, chunks_ = 0;
};

}  // namespace netsum::stream
