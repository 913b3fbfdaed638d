#include "wire/ethernet.h"

#include <cstring>

#include "base/bytes.h"
#include "wire/ecn.h"

namespace netsum::wire::ethernet {
namespace {

constexpr std::size_t at_source = 6, at_type = 12, max_tags = 2;

}  // namespace

std::optional<Header> parse(std::span<const std::byte> frame) {
  if (frame.size() < header_bytes) return std::nullopt;
  Header header;
  std::memcpy(header.destination.data(), frame.data(), header.destination.size());
  std::memcpy(header.source.data(), frame.data() + at_source, header.source.size());
  header.type = load_be<std::uint16_t>(frame.data() + at_type);
  header.bytes = header_bytes;
  for (std::size_t tags = 0; tags < max_tags && (header.type == vlan || header.type == provider_vlan); ++tags) {
    if (frame.size() < header.bytes + tag_bytes) return std::nullopt;
    header.bytes += tag_bytes;
    header.type = load_be<std::uint16_t>(frame.data() + header.bytes - 2);
  }
  return header;
}

bool mark_congestion(std::span<std::byte> frame) {
  const std::optional<Header> header = parse(frame);
  return header && (header->type == ipv4 || header->type == ipv6) && wire::mark_congestion(frame.subspan(header->bytes));
}

}  // namespace netsum::wire::ethernet
