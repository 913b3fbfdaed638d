// What bumps of a ring across racks tell each other where its connections are learned: docs/protocol-netreduce.md, "Racks of
// bumps, and foreign hosts". One UDP datagram each, beside those of the virtual connections.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace netsum::wire::netreduce {

struct RingAgreement {
  // The first byte of each: no IP header's, which begins a virtual connection's packet.
  static constexpr std::uint8_t format = 0xb5;
  static constexpr std::uint8_t version = 2;
  static constexpr std::size_t bytes = 100;

  enum class Kind : std::uint8_t {
    ready = 1,  // up: all of the rack's ranks are learned
    begin = 2,  // down: so are all racks'
    over = 3,   // down: what the rack was ready for has ended, or never was
    ask = 4,    // down: a rack's bump that the root does not know yet is to say so again, with this challenge
  };
  Kind kind = Kind::ready;
  bool begun = false;         // ready: the rack's bump was told to begin
  std::uint32_t ring = 0;     // RingID
  std::uint32_t digest = 0;   // of the ring's configuration, which all bumps were given alike
  std::uint32_t rack = 0;     // the one below, in both directions
  std::uint64_t process = 0;  // of that rack's bump: random
  std::uint64_t attempt = 0;  // of this process: grows whenever its connections change
  // ready: the connection that leaves the rack; begin: the one that arrives. As foreign hosts' packets have it.
  std::array<std::uint8_t, 16> source{}, destination{};
  std::uint32_t destination_qp = 0, first_psn = 0;
  std::uint64_t life = 0;         // begin: of the ring; never issued again
  std::uint64_t incarnation = 0;  // begin: in the seals
  std::uint64_t challenge = 0;    // ask: random; ready: of the question that it answers, or 0
  bool operator==(const RingAgreement&) const = default;
};

// None: the datagram is something else, damaged or impossible.
[[nodiscard]] std::optional<RingAgreement> read_ring_agreement(std::span<const std::byte> datagram);
void write(std::span<std::byte, RingAgreement::bytes> datagram, const RingAgreement& message);

}  // namespace netsum::wire::netreduce
