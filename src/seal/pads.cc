#include "seal/pads.h"

#include <bit>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "seal/pads.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
//
#include <hwy/highway.h>

#ifndef NETSUM_PADS_AES
#define NETSUM_PADS_AES
namespace netsum::seal {

// FIPS 197 §5.1.1, computed: inverses of GF(2^8) by walking the powers of 3 and of its inverse together.
constexpr std::array<std::uint8_t, 256> substitutions() {
  std::array<std::uint8_t, 256> box{};
  std::uint8_t power = 1, inverse = 1;
  do {
    power = static_cast<std::uint8_t>(power ^ (power << 1) ^ ((power & 0x80) != 0 ? 0x1b : 0));
    inverse = static_cast<std::uint8_t>(inverse ^ (inverse << 1));
    inverse = static_cast<std::uint8_t>(inverse ^ (inverse << 2));
    inverse = static_cast<std::uint8_t>(inverse ^ (inverse << 4));
    if ((inverse & 0x80) != 0) inverse ^= 0x09;
    box[power] = static_cast<std::uint8_t>(inverse ^ std::rotl(inverse, 1) ^ std::rotl(inverse, 2) ^ std::rotl(inverse, 3) ^
                                           std::rotl(inverse, 4) ^ 0x63);
  } while (power != 1);
  box[0] = 0x63;
  return box;
}
inline constexpr std::array<std::uint8_t, 256> substitution = substitutions();

}  // namespace netsum::seal
#endif

HWY_BEFORE_NAMESPACE();
namespace netsum::seal::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR  // whose vectors hold no block
void Cipher(const std::byte* round_keys, std::uint8_t* state) {
  const auto add_key = [&](std::size_t round) {
    for (std::size_t i = 0; i < 16; ++i) state[i] ^= std::to_integer<std::uint8_t>(round_keys[round * 16 + i]);
  };
  add_key(0);
  for (std::size_t round = 1; round <= PadKey::rounds; ++round) {
    std::uint8_t moved[16];
    for (std::size_t i = 0; i < 16; ++i) moved[i] = substitution[state[(i + i % 4 * 4) % 16]];
    for (std::size_t i = 0; i < 16; ++i) {
      const auto at = [&](std::size_t k) { return moved[i / 4 * 4 + (i + k) % 4]; };
      const auto twice = [](std::uint8_t v) {
        return static_cast<std::uint8_t>((v << 1) ^ ((v & 0x80) != 0 ? 0x1b : 0));
      };
      state[i] = round == PadKey::rounds
                     ? moved[i]
                     : static_cast<std::uint8_t>(twice(at(0)) ^ twice(at(1)) ^ at(1) ^ at(2) ^ at(3));
    }
    add_key(round);
  }
}

template <class Word>
void Apply(std::byte* to, const std::byte* from, std::size_t bytes, PadPlace place, std::span<const PadTerm> terms) {
  for (std::size_t i = 0; i < bytes; i += 16) {
    const std::size_t count = std::min<std::size_t>(16, bytes - i);
    std::byte words[16] = {}, pad[16];
    std::memcpy(words, from + i, count);
    for (const PadTerm& term : terms) {
      store_le(pad, place.block + i / 16);
      store_le(pad + 8, place.operation);
      Cipher(term.key->round_keys(), reinterpret_cast<std::uint8_t*>(pad));
      for (std::size_t k = 0; k < 16; k += sizeof(Word)) {
        const Word word = load_le<Word>(words + k), other = load_le<Word>(pad + k);
        store_le(words + k, static_cast<Word>(term.added ? word + other : word - other));
      }
    }
    std::memcpy(to + i, words, count);
  }
}
#else
using Octets = hn::ScalableTag<std::uint8_t>;
using Counters = hn::Repartition<std::uint64_t, Octets>;

inline constexpr std::size_t at_once = 4;  // vectors: a round of one waits for its last, so others run meanwhile

