// Bytes as OpenSSL names them.
#pragma once

#include <cstddef>

namespace netsum::seal {

[[nodiscard]] inline const unsigned char* as_unsigned(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}
[[nodiscard]] inline unsigned char* as_unsigned(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}

}  // namespace netsum::seal
