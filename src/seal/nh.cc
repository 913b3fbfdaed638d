#include "seal/nh.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "seal/nh.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
//
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "base/bytes.h"

HWY_BEFORE_NAMESPACE();
namespace netsum::seal::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR  // whose vectors have no pairs
std::uint64_t Products(const std::byte* content, const std::byte* key, std::size_t bytes) {
  const auto sum_at = [&](std::size_t i) { return load_le<std::uint32_t>(content + i) + load_le<std::uint32_t>(key + i); };
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes; i += 8) sum += std::uint64_t{sum_at(i)} * sum_at(i + 4);
  return sum;
}

void Block(std::byte* hash, const std::byte* key, const std::byte* content, std::size_t bytes) {
  store_le(hash, Products(content, key, bytes));
  store_le(hash + 8, Products(content, key + nh_shift, bytes));
}
#else
using Words = hn::CappedTag<std::uint32_t, nh_unit / 4>;
using Sums = hn::Repartition<std::uint64_t, Words>;

HWY_INLINE hn::Vec<Words> Load(const std::byte* p) {
  return hn::LoadU(Words(), reinterpret_cast<const std::uint32_t*>(p));
}

HWY_INLINE hn::Vec<Sums> Products(hn::Vec<Words> content, hn::Vec<Words> key) {
  const hn::Vec<Words> words = hn::Add(content, key);
  return hn::MulEven(words, hn::BitCast(Words(), hn::ShiftRight<32>(hn::BitCast(Sums(), words))));
}

void Block(std::byte* hash, const std::byte* key, const std::byte* content, std::size_t bytes) {
  constexpr std::size_t vector = hn::MaxLanes(Words()) * 4;
  hn::Vec<Sums> first = hn::Zero(Sums()), second = first;
  for (std::size_t i = 0; i < bytes; i += nh_unit) {
    for (std::size_t k = i; k < i + nh_unit; k += vector) {
      const hn::Vec<Words> words = Load(content + k);
      first = hn::Add(first, Products(words, Load(key + k)));
      second = hn::Add(second, Products(words, Load(key + nh_shift + k)));
    }
  }
  store_le(hash, hn::GetLane(hn::SumOfLanes(Sums(), first)));
  store_le(hash + 8, hn::GetLane(hn::SumOfLanes(Sums(), second)));
}
#endif

std::byte* Nh(std::byte* hashes, const std::byte* key, std::span<const std::byte> content) {
  for (std::size_t i = 0; i < content.size(); i += nh_block, hashes += nh_hash_bytes) {
    Block(hashes, key, content.data() + i, std::min(nh_block, content.size() - i));
  }
  return hashes;
}

}  // namespace netsum::seal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum::seal {

HWY_EXPORT(Nh);

std::byte* nh(std::byte* hashes, std::span<const std::byte, nh_key_bytes> key, std::span<const std::byte> content) {
  return HWY_DYNAMIC_DISPATCH(Nh)(hashes, key.data(), content);
}

}  // namespace netsum::seal
#endif
