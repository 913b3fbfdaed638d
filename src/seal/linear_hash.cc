#include "seal/linear_hash.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "seal/linear_hash.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
//
#include <hwy/highway.h>

#include "base/bytes.h"
#include "base/check.h"
#include "seal/pads.h"
#include "seal/private_sums.h"

HWY_BEFORE_NAMESPACE();
namespace netsum::seal::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

inline std::uint64_t OneByOne(const std::byte* words, std::size_t count, const std::int32_t* low, const std::int32_t* high) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto word = static_cast<std::int64_t>(static_cast<std::int32_t>(load_le<std::uint32_t>(words + i * 4)));
    const auto product = static_cast<std::uint64_t>(word) * static_cast<std::uint32_t>(high[i]);
    sum += (product << 32) + static_cast<std::uint64_t>(word * low[i]);
  }
  return sum;
}

#if HWY_TARGET == HWY_SCALAR  // whose vectors have no pairs
std::uint64_t Hash(const std::byte* words, std::size_t count, const std::int32_t* low, const std::int32_t* high) {
  return OneByOne(words, count, low, high);
}
#else
std::uint64_t Hash(const std::byte* words, std::size_t count, const std::int32_t* low, const std::int32_t* high) {
  const hn::ScalableTag<std::int32_t> d;
  const hn::RepartitionToWide<decltype(d)> wide;
  const auto load = [&](const std::int32_t* from) { return hn::LoadU(d, from); };
  const auto odd = [&](auto v) { return hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, v))); };
  const auto upper = hn::Set(wide, static_cast<std::int64_t>(0xffffffff00000000));
  const std::size_t lanes = hn::Lanes(d);
  const auto* const in = reinterpret_cast<const std::int32_t*>(words);  // any alignment: LoadU only
  auto first = hn::Zero(wide), second = first;
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto w = load(in + i), l = load(low + i);
    const auto of_high = hn::BitCast(wide, hn::Mul(w, load(high + i)));  // modulo 2^32: what is left of it, times 2^32
    first = hn::Add(first, hn::Add(hn::MulEven(w, l), hn::ShiftLeft<32>(of_high)));
    second = hn::Add(second, hn::Add(hn::MulEven(odd(w), odd(l)), hn::And(of_high, upper)));
  }
  const auto sum = static_cast<std::uint64_t>(hn::GetLane(hn::SumOfLanes(wide, hn::Add(first, second))));
  return sum + OneByOne(words + i * 4, count - i, low + i, high + i);
}
#endif

}  // namespace netsum::seal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum::seal {

HWY_EXPORT(Hash);

LinearHash::LinearHash(const PacketKey& key, std::size_t most_words)
    : low_(std::min(most_words, block_words)), high_(low_.size()), factors_((most_words + block_words - 1) / block_words) {
  const PadKey stream(key);
  const PadTerm term{&stream, true};
  std::uint64_t number = 0;
  const auto draw = [&](std::span<std::byte> bytes) { apply_pads(bytes.data(), bytes, 4, {number++, 0}, {&term, 1}); };
  draw(std::as_writable_bytes(std::span(low_)));
  draw(std::as_writable_bytes(std::span(high_)));
  draw(std::as_writable_bytes(std::span(factors_)));
  for (std::int32_t& key_of_word : low_) key_of_word &= 0x7fffffff;
  for (std::uint64_t& factor : factors_) factor |= 1;
  if (!factors_.empty()) factors_.front() = 1;
}

LinearHash::~LinearHash() {
  wipe(std::as_writable_bytes(std::span(low_)));
  wipe(std::as_writable_bytes(std::span(high_)));
  wipe(std::as_writable_bytes(std::span(factors_)));
}

std::uint64_t LinearHash::operator()(const std::byte* words, std::size_t first, std::size_t count) const {
  NETSUM_CHECK(first % block_words == 0 && first + count <= factors_.size() * block_words);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < count; i += block_words) {
    const std::size_t of_block = std::min(block_words, count - i);
    sum +=
        factors_[(first + i) / block_words] * HWY_DYNAMIC_DISPATCH(Hash)(words + i * 4, of_block, low_.data(), high_.data());
  }
  return sum;
}

namespace {
constexpr unsigned bits_of_word = 22;
static_assert(bits_of_word * hash_words >= 64 && most_private_ranks <= 1U << (32 - bits_of_word));
}  // namespace

void write_hash(std::byte* words, std::uint64_t hash) {
  for (std::size_t i = 0; i < hash_words; ++i, hash >>= bits_of_word) {
    store_le(words + i * 4, static_cast<std::uint32_t>(hash % (1U << bits_of_word)));
  }
}

std::uint64_t read_hash(const std::byte* words) {
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < hash_words; ++i) {
    hash += std::uint64_t{load_le<std::uint32_t>(words + i * 4)} << bits_of_word * i;
  }
  return hash;
}

}  // namespace netsum::seal
#endif
