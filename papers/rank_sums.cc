// Averages of ranks' gradients as netsum makes them, for scripts that train (papers/trainings.py): the product's
// kernels behind one function of C.
#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/kernels.h"

namespace {

using netsum::DType;

enum Way : int { in_order, block_fixed_point, float16, bfloat16, scaled_integers };

constexpr std::size_t packet_elements = 256;  // ATP's unit: what does not fit is summed as floats, a packet at a time
constexpr double atp_scale = 1e8;

std::byte* bytes(float* values) {
  return static_cast<std::byte*>(static_cast<void*>(values));
}

// Whether all of it fits.
bool scaled(float* out, const float* const* ranks, std::size_t world_size, std::size_t begin, std::size_t count) {
  std::array<std::byte, packet_elements * 4> sum{}, packet{};
  for (std::size_t rank = 0; rank < world_size; ++rank) {
    if (!netsum::kernels::quantize_scaled(packet.data(), ranks[rank] + begin, count, atp_scale)) return false;
    if (netsum::kernels::add_int32_checked(sum.data(), packet.data(), count)) return false;
  }
  netsum::kernels::dequantize_scaled(out + begin, sum.data(), count, atp_scale, static_cast<std::uint32_t>(world_size));
  return true;
}

}  // namespace

extern "C" {

// out: `count` averages over the ranks' values. 0, or 1 if there is no such way.
__attribute__((visibility("default"))) int netsum_average(int way, float* out, const float* const* ranks,
                                                          std::size_t world_size, std::size_t count) {
  std::vector<const std::byte*> sources;
  for (std::size_t rank = 0; rank < world_size; ++rank) {
    sources.push_back(static_cast<const std::byte*>(static_cast<const void*>(ranks[rank])));
  }
  const auto divisor = static_cast<std::uint32_t>(world_size);
  switch (way) {
    case in_order:
      netsum::kernels::sum_in_order(DType::float32, bytes(out), sources, count, divisor);
      return 0;
    case block_fixed_point:
      netsum::kernels::sum_all(DType::float32, bytes(out), nullptr, sources, count, divisor);
      return 0;
    case float16:
    case bfloat16:
      netsum::kernels::sum_all(DType::float32, bytes(out), nullptr, sources, count, divisor,
                               way == float16 ? DType::float16 : DType::bfloat16);
      return 0;
    case scaled_integers:
      for (std::size_t begin = 0; begin < count; begin += packet_elements) {
        const std::size_t now = std::min(packet_elements, count - begin);
        if (scaled(out, ranks, world_size, begin, now)) continue;
        std::vector<const std::byte*> here;
        for (const std::byte* source : sources) here.push_back(source + 4 * begin);
        netsum::kernels::sum_gathered(DType::float32, bytes(out + begin), here, now, divisor);
      }
      return 0;
    default:
      return 1;
  }
}
}
