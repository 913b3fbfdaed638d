// int32 addition and CRC32C in one pass: the switch's inner loop where packets have checksums.
#include "kernels/kernels.h"

#define HWY_WANT_AVX3_DL 1  // carry-less products of whole AVX-512 vectors
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/checked_sum.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
//
#include <hwy/highway.h>

#include "base/bytes.h"
#include "base/crc32c-inl.h"

HWY_BEFORE_NAMESPACE();
namespace netsum::HWY_NAMESPACE {

struct AddEach {
  std::uint32_t* sum;

  template <class D>
  HWY_INLINE void see(D, hn::Vec<D> values) {
    const hn::Repartition<std::uint32_t, D> d;
    hn::StoreU(hn::Add(hn::LoadU(d, sum), hn::BitCast(d, values)), d, sum);
    sum += hn::Lanes(d);
  }
};

std::uint32_t AddInt32AndCrc(std::uint32_t state, std::byte* sum, std::span<const std::byte> packet, std::size_t count) {
  const std::size_t whole = NETSUM_CARRYLESS_PRODUCTS != 0 ? count * 4 / crc_whole_vectors * crc_whole_vectors : 0;
  // What fills no vectors goes first, behind the header.
  const std::size_t rest = count * 4 - whole;
  const std::byte* const payload = packet.data() + packet.size() - count * 4;
  for (std::size_t i = 0; i < rest; i += 4) {
    store_le(sum + i, load_le<std::uint32_t>(sum + i) + load_le<std::uint32_t>(payload + i));
  }
  state = crc_folded<Castagnoli, CastagnoliWords>(state, packet.data(), packet.size() - whole);
  if (whole == 0) return state;
  return crc_folded<Castagnoli, CastagnoliWords>(state, payload + rest, whole,
                                                 AddEach{reinterpret_cast<std::uint32_t*>(sum + rest)});
}

}  // namespace netsum::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum {

HWY_EXPORT(AddInt32AndCrc);

std::uint32_t kernels::add_int32_and_crc32c(std::byte* payload_sum, std::span<const std::byte> packet, std::size_t count,
                                            std::uint32_t previous) {
  return ~HWY_DYNAMIC_DISPATCH(AddInt32AndCrc)(~previous, payload_sum, packet, count);
}

}  // namespace netsum
#endif
