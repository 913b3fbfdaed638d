// A 64-bit hash for comparing the results of ranks and runs (not against an adversary).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace netsum::app {

[[nodiscard]] std::uint64_t hash_of(std::span<const std::byte> bytes);
[[nodiscard]] std::uint64_t hash_of(std::uint64_t hash, std::uint64_t next);

}  // namespace netsum::app
