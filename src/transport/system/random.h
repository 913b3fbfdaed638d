// Unpredictable numbers from the system's generator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace netsum::transport {

// Throws Error: internal (no generator).
void random_bytes(std::span<std::byte> bytes);
[[nodiscard]] std::uint64_t random_number();

}  // namespace netsum::transport
