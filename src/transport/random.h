// Numbers that nobody can guess, of the system's generator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace netsum::transport {

// Throws Error: internal, if the system has none.
void random_bytes(std::span<std::byte> bytes);
[[nodiscard]] std::uint64_t random_number();

}  // namespace netsum::transport