template <class Word>
HWY_INLINE void Group(std::byte* to, const std::byte* from, std::uint64_t operation, std::uint64_t block,
                      std::span<const PadTerm> terms) {
  const Octets d;
  const Counters d64;
  const hn::Repartition<Word, Octets> words;
  const std::size_t vector = hn::Lanes(d);
  const auto number = hn::Add(hn::Set(d64, block), hn::ShiftRight<1>(hn::Iota(d64, std::uint64_t{0})));
  const auto first = hn::OddEven(hn::Set(d64, operation), number);
  // An odd lane keeps the operation.
  const auto step = hn::OddEven(hn::Zero(d64), hn::Set(d64, vector / PadKey::block_bytes));
  const auto second = hn::Add(first, step), third = hn::Add(second, step), fourth = hn::Add(third, step);
  const auto load = [&](std::size_t i) {
    return hn::BitCast(words, hn::LoadU(d, reinterpret_cast<const std::uint8_t*>(from) + i * vector));
  };
  auto a = load(0), b = load(1), c = load(2), e = load(3);
  for (const PadTerm& term : terms) {
    const auto* const keys = reinterpret_cast<const std::uint8_t*>(term.key->round_keys());
    const auto whitening = hn::LoadDup128(d, keys);
    auto p = hn::Xor(hn::BitCast(d, first), whitening), q = hn::Xor(hn::BitCast(d, second), whitening);
    auto r = hn::Xor(hn::BitCast(d, third), whitening), s = hn::Xor(hn::BitCast(d, fourth), whitening);
    for (std::size_t round = 1; round < PadKey::rounds; ++round) {
      const auto key = hn::LoadDup128(d, keys + round * PadKey::block_bytes);
      p = hn::AESRound(p, key);
      q = hn::AESRound(q, key);
      r = hn::AESRound(r, key);
      s = hn::AESRound(s, key);
    }
    const auto last = hn::LoadDup128(d, keys + PadKey::rounds * PadKey::block_bytes);
    const auto pa = hn::BitCast(words, hn::AESLastRound(p, last)), pb = hn::BitCast(words, hn::AESLastRound(q, last));
    const auto pc = hn::BitCast(words, hn::AESLastRound(r, last)), pe = hn::BitCast(words, hn::AESLastRound(s, last));
    if (term.added) {
      a = hn::Add(a, pa), b = hn::Add(b, pb), c = hn::Add(c, pc), e = hn::Add(e, pe);
    } else {
      a = hn::Sub(a, pa), b = hn::Sub(b, pb), c = hn::Sub(c, pc), e = hn::Sub(e, pe);
    }
  }
  const auto store = [&](auto v, std::size_t i) {
    hn::StoreU(hn::BitCast(d, v), d, reinterpret_cast<std::uint8_t*>(to) + i * vector);
  };
  store(a, 0), store(b, 1), store(c, 2), store(e, 3);
}

template <class Word>
void Apply(std::byte* to, const std::byte* from, std::size_t bytes, PadPlace place, std::span<const PadTerm> terms) {
  const std::size_t whole = at_once * hn::Lanes(Octets());
  std::size_t i = 0;
  for (; i + whole <= bytes; i += whole) {
    Group<Word>(to + i, from + i, place.operation, place.block + i / PadKey::block_bytes, terms);
  }
  if (i == bytes) return;
  HWY_ALIGN std::byte rest[at_once * hn::MaxLanes(Octets())] = {};
  std::memcpy(rest, from + i, bytes - i);
  Group<Word>(rest, rest, place.operation, place.block + i / PadKey::block_bytes, terms);
  std::memcpy(to + i, rest, bytes - i);
}
#endif

void ApplyWidth(std::byte* to, std::span<const std::byte> from, std::size_t width, PadPlace place,
                std::span<const PadTerm> terms) {
  const auto apply = width == 1   ? &Apply<std::uint8_t>
                     : width == 2 ? &Apply<std::uint16_t>
                     : width == 4 ? &Apply<std::uint32_t>
                                  : &Apply<std::uint64_t>;
  apply(to, from.data(), from.size(), place, terms);
}

}  // namespace netsum::seal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace netsum::seal {

HWY_EXPORT(ApplyWidth);

// FIPS 197 §5.2, with words of four bytes.
PadKey::PadKey(const PacketKey& key) {
  std::memcpy(round_keys_.data(), key.bytes().data(), block_bytes);
  std::uint8_t constant = 1;
  for (std::size_t at = block_bytes; at < round_keys_.size(); at += 4) {
    std::array<std::byte, 4> word{};
    std::memcpy(word.data(), &round_keys_[at - 4], 4);
    if (at % block_bytes == 0) {
      const auto substituted = [&](std::size_t i) { return std::byte{substitution[std::to_integer<std::uint8_t>(word[i])]}; };
      word = {substituted(1) ^ std::byte{constant}, substituted(2), substituted(3), substituted(0)};
      constant = static_cast<std::uint8_t>((constant << 1) ^ ((constant & 0x80) != 0 ? 0x1b : 0));
    }
    for (std::size_t i = 0; i < 4; ++i) round_keys_[at + i] = round_keys_[at + i - block_bytes] ^ word[i];
  }
}

PadKey::~PadKey() {
  wipe(round_keys_);
}

void apply_pads(std::byte* to, std::span<const std::byte> from, std::size_t width, PadPlace place,
                std::span<const PadTerm> terms) {
  NETSUM_CHECK(std::has_single_bit(width) && width <= 8 && from.size() % width == 0);
  HWY_DYNAMIC_DISPATCH(ApplyWidth)(to, from, width, place, terms);
}

}  // namespace netsum::seal
#endif
