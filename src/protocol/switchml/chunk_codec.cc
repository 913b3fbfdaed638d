#include "protocol/switchml/chunk_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "base/mix.h"
#include "kernels/kernels.h"
#include "stream/tensor.h"

namespace netsum::switchml {
namespace {

using wire::switchml::block_elements;

// Splits [offset, offset + elements) at block boundaries, in order: body(block, begin, count), with `block` counted from the
// first element's block and `begin` from the first element.
template <class Body>
void for_blocks(std::uint64_t offset, std::uint32_t elements, Body body) {
  std::uint32_t count = block_elements - static_cast<std::uint32_t>(offset % block_elements);
  for (std::uint32_t begin = 0, block = 0; begin < elements; begin += count, count = block_elements, ++block) {
    body(block, begin, std::min(count, elements - begin));
  }
}

// Splits elements into what stays in the first-level cache while several passes go over it; all at once where there are
// masks, which are of all. body(begin, count, first of its blocks), counted from `offset` and its block.
template <class Body>
void for_pieces(std::uint64_t offset, std::uint32_t elements, std::span<const std::byte> masks, Body body) {
  constexpr std::uint32_t most = seal::LinearHash::block_words;
  static_assert(most % block_elements == 0);
  const std::uint32_t piece = masks.empty() ? most : elements;
  for (std::uint32_t begin = 0; begin < elements; begin += piece) {
    body(begin, std::min(piece, elements - begin), (offset % block_elements + begin) / block_elements);
  }
}

// A part's pad begins at a multiple of 2^48 blocks, and those of its hashes at half of that: more than a process can
// address.
[[nodiscard]] seal::PadPlace pad_place(const stream::Operation& operation, std::uint64_t offset, std::size_t width) {
  constexpr std::size_t block = seal::PadKey::block_bytes;
  NETSUM_CHECK(stream::adds_integers(operation) && offset * width % block == 0 && operation.part < 1U << 16);
  return {operation.number, std::uint64_t{operation.part} << 48 | offset * width / block};
}
[[nodiscard]] seal::PadPlace pad_of_hash(seal::PadPlace of_values) {
  return {of_values.operation, of_values.block | std::uint64_t{1} << 47};
}
static_assert(seal::hash_words == wire::switchml::check_words);

// The finite values that a block of this exponent has no room for.
[[nodiscard]] std::uint64_t count_above(const float* values, std::uint32_t count, std::uint8_t exponent) {
  return static_cast<std::uint64_t>(std::count_if(values, values + count, [&](float value) {
    const std::uint32_t own = std::bit_cast<std::uint32_t>(value) >> 23 & 0xff;
    return own > exponent && own != 0xff;
  }));
}

[[nodiscard]] std::byte* element_at(const stream::Operation& operation, std::uint64_t offset) {
  return static_cast<std::byte*>(operation.data) + offset * bytes_of(operation.dtype);
}

}  // namespace

ChunkCodec::ChunkCodec(std::uint32_t rank, std::uint32_t world_size, std::uint32_t packet_elements, const Privacy& privacy)
    : rank_(rank),
      world_size_(world_size),
      scratch_(std::max(4 * packet_elements, std::lcm(packet_elements, block_elements))),
      halves_(std::size_t{2} * packet_elements),
      fixed_exponent_(privacy.fixed_exponent) {
  if (!privacy.pads) return;
  pads_.emplace(*privacy.pads, rank);
  if (privacy.checked) hash_.emplace(privacy.pads->check, packet_elements);
  unmasked_.resize(std::size_t{4} * packet_elements);
}

const float* ChunkCodec::floats(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements) {
  if (operation.dtype == DType::float32) return stream::tensor_at<const float>(operation, offset);
  if (operation.dtype == DType::float16) {
    kernels::from_float16(scratch_.data(), stream::tensor_at<const std::uint16_t>(operation, offset), elements);
  } else {
    kernels::from_bfloat16(scratch_.data(), stream::tensor_at<const std::uint16_t>(operation, offset), elements);
  }
  return scratch_.data();
}

bool ChunkCodec::scan(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
                      std::span<std::uint8_t> exponents) {
  NETSUM_CHECK(offset % block_elements == 0 && offset + elements <= operation.elements);
  const float* values = floats(operation, offset, elements);
  bool nonfinite = false;
  for (std::uint32_t begin = 0; begin < elements; begin += block_elements) {
    const auto scan = kernels::scan_block(values + begin, std::min(block_elements, elements - begin));
    exponents[begin / block_elements] = scan.exponent;
    nonfinite |= scan.nonfinite;
    if (fixed_exponent_ && scan.exponent > *fixed_exponent_) {
      sample_.add({.clamped = count_above(values + begin, std::min(block_elements, elements - begin), *fixed_exponent_)});
    }
  }
  return nonfinite;
}

void ChunkCodec::encode_unscaled(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
                                 std::byte* payload) {
  const stream::OnWire wire = stream::on_wire(operation);
  const std::byte* const values = element_at(operation, offset);
  if (has_blocks(wire.dtype)) {
    // The chances of a value follow from the call, the rank and the value's place: whatever a packet's length, they are the
    // same. 0 is without chance.
    const std::uint64_t of_rank = std::uint64_t{operation.part} * 0x10000 + rank_ + 1;
    const std::uint64_t key = operation.nearest ? 0 : mix(mix(operation.number) + of_rank) | 1;
    kernels::to_blocks(wire.dtype, payload, floats(operation, offset, elements), elements, key, offset);
  } else if (operation.dtype == DType::boolean) {
    kernels::truths(payload, values, elements);
  } else if (wire.dtype == operation.dtype) {
    std::memcpy(payload, values, elements * bytes_of(wire.dtype));
  } else if (!is_float(wire.dtype)) {
    kernels::to_ordered(operation.op, operation.dtype, payload, values, elements);
  } else {
    kernels::to_narrow_wire(wire.dtype, halves_.data(), stream::tensor_at<const float>(operation, offset), elements);
    std::memcpy(payload, halves_.data(), std::size_t{elements} * 2);
  }
}

void ChunkCodec::decode_unscaled(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
                                 const std::byte* payload) {
  const stream::OnWire wire = stream::on_wire(operation);
  std::byte* const values = element_at(operation, offset);
  if (has_blocks(wire.dtype)) {
    const std::uint32_t divisor = operation.op == ReduceOp::avg ? world_size_ : 1;
    const bool wide = operation.dtype == DType::float32;
    float* const floats = wide ? stream::tensor_at<float>(operation, offset) : scratch_.data();
    kernels::from_blocks(block8, floats, payload, elements, divisor);
    if (!wide) kernels::to_bfloat16(stream::tensor_at<std::uint16_t>(operation, offset), floats, elements);
  } else if (is_float(operation.dtype) && !is_float(wire.dtype)) {
    kernels::from_ordered(operation.dtype, values, payload, elements);
  } else if (wire.dtype == operation.dtype || operation.dtype == DType::boolean) {
    std::memcpy(values, payload, elements * bytes_of(wire.dtype));
    // The switch divides floats.
    if (operation.op == ReduceOp::avg && !is_float(wire.dtype)) {
      kernels::divide(operation.dtype, values, elements, world_size_);
    }
  } else {
    std::memcpy(halves_.data(), payload, std::size_t{elements} * 2);
    const auto to_wide = wire.dtype == DType::float16 ? kernels::from_float16 : kernels::from_bfloat16;
    to_wide(stream::tensor_at<float>(operation, offset), halves_.data(), elements);
  }
}

void ChunkCodec::encode(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
                        const std::uint8_t* exponents, std::byte* payload, std::span<std::byte> masks) {
  if (elements == 0) return;
  if (!pads_) return encode_plain(operation, offset, elements, exponents, payload, masks);
  const std::size_t width = bytes_of(stream::wire_dtype(operation));
  const bool checked = check_words(operation) != 0;
  const auto mask = stream::spreads(operation) ? &seal::Pads::mask_only : &seal::Pads::mask_term;
  std::uint64_t hash = 0;
  for_pieces(offset, elements, masks, [&](std::uint32_t begin, std::uint32_t count, std::size_t block) {
    const std::span<std::byte> values(payload + begin * width, count * width);
    encode_plain(operation, offset + begin, count, exponents + block, values.data(), masks);
    if (checked) hash += (*hash_)(values.data(), begin, count);
    ((*pads_).*mask)(values, width, pad_place(operation, offset + begin, width));
  });
  if (!checked) return;
  const std::span<std::byte> behind(payload + elements * width, seal::hash_bytes);
  seal::write_hash(behind.data(), hash);
  ((*pads_).*mask)(behind, 4, pad_of_hash(pad_place(operation, offset, width)));
}

std::uint32_t ChunkCodec::check_words(const stream::Operation& operation) const {
  const bool exact = stream::uses_exponents(operation) || (stream::spreads(operation) && operation.elements != 0);
  return hash_ && exact ? wire::switchml::check_words : 0;
}

void ChunkCodec::encode_plain(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
                              const std::uint8_t* exponents, std::byte* payload, std::span<std::byte> masks) {
  NETSUM_CHECK(offset + elements <= stream::wire_elements(operation));
  if (stream::spreads(operation)) {
    const std::size_t bytes = stream::broadcast_bytes(operation, offset, elements);
    std::memcpy(payload, stream::word_at(operation, offset), bytes);
    std::memset(payload + bytes, 0, std::size_t{elements} * 4 - bytes);
    return;
  }
  if (!stream::uses_exponents(operation)) return encode_unscaled(operation, offset, elements, payload);
  const float* values = floats(operation, offset, elements);
  for_blocks(offset, elements, [&](std::uint32_t block, std::uint32_t begin, std::uint32_t count) {
    const auto format = kernels::fixed_point(exponents[block], world_size_);
    // scan() found whether all are finite: if not, the caller asks for masks.
    if (masks.empty() && !fixed_exponent_) {
      kernels::quantize_finite(payload + std::size_t{begin} * 4, values + begin, count, format);
    } else {
      static_cast<void>(kernels::quantize(payload + std::size_t{begin} * 4, values + begin, count, format));
    }
  });
  if (!masks.empty()) {
    const std::size_t half = masks.size() / 2;  // with a hash behind the values, more bits than values
    std::fill(masks.begin(), masks.end(), std::byte{0});
    kernels::nonfinite_masks(masks.data(), masks.data() + half, values, elements);
  }
}

ChunkCodec::Values ChunkCodec::with_own(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
                                        const std::uint8_t* exponents, Values others, bool nonfinite) {
  const stream::OnWire wire = stream::on_wire(operation);
  const std::size_t bytes = others.payload.size(), values = bytes / bytes_of(wire.dtype);
  const std::size_t mask_bytes = 2 * wire::switchml::mask_bytes(values);
  if (with_own_.size() < bytes + mask_bytes) with_own_.resize(bytes + mask_bytes);
  const std::span<std::byte> payload(with_own_.data(), bytes), masks(payload.data() + bytes, nonfinite ? mask_bytes : 0);
  encode(operation, offset, elements, exponents, payload.data(), masks);
  kernels::combine(wire.op, wire.dtype, payload.data(), others.payload.data(), values);
  if (masks.empty()) return {payload, others.masks};
  if (!others.masks.empty()) kernels::or_bytes(masks.data(), others.masks.data(), masks.size());
  return {payload, masks};
}

void ChunkCodec::examine(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
                         const std::uint8_t* exponents) {
  if (!stream::uses_exponents(operation)) return;
  for_blocks(offset, elements, [&](std::uint32_t block, std::uint32_t begin, std::uint32_t count) {
    if (!sample_.takes(operation.elements)) return;
    const float most = kernels::largest_to_zero(kernels::fixed_point(exponents[block], world_size_));
    sample_.examine({floats(operation, offset + begin, count), count}, most);
  });
}

// A wrong sum is found when it is in the tensor already: the operation fails, and what the tensor then holds says nothing.
bool ChunkCodec::decode(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
                        const std::uint8_t* exponents, const std::byte* payload, std::span<const std::byte> masks) {
  if (elements == 0) return true;
  if (!pads_) {
    decode_plain(operation, offset, elements, exponents, payload, masks);
    return true;
  }
  const std::size_t width = bytes_of(stream::wire_dtype(operation));
  const bool checked = check_words(operation) != 0;
  std::uint64_t hash = 0;
  for_pieces(offset, elements, masks, [&](std::uint32_t begin, std::uint32_t count, std::size_t block) {
    const std::span<const std::byte> sum(payload + begin * width, count * width);
    pads_->unmask(unmasked_.data(), sum, width, pad_place(operation, offset + begin, width));
    if (checked) hash += (*hash_)(unmasked_.data(), begin, count);
    decode_plain(operation, offset + begin, count, exponents + block, unmasked_.data(), masks);
  });
  if (!checked) return true;
  std::array<std::byte, seal::hash_bytes> behind{};
  pads_->unmask(behind.data(), {payload + elements * width, behind.size()}, 4,
                pad_of_hash(pad_place(operation, offset, width)));
  return seal::read_hash(behind.data()) == hash;
}

void ChunkCodec::decode_plain(const stream::Operation& operation, std::uint64_t offset, std::uint32_t elements,
                              const std::uint8_t* exponents, const std::byte* payload, std::span<const std::byte> masks) {
  NETSUM_CHECK(offset + elements <= stream::wire_elements(operation));
  if (stream::spreads(operation)) {
    if (operation.root != rank_) {
      std::memcpy(stream::word_at(operation, offset), payload, stream::broadcast_bytes(operation, offset, elements));
    }
    return;
  }
  if (!stream::uses_exponents(operation)) return decode_unscaled(operation, offset, elements, payload);
  const std::uint32_t divisor = operation.op == ReduceOp::avg ? world_size_ : 1;
  float* values = operation.dtype == DType::float32 ? stream::tensor_at<float>(operation, offset) : scratch_.data();
  for_blocks(offset, elements, [&](std::uint32_t block, std::uint32_t begin, std::uint32_t count) {
    const auto format = kernels::fixed_point(exponents[block], world_size_);
    kernels::dequantize(values + begin, payload + std::size_t{begin} * 4, count, format, divisor);
  });
  if (!masks.empty()) {
    const std::size_t half = masks.size() / 2;
    kernels::apply_nonfinite_masks(values, masks.data(), masks.data() + half, elements);
  }
  if (operation.dtype == DType::float16) {
    kernels::to_float16(stream::tensor_at<std::uint16_t>(operation, offset), values, elements);
  } else if (operation.dtype == DType::bfloat16) {
    kernels::to_bfloat16(stream::tensor_at<std::uint16_t>(operation, offset), values, elements);
  }
}

}  // namespace netsum::switchml
