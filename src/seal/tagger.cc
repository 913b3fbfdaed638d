#include "seal/tagger.h"

#include <highwayhash/c_bindings.h>

#include <array>
#include <bit>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "seal/aes_gcm.h"

namespace netsum::seal {

std::uint64_t keyed_hash(const PacketKey& key, std::span<const std::byte> bytes) {
  const auto words = std::bit_cast<std::array<std::uint64_t, 4>>(key.bytes());
  return HighwayHash64(words.data(), reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Tagger::Tagger(const PacketKey& key) : key_(key.derived("netsum tag", 0)) {
  // Zeros encrypted are AES in counter mode, as UMAC makes its keys (RFC 4418 §3.2).
  static_cast<void>(AesGcm(key.derived("netsum tag, NH", 0)).encrypt({}, {}, nh_key_));
}

Tagger::~Tagger() {
  wipe(nh_key_);
}

std::uint64_t Tagger::tag(std::span<const std::byte> content, std::uint64_t counter) const {
  NETSUM_CHECK(content.size() <= longest);
  constexpr std::size_t most_hashes = (longest / nh_block + 1) * nh_hash_bytes;
  std::array<std::byte, most_hashes + nh_unit + sizeof counter + sizeof std::uint64_t{}> input;
  const std::size_t whole = content.size() / nh_unit * nh_unit;
  std::byte* end = nh(input.data(), nh_key_, content.first(whole));
  std::memcpy(end, content.data() + whole, content.size() - whole);
  end += content.size() - whole;
  store_le(end, counter);
  store_le(end + sizeof counter, std::uint64_t{content.size()});
  return keyed_hash(key_, std::span(input.data(), end + sizeof counter + sizeof std::uint64_t{}));
}

}  // namespace netsum::seal
