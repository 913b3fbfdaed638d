#include "wire/netreduce.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/bytes.h"
#include "base/mix.h"
#include "base/numbers.h"
#include "netsum/error.h"

namespace netsum::wire::netreduce {
namespace {

constexpr std::uint8_t flag_average = 1;

std::uint64_t read_field(const Layout& layout, const Layout::Field& field, const std::byte* payload) {
  std::uint64_t value = 0;
  for (std::uint32_t i = 0; i < field.bytes; ++i) {
    const std::uint32_t at = field.offset + (layout.big_endian ? i : field.bytes - 1 - i);
    value = value << 8 | std::to_integer<std::uint64_t>(payload[at]);
  }
  return value;
}

void write_field(const Layout& layout, const Layout::Field& field, std::byte* payload, std::uint64_t value) {
  for (std::uint32_t i = 0; i < field.bytes; ++i) {
    const std::uint32_t at = field.offset + (layout.big_endian ? field.bytes - 1 - i : i);
    payload[at] = static_cast<std::byte>(value >> (8 * i));
  }
}

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw Error(ErrorCode::bad_argument, "INA header layout '" + text + "': " + why);
}

std::uint32_t number(const std::string& text, std::string_view part, std::uint32_t most) {
  const auto value = parse_number<std::uint32_t>(part, 0, most);
  if (!value) refuse(text, "'" + std::string(part) + "' is not a number up to " + std::to_string(most));
  return *value;
}

constexpr std::uint32_t longest_header = 128;  // half the smallest path MTU

Layout::Field field_of(const std::string& text, std::string_view value) {
  const std::size_t colon = value.find(':');
  if (colon == std::string_view::npos) refuse(text, "a field must be OFFSET:BYTES, not '" + std::string(value) + "'");
  const Layout::Field field{number(text, value.substr(0, colon), longest_header), number(text, value.substr(colon + 1), 8)};
  if (field.bytes == 0) refuse(text, "a field has 1 to 8 bytes");
  return field;
}

Layout parse_fields(const std::string& text) {
  Layout layout;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view part = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos) refuse(text, "'" + std::string(part) + "' is not KEY=VALUE");
    const std::string_view key = part.substr(0, equals), value = part.substr(equals + 1);
    if (key == "magic") {
      const std::size_t at = value.find('@');
      if (at == std::string_view::npos || at == 0 || at % 2 != 0 || at > 32) refuse(text, "magic must be HEXBYTES@OFFSET");
      layout.magic_bytes = static_cast<std::uint32_t>(at / 2);
      for (std::size_t i = 0; i < at; i += 2) {
        std::uint8_t byte = 0;
        const auto [end, error] = std::from_chars(value.data() + i, value.data() + i + 2, byte, 16);
        if (error != std::errc() || end != value.data() + i + 2) refuse(text, "magic must be HEXBYTES@OFFSET");
        layout.magic[i / 2] = std::byte{byte};
      }
      layout.magic_offset = number(text, value.substr(at + 1), longest_header);
    } else if (key == "header") {
      layout.header_bytes = number(text, value, longest_header);
    } else if (key == "endian") {
      if (value != "big" && value != "little") refuse(text, "endian must be big or little");
      layout.big_endian = value == "big";
    } else if (key == "seals") {
      if (value != "yes" && value != "no") refuse(text, "seals must be yes or no");
      layout.seals = value == "yes";
    } else if (key == "ring") {
      layout.ring = field_of(text, value);
    } else if (key == "rank") {
      layout.rank = field_of(text, value);
    } else if (key == "message") {
      layout.message = field_of(text, value);
    } else if (key == "packets") {
      layout.packets = field_of(text, value);
    } else if (key == "signature") {
      layout.signature = field_of(text, value);
    } else if (key == "dtype") {
      layout.dtype = field_of(text, value);
    } else if (key == "flags") {
      layout.flags = field_of(text, value);
    } else {
      refuse(text, "unknown key '" + std::string(key) + "'");
    }
  }
  if (layout.magic_bytes == 0) refuse(text, "magic is missing, by which gradients are distinguished from other messages");
  if (layout.ring.bytes == 0 || layout.rank.bytes == 0 || layout.message.bytes == 0) {
    refuse(text, "ring, rank and message are required");
  }
  const std::uint32_t begin = layout.seals ? static_cast<std::uint32_t>(seal_bytes) : 0;
  const auto inside = [&](std::uint32_t offset, std::size_t bytes) {
    return bytes == 0 || (offset >= begin && offset + bytes <= layout.header_bytes);
  };
  for (const Layout::Field& field :
       {layout.ring, layout.rank, layout.message, layout.packets, layout.signature, layout.dtype, layout.flags}) {
    if (!inside(field.offset, field.bytes)) refuse(text, "a field lies outside the header, or in the seal");
  }
  if (!inside(layout.magic_offset, layout.magic_bytes)) refuse(text, "the magic lies outside the header, or in the seal");
  if (layout.header_bytes % 4 != 0) refuse(text, "the header is not a multiple of 4 bytes");
  return layout;
}

}  // namespace

