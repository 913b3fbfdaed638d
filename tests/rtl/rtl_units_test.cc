// The accelerator's parts in RTL that compute (rtl/): the same bits as C++.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "Vunits.h"
#include "sim/random.h"
#include "support/netreduce_packets.h"
#include "wire/ethernet.h"
#include "wire/roce.h"

namespace netsum::testing {
namespace {

using sim::Random;

// Numbers around each edge: zeros, subnormal ones, powers of two, the largest, infinities, NaNs.
template <class Bits>
Bits drawn(Random& random, unsigned exponent_bits, unsigned mantissa_bits) {
  const Bits sign = static_cast<Bits>(random.below(2)) << (exponent_bits + mantissa_bits);
  const Bits top = (Bits{1} << exponent_bits) - 1, all = (Bits{1} << mantissa_bits) - 1;
  Bits exponent = static_cast<Bits>(random.next()) & top, mantissa = static_cast<Bits>(random.next()) & all;
  switch (random.below(8)) {
    case 0:
      exponent = static_cast<Bits>(random.below(4));
      break;
    case 1:
      exponent = top - static_cast<Bits>(random.below(4));
      break;
    case 2:
    case 3:  // near each other
      exponent = top / 2 + static_cast<Bits>(random.below(mantissa_bits + 6));
      break;
    default:
      break;
  }
  switch (random.below(6)) {
    case 0:
      mantissa = 0;
      break;
    case 1:
      mantissa = all;
      break;
    case 2:
      mantissa = Bits{1} << random.below(mantissa_bits);
      break;
    default:
      break;
  }
  return sign | exponent << mantissa_bits | mantissa;
}

template <class Float>
auto bits_of(Float value) {
  using Bits = std::conditional_t<sizeof(Float) == 4, std::uint32_t, std::uint64_t>;
  return std::bit_cast<Bits>(std::isnan(value) ? std::numeric_limits<Float>::quiet_NaN() : value);
}

TEST(RtlUnits, AddsFloatsAsTheProcessorDoes) {
  Vunits rtl;
  Random random(1);
  for (int i = 0; i < 1'000'000; ++i) {
    rtl.a = drawn<std::uint32_t>(random, 8, 23);
    rtl.b = random.chance(0.1) ? rtl.a ^ 0x80000000U ^ static_cast<std::uint32_t>(random.below(3))
                               : drawn<std::uint32_t>(random, 8, 23);
    rtl.eval();
    ASSERT_EQ(bits_of(std::bit_cast<float>(rtl.a) + std::bit_cast<float>(rtl.b)), rtl.sum)
        << std::hex << rtl.a << " " << rtl.b;
    if (!std::isnan(std::bit_cast<float>(rtl.a))) {
      ASSERT_EQ(bits_of(static_cast<double>(std::bit_cast<float>(rtl.a))), rtl.widened_a) << std::hex << rtl.a;
    }
  }
}

TEST(RtlUnits, AddsAndRoundsDoubles) {
  Vunits rtl;
  Random random(2);
  for (int i = 0; i < 1'000'000; ++i) {
    rtl.wide_a = drawn<std::uint64_t>(random, 11, 52);
    if (random.chance(0.5)) {  // in float32's range, at the halves between two of its numbers, and beside them
      const std::uint64_t exponent = 1023 - 152 + random.below(284);
      rtl.wide_a = (rtl.wide_a & ~(std::uint64_t{0x7ff} << 52)) | exponent << 52;
      const auto lost = static_cast<unsigned>(28 + random.below(26));
      const std::uint64_t half = std::uint64_t{1} << lost;
      if (lost < 52) rtl.wide_a = ((rtl.wide_a & ~(2 * half - 1)) | half) - random.below(2) + random.below(2);
    }
    rtl.wide_b =
        random.chance(0.1) ? rtl.wide_a ^ std::uint64_t{1} << 63 ^ random.below(3) : drawn<std::uint64_t>(random, 11, 52);
    rtl.eval();
    const auto a = std::bit_cast<double>(static_cast<std::uint64_t>(rtl.wide_a)),
               b = std::bit_cast<double>(static_cast<std::uint64_t>(rtl.wide_b));
    ASSERT_EQ(bits_of(a + b), rtl.wide_sum) << std::hex << rtl.wide_a << " " << rtl.wide_b;
    ASSERT_EQ(bits_of(static_cast<float>(a)), rtl.narrow_a) << std::hex << rtl.wide_a;
  }
}

TEST(RtlUnits, ComputesTheIcrcOfEveryLength) {
  Vunits rtl;
  Random random(3);
  for (std::size_t payload = 0; payload <= 1024; payload += random.chance(0.5) ? 4 : 64) {
    Crafted made;
    made.packet.ip.v6 = random.chance(0.5);
    for (auto& byte : made.packet.ip.source) byte = static_cast<std::uint8_t>(random.next());
    made.packet.ip.traffic_class = static_cast<std::uint8_t>(random.next());
    made.packet.ip.flow_label = made.packet.ip.v6 ? static_cast<std::uint32_t>(random.below(1U << 20)) : 0;
    made.packet.udp_checksum = static_cast<std::uint16_t>(random.below(2));
    made.packet.bth.opcode = wire::roce::Opcode::rc_write_middle;
    made.packet.bth.destination_qp = 0x1234;
    made.packet.bth.fecn = random.chance(0.5);
    for (std::size_t i = 0; i < payload; ++i) made.payload.push_back(static_cast<std::byte>(random.next()));
    rtl.tags = static_cast<std::uint8_t>(random.below(3));
    const std::size_t ip_at = wire::ethernet::header_bytes + wire::ethernet::tag_bytes * rtl.tags;
    Bytes frame = made.frame(ip_at);
    const std::size_t whole = frame.size();
    frame.resize(whole + random.below(200), std::byte{0x5a});  // what is behind does not matter
    rtl.v6 = made.packet.ip.v6;
    for (const std::size_t covered : {whole - 4, whole}) {
      rtl.covered = static_cast<std::uint16_t>(covered);
      frame.resize((frame.size() + 63) / 64 * 64);
      for (std::size_t beat = 0; beat < frame.size() / 64; ++beat) {
        std::memcpy(rtl.data.data(), frame.data() + 64 * beat, 64);
        rtl.beat = static_cast<std::uint8_t>(beat);
        rtl.enable = 1;
        rtl.clock = 0;
        rtl.eval();
        rtl.clock = 1;
        rtl.eval();
      }
      const std::uint32_t expected =
          covered == whole ? 0xdebb20e3 : ~wire::roce::icrc_of(std::span(frame).subspan(ip_at, whole - ip_at));
      ASSERT_EQ(expected, rtl.crc) << payload << " bytes, " << int{rtl.tags} << " tags, v6 " << int{rtl.v6};
    }
  }
}

}  // namespace
}  // namespace netsum::testing
