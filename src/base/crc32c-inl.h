// CRC32C for every vector width. Include it as crc_fold-inl.h.
#if defined(NETSUM_BASE_CRC32C_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef NETSUM_BASE_CRC32C_INL_H
#undef NETSUM_BASE_CRC32C_INL_H
#else
#define NETSUM_BASE_CRC32C_INL_H
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "base/crc_fold-inl.h"

HWY_BEFORE_NAMESPACE();
namespace netsum::HWY_NAMESPACE {

using Castagnoli = CrcPolynomial<0x82f63b78>;

struct CastagnoliWords {
#if HWY_ARCH_X86_64 && HWY_TARGET <= HWY_SSE4
  static constexpr std::size_t enough_below = 128;
  static constexpr bool beside_folding = true;
  static HWY_INLINE std::uint32_t run(std::uint32_t state, const std::byte* p, std::size_t bytes) {
    std::uint64_t wide = state;
    for (; bytes >= 8; bytes -= 8, p += 8) wide = __builtin_ia32_crc32di(wide, load_le<std::uint64_t>(p));
    state = static_cast<std::uint32_t>(wide);
    if (bytes >= 4) {
      state = __builtin_ia32_crc32si(state, load_le<std::uint32_t>(p));
      bytes -= 4;
      p += 4;
    }
    for (; bytes > 0; --bytes, ++p) state = __builtin_ia32_crc32qi(state, std::to_integer<unsigned char>(*p));
    return state;
  }
#else
  static constexpr std::size_t enough_below = 32;
  static constexpr bool beside_folding = false;
  static HWY_INLINE std::uint32_t run(std::uint32_t state, const std::byte* p, std::size_t bytes) {
    return Castagnoli::table_words(state, p, bytes);
  }
#endif
};

}  // namespace netsum::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
