// The bytes of the chip profile's packets, and which are none: docs/protocol-switchml-chip.md. In C, as the program in the
// kernel (dataplane/xdp) reads the same ones; wire/switchml_chip.h has them for C++.
//
// The fields are in network order, but for the job epoch.
#pragma once

#include "base/c_integers.h"

struct ChipHeader {
  uint8_t format, type, member, version;
  uint16_t slot, rank;
  uint64_t job_epoch;
  uint32_t round;
  uint16_t exponents[2];
  uint64_t operation;
  uint32_t chunk, signature, ahead_chunk;
  uint16_t ahead_operation, kind;
};

enum ChipPacket {
  chip_format = 0xc1,
  chip_contribution = 1,
  chip_result = 2,
  chip_max_members = 31,  // a bitmap's bits, of which the last means "accepted" (chip_rule.h)
  chip_not_finite = 255,
  chip_unknown_exponent = 256,  // the largest that there is
  chip_header_bytes = 48,
  chip_few_elements = 64,  // §5: in one pipeline, and in four
  chip_many_elements = 256,
};
static const uint32_t chip_max_round = (1U << 31) - 2;

// Why bytes are no such packet: wire::ParseError's numbers.
enum ChipFault {
  chip_no_fault = 0,
  chip_truncated = 1,
  chip_other_format = 2,
  chip_no_type = 3,
  chip_no_length = 4,
  chip_no_value = 6,
  chip_faults = 7,
};

// Little-endian hosts alone, as base/bytes.h says.
static inline uint16_t chip_host16(uint16_t network) {
  return __builtin_bswap16(network);
}
static inline uint32_t chip_host32(uint32_t network) {
  return __builtin_bswap32(network);
}
static inline uint64_t chip_host64(uint64_t network) {
  return __builtin_bswap64(network);
}

static inline uint32_t chip_packet_bytes(uint32_t elements) {
  return chip_header_bytes + elements * 4;
}

// `bytes`: of the packet, at least chip_header_bytes.
static inline enum ChipFault chip_fault(const struct ChipHeader* header, uint32_t bytes) {
  if (header->format != chip_format) return chip_other_format;
  if (header->type != chip_contribution && header->type != chip_result) return chip_no_type;
  if (bytes != chip_packet_bytes(chip_few_elements) && bytes != chip_packet_bytes(chip_many_elements)) return chip_no_length;
  if (chip_host16(header->exponents[0]) > chip_unknown_exponent) return chip_no_value;
  if (chip_host16(header->exponents[1]) > chip_unknown_exponent) return chip_no_value;
  if (header->member >= chip_max_members || header->version > 1) return chip_no_value;
  return chip_host32(header->round) > chip_max_round ? chip_no_value : chip_no_fault;
}
