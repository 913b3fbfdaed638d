// SHA-256, HMAC-SHA256 and random bytes, by OpenSSL and the system, and bytes as text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace netsum::control {

using Digest = std::array<std::uint8_t, 32>;

// Both throw Error: internal.
[[nodiscard]] Digest sha256(std::string_view text);
[[nodiscard]] Digest hmac_sha256(std::string_view key, std::string_view text);

inline constexpr std::size_t nonce_bytes = 16;
[[nodiscard]] std::string new_nonce();  // throws Error: internal

[[nodiscard]] std::string hexadecimal(std::span<const std::uint8_t> bytes);

}  // namespace netsum::control
