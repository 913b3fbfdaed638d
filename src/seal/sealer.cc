#include "seal/sealer.h"

#include <cstring>

#include "base/bytes.h"
#include "base/check.h"

namespace netsum::seal {

Protection::Protection(PacketSecurity security, const PacketKey& key, std::uint16_t sender)
    : security_(security), sender_(sender) {
  if (security == PacketSecurity::tag) tagger_ = std::make_unique<const Tagger>(key);
  if (security == PacketSecurity::encrypt) cipher_.emplace(key.derived("netsum encrypt", 0));
}

void Sealer::seal(std::span<std::byte> packet, std::size_t clear) {
  NETSUM_CHECK(packet.size() >= clear + trailer());
  const std::uint64_t counter = ++issued_;  // 64 bits last for thousands of years
  std::byte* const at = packet.data() + packet.size() - trailer();
  switch (security_) {
    case PacketSecurity::none:
      return;
    case PacketSecurity::tag:
      store_le(at, counter);
      store_le(at + counter_bytes, tagger_->tag(packet.first(packet.size() - trailer()), counter));
      return;
    case PacketSecurity::encrypt: {
      store_le(at, counter);
      const AesGcm::Tag tag = cipher_->encrypt({sender_, counter}, packet.first(clear),
                                               packet.subspan(clear, packet.size() - clear - trailer()));
      std::memcpy(at + counter_bytes, tag.data(), tag.size());
      return;
    }
  }
}

std::optional<Opener::Opened> Opener::open(std::span<const std::byte> packet, std::size_t clear, std::span<std::byte> room) {
  if (packet.size() < clear + trailer() || security_ == PacketSecurity::none) return std::nullopt;
  const std::size_t content = packet.size() - trailer();
  const auto counter = load_le<std::uint64_t>(packet.data() + content);
  if (security_ == PacketSecurity::tag) {
    const auto tag = load_le<std::uint64_t>(packet.data() + content + counter_bytes);
    if (content > Tagger::longest || tag != tagger_->tag(packet.first(content), counter)) return std::nullopt;
    return Opened{packet.first(content), counter};
  }
  NETSUM_CHECK(room.size() >= content);
  AesGcm::Tag tag;
  std::memcpy(tag.data(), packet.data() + content + counter_bytes, tag.size());
  if (!cipher_->decrypt({sender_, counter}, packet.first(clear), packet.subspan(clear, content - clear), tag,
                        room.subspan(clear))) {
    return std::nullopt;
  }
  std::memcpy(room.data(), packet.data(), clear);
  return Opened{room.first(content), counter};
}

}  // namespace netsum::seal
