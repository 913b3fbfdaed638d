#include "seal/pads.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"

// VAES: four blocks in one instruction. Highway leaves that target out unless it is wanted.
#define HWY_WANT_AVX3_DL 1
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
      const auto twice = [](std::uint8_t v) { return static_cast<std::uint8_t>((v << 1) ^ ((v & 0x80) != 0 ? 0x1b : 0)); };
      state[i] = round == PadKey::rounds ? moved[i]
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
// Without VAES an instruction takes one block, and wider vectors would be taken apart for it.
using Octets = hn::CappedTag<std::uint8_t, HWY_TARGET == HWY_AVX3_DL ? 64 : 16>;
using Counters = hn::Repartition<std::uint64_t, Octets>;
using Octet = hn::Vec<Octets>;

inline constexpr std::size_t vector_bytes = hn::MaxLanes(Octets());
// A round of one vector waits for its last one, so others run meanwhile.
inline constexpr std::size_t at_once = HWY_TARGET == HWY_AVX3_DL ? 4 : 8;

// Of `n` vectors.
template <class Word, std::size_t n>
HWY_INLINE void Group(std::byte* to, const std::byte* from, std::uint64_t operation, std::uint64_t block,
                      std::span<const PadTerm> terms) {
  const Octets d;
  const Counters d64;
  const hn::Repartition<Word, Octets> words;
  const auto number = hn::ShiftRight<1>(hn::Iota(d64, std::uint64_t{0}));
  for (const PadTerm& term : terms) {
    const auto* const keys = reinterpret_cast<const std::uint8_t*>(term.key->round_keys());
    const auto key_of = [&](std::size_t round) { return hn::LoadDup128(d, keys + round * PadKey::block_bytes); };
    Octet state[n];
    const Octet whitening = key_of(0);
    for (std::size_t k = 0; k < n; ++k) {
      const auto blocks = hn::Add(hn::Set(d64, block + k * (vector_bytes / PadKey::block_bytes)), number);
      state[k] = hn::Xor(hn::BitCast(d, hn::OddEven(hn::Set(d64, operation), blocks)), whitening);
    }
    for (std::size_t round = 1; round < PadKey::rounds; ++round) {
      const Octet key = key_of(round);
      for (std::size_t k = 0; k < n; ++k) state[k] = hn::AESRound(state[k], key);
    }
    const Octet last = key_of(PadKey::rounds);
    for (std::size_t k = 0; k < n; ++k) {
      const auto pad = hn::BitCast(words, hn::AESLastRound(state[k], last));
      const auto value = hn::BitCast(words, hn::LoadU(d, reinterpret_cast<const std::uint8_t*>(from) + k * vector_bytes));
      const auto sum = term.added ? hn::Add(value, pad) : hn::Sub(value, pad);
      hn::StoreU(hn::BitCast(d, sum), d, reinterpret_cast<std::uint8_t*>(to) + k * vector_bytes);
    }
    from = to;  // the next pad comes on top
  }
}

template <class Word>
void Apply(std::byte* to, const std::byte* from, std::size_t bytes, PadPlace place, std::span<const PadTerm> terms) {
  std::size_t i = 0;
  const auto block = [&] { return place.block + i / PadKey::block_bytes; };
  constexpr std::size_t whole = at_once * vector_bytes;
  for (; i + whole <= bytes; i += whole) Group<Word, at_once>(to + i, from + i, place.operation, block(), terms);
  for (; i + vector_bytes <= bytes; i += vector_bytes) Group<Word, 1>(to + i, from + i, place.operation, block(), terms);
  if (i == bytes) return;
  HWY_ALIGN std::byte rest[vector_bytes] = {};
  std::memcpy(rest, from + i, bytes - i);
  Group<Word, 1>(rest, rest, place.operation, block(), terms);
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
      const auto substituted = [&](std::size_t i) {
        return std::byte{substitution[std::to_integer<std::uint8_t>(word[i])]};
      };
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
  if (terms.empty() && to != from.data()) std::copy(from.begin(), from.end(), to);
  NETSUM_CHECK(std::has_single_bit(width) && width <= 8 && from.size() % width == 0);
  HWY_DYNAMIC_DISPATCH(ApplyWidth)(to, from, width, place, terms);
}

}  // namespace netsum::seal
#endif