Layout parse_layout(const std::string& text) {
  if (text == netsum_layout.name) return netsum_layout;
  if (text == nrtv_layout.name) return nrtv_layout;
  return parse_fields(text);
}

bool has_mark(const Layout& layout, std::span<const std::byte> payload) {
  return payload.size() >= std::size_t{layout.magic_offset} + layout.magic_bytes &&
         std::memcmp(payload.data() + layout.magic_offset, layout.magic.data(), layout.magic_bytes) == 0;
}

std::optional<InaHeader> read_header(const Layout& layout, std::span<const std::byte> payload) {
  if (payload.size() < layout.header_bytes || !has_mark(layout, payload)) return std::nullopt;
  const std::byte* const p = payload.data();
  InaHeader header;
  const std::uint64_t ring = read_field(layout, layout.ring, p), rank = read_field(layout, layout.rank, p);
  const std::uint64_t packets = read_field(layout, layout.packets, p), signature = read_field(layout, layout.signature, p);
  if (std::max({ring, rank, packets, signature}) > UINT32_MAX) return std::nullopt;
  header.ring = static_cast<std::uint32_t>(ring);
  header.rank = static_cast<std::uint32_t>(rank);
  header.message = read_field(layout, layout.message, p);
  header.packets = static_cast<std::uint32_t>(packets);
  header.signature = static_cast<std::uint32_t>(signature);
  const std::uint64_t dtype = read_field(layout, layout.dtype, p);
  if (dtype > static_cast<std::uint64_t>(DType::bfloat16)) return std::nullopt;  // the accelerator adds no others
  header.dtype = static_cast<DType>(dtype);
  const std::uint64_t flags = read_field(layout, layout.flags, p);
  if (flags > flag_average) return std::nullopt;
  header.average = (flags & flag_average) != 0;
  return header;
}

void write_header(const Layout& layout, std::span<std::byte> payload, const InaHeader& header) {
  std::byte* const p = payload.data();
  std::fill_n(p, layout.header_bytes, std::byte{0});
  std::memcpy(p + layout.magic_offset, layout.magic.data(), layout.magic_bytes);
  write_field(layout, layout.ring, p, header.ring);
  write_field(layout, layout.rank, p, header.rank);
  write_field(layout, layout.message, p, header.message);
  write_field(layout, layout.packets, p, header.packets);
  write_field(layout, layout.signature, p, header.signature);
  write_field(layout, layout.dtype, p, static_cast<std::uint64_t>(header.dtype));
  write_field(layout, layout.flags, p, header.average ? flag_average : 0);
}

std::uint64_t extend_message(std::uint64_t wire, std::uint32_t bits, std::uint64_t near) {
  if (bits >= 64) return wire;
  const std::uint64_t period = std::uint64_t{1} << bits;
  const std::uint64_t forward = (wire - near) & (period - 1);  // how far after `near` it is next
  if (forward < period / 2 || near < period - forward) return near + forward;
  return near + forward - period;
}

std::uint64_t seal_of(const Seal& seal) {
  const std::uint64_t place = std::uint64_t{seal.ring} << 32 | seal.packet;
  const std::uint64_t digest = mix(mix(mix(mix(seal.incarnation) + seal.message) + place) + seal.contributions);
  const std::uint64_t word = (digest & ~std::uint64_t{0xffff}) | (seal.contributions & 0xffff);
  return word != 0 ? word : 1;
}

void write_seal(std::span<std::byte> payload, const Seal& seal) {
  store_le(payload.data(), seal_of(seal));
}

std::uint64_t read_seal(std::span<const std::byte> payload) {
  return load_le<std::uint64_t>(payload.data());
}

}  // namespace netsum::wire::netreduce
