// A secret that two or more ends of packets share. It is never printed, and its memory is wiped when it ends.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace netsum::seal {

class PacketKey {
 public:
  static constexpr std::size_t size = 32;
  using Bytes = std::array<std::byte, size>;

  PacketKey() = default;  // none
  explicit PacketKey(std::span<const std::byte, size> bytes) : some_(true) {
    std::copy(bytes.begin(), bytes.end(), bytes_.begin());
  }
  PacketKey(const PacketKey&) = default;
  PacketKey& operator=(const PacketKey&) = default;
  ~PacketKey();

  [[nodiscard]] explicit operator bool() const { return some_; }
  [[nodiscard]] const Bytes& bytes() const { return bytes_; }
  // A key for one purpose, from which nobody learns this one or another purpose's (HKDF-Expand with SHA-256, RFC 5869 §2.3).
  [[nodiscard]] PacketKey derived(std::string_view purpose, std::uint64_t number) const;
  // A key that takes all of these bytes as well (HMAC-SHA256).
  [[nodiscard]] PacketKey keyed(std::span<const std::byte> bytes) const;
  // From a secret of any length (HKDF-Extract, RFC 5869 §2.2).
  [[nodiscard]] static PacketKey extracted(std::string_view salt, std::span<const std::byte> secret);

 private:
  [[nodiscard]] static PacketKey authenticated(std::span<const std::byte> key, std::span<const std::byte> message);

  alignas(32) Bytes bytes_{};
  bool some_ = false;
};

// Two keys' equality takes the same time wherever they differ.
[[nodiscard]] bool operator==(const PacketKey& a, const PacketKey& b);

// Overwrites what was secret, even if nothing reads it afterwards.
void wipe(std::span<std::byte> bytes);

}  // namespace netsum::seal
