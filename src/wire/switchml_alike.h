// Contributions to one call are alike but for a few fields. Once the full parser has taken one, another that has the same
// bytes in all other fields is right in them too.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/bytes.h"
#include "wire/switchml.h"

namespace netsum::wire::switchml {

// The fields of a chunk's packet, each where it is.
struct ChunkFields {
  const std::byte* p;

  [[nodiscard]] std::uint16_t sender() const { return load_le<std::uint16_t>(p + at_sender); }
  [[nodiscard]] std::uint32_t rank_epoch() const { return load_le<std::uint32_t>(p + at_rank_epoch); }
  [[nodiscard]] std::uint64_t operation() const { return load_le<std::uint64_t>(p + at_operation); }
  [[nodiscard]] std::uint32_t chunk() const { return load_le<std::uint32_t>(p + at_chunk); }
  [[nodiscard]] std::uint32_t signature() const { return load_le<std::uint32_t>(p + at_signature); }
  [[nodiscard]] std::uint32_t ahead_chunk() const { return load_le<std::uint32_t>(p + at_ahead_chunk); }
  [[nodiscard]] std::uint8_t ahead_operation() const { return std::to_integer<std::uint8_t>(p[at_ahead_operation]); }
  [[nodiscard]] std::uint16_t elements() const { return load_le<std::uint16_t>(p + at_elements); }
  [[nodiscard]] std::size_t exponents() const { return std::to_integer<std::size_t>(p[at_exponents]); }
  [[nodiscard]] std::size_t round() const {  // 2 * slot + version
    return std::size_t{load_le<std::uint16_t>(p + at_slot)} * 2 +
           std::to_integer<std::size_t>(p[at_flags] & std::byte{flag_version});
  }
  [[nodiscard]] bool checked() const { return std::to_integer<int>(p[at_type]) >> integrity_shift == checksummed; }
  [[nodiscard]] std::uint32_t checksum() const { return load_le<std::uint32_t>(p + at_checksum); }
  [[nodiscard]] ChunkHeader header() const {  // of int32 sums
    return {.operation = operation(),
            .chunk = chunk(),
            .signature = signature(),
            .slot = static_cast<std::uint16_t>(round() / 2),
            .version = static_cast<std::uint8_t>(round() % 2),
            .exponents = static_cast<std::uint8_t>(exponents()),
            .elements = elements(),
            .ahead_operation = ahead_operation(),
            .ahead_chunk = ahead_chunk()};
  }
};

class AlikeContributions {
 public:
  // From a contribution that parse_common() and parse_chunk() took, and that has no seal.
  void learn(std::span<const std::byte> packet) {
    bytes_ = packet.size();
    std::memcpy(words_.data(), packet.data(), chunk_header_bytes);
  }

  // Whether they would take this one too, if its checksum is right; it may have one where the other had none.
  [[nodiscard]] bool cover(std::span<const std::byte> packet) const {
    if (packet.size() != bytes_) return false;
    std::uint64_t different = 0;
    for (std::size_t i = 0; i < words_.size(); ++i) {
      different |= (load_le<std::uint64_t>(packet.data() + 8 * i) ^ words_[i]) & alike[i];
    }
    const ChunkFields fields{packet.data()};
    return different == 0 && (fields.checked() || fields.checksum() == 0) &&
           valid_exponents(packet.data() + chunk_header_bytes, fields.exponents());
  }

 private:
  using Words = std::array<std::uint64_t, chunk_header_bytes / 8>;

  // The header's bits that are the same in all. Of what protects a packet, a checksum or nothing.
  static constexpr Words alike = [] {
    std::array<std::uint8_t, chunk_header_bytes> bits{};
    bits.fill(0xff);
    const auto differ = [&](std::size_t at, std::size_t bytes) {
      for (std::size_t i = at; i < at + bytes; ++i) bits[i] = 0;
    };
    differ(at_sender, 2);
    differ(at_checksum, 4);
    differ(at_rank_epoch, 4);
    differ(at_chunk, 4);
    differ(at_operation, 8);
    differ(at_ahead_chunk, 4);
    differ(at_slot, 2);
    bits[at_type] = static_cast<std::uint8_t>(~((unprotected ^ checksummed) << integrity_shift));
    bits[at_flags] = static_cast<std::uint8_t>(~flag_version);
    return std::bit_cast<Words>(bits);
  }();

  std::size_t bytes_ = SIZE_MAX;  // nothing is learnt
  Words words_{};
};

}  // namespace netsum::wire::switchml
