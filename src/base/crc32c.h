// CRC32C (Castagnoli, reflected polynomial 0x82f63b78, initial value and final xor ~0), as iSCSI and the wire formats use
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace netsum {

// The CRC of `previous`'s bytes followed by `bytes`; crc32c({}) is 0, crc32c("123456789") is 0xe3069283.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t previous = 0);

}  // namespace netsum
