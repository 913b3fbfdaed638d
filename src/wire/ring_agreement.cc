#include "wire/ring_agreement.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "wire/roce.h"

namespace netsum::wire::netreduce {
namespace {

constexpr std::size_t at_format = 0, at_kind = 1, at_version = 2, at_flags = 3, at_ring = 4, at_digest = 8, at_rack = 12,
                      at_process = 16, at_attempt = 24, at_source = 32, at_destination = 48, at_queue_pair = 64,
                      at_first_psn = 68, at_life = 72, at_incarnation = 80, at_challenge = 88, at_crc = 96;
static_assert(at_crc + 4 == RingAgreement::bytes);
constexpr std::uint8_t flag_begun = 1;

}  // namespace

std::optional<RingAgreement> read_ring_agreement(std::span<const std::byte> datagram) {
  if (datagram.size() != RingAgreement::bytes) return std::nullopt;
  const std::byte* const at = datagram.data();
  const auto byte = [&](std::size_t offset) { return std::to_integer<std::uint8_t>(at[offset]); };
  if (byte(at_format) != RingAgreement::format || byte(at_version) != RingAgreement::version) return std::nullopt;
  if (load_le<std::uint32_t>(at + at_crc) != crc32c(datagram.first(at_crc))) return std::nullopt;
  RingAgreement message;
  message.kind = static_cast<RingAgreement::Kind>(byte(at_kind));
  if (message.kind < RingAgreement::Kind::ready || message.kind > RingAgreement::Kind::ask) return std::nullopt;
  if ((byte(at_flags) & ~flag_begun) != 0) return std::nullopt;
  message.begun = (byte(at_flags) & flag_begun) != 0;
  message.ring = load_le<std::uint32_t>(at + at_ring);
  message.digest = load_le<std::uint32_t>(at + at_digest);
  message.rack = load_le<std::uint32_t>(at + at_rack);
  message.process = load_le<std::uint64_t>(at + at_process);
  message.attempt = load_le<std::uint64_t>(at + at_attempt);
  std::memcpy(message.source.data(), at + at_source, message.source.size());
  std::memcpy(message.destination.data(), at + at_destination, message.destination.size());
  message.destination_qp = load_le<std::uint32_t>(at + at_queue_pair);
  message.first_psn = load_le<std::uint32_t>(at + at_first_psn);
  if (message.destination_qp > roce::qp_mask || message.first_psn > roce::psn_mask) return std::nullopt;
  message.life = load_le<std::uint64_t>(at + at_life);
  message.incarnation = load_le<std::uint64_t>(at + at_incarnation);
  message.challenge = load_le<std::uint64_t>(at + at_challenge);
  if ((message.kind == RingAgreement::Kind::begin) != (message.life != 0)) return std::nullopt;
  if (message.kind == RingAgreement::Kind::ask && message.challenge == 0) return std::nullopt;
  return message;
}

void write(std::span<std::byte, RingAgreement::bytes> datagram, const RingAgreement& message) {
  std::byte* const at = datagram.data();
  std::fill(datagram.begin(), datagram.end(), std::byte{});
  at[at_format] = std::byte{RingAgreement::format};
  at[at_kind] = static_cast<std::byte>(message.kind);
  at[at_version] = std::byte{RingAgreement::version};
  at[at_flags] = std::byte{message.begun ? flag_begun : std::uint8_t{0}};
  store_le(at + at_ring, message.ring);
  store_le(at + at_digest, message.digest);
  store_le(at + at_rack, message.rack);
  store_le(at + at_process, message.process);
  store_le(at + at_attempt, message.attempt);
  std::memcpy(at + at_source, message.source.data(), message.source.size());
  std::memcpy(at + at_destination, message.destination.data(), message.destination.size());
  store_le(at + at_queue_pair, message.destination_qp);
  store_le(at + at_first_psn, message.first_psn);
  store_le(at + at_life, message.life);
  store_le(at + at_incarnation, message.incarnation);
  store_le(at + at_challenge, message.challenge);
  store_le(at + at_crc, crc32c(datagram.first(at_crc)));
}

}  // namespace netsum::wire::netreduce
