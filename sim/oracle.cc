#include "sim/oracle.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "sim/exact.h"
#include "sim/random.h"

namespace netsum::sim {
namespace {

using stream::Collective;
using stream::Operation;

constexpr std::size_t block = 256;  // elements that share an exponent
constexpr float infinity = std::numeric_limits<float>::infinity();

float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

float from_float16(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 31) return fraction != 0 ? std::numeric_limits<float>::quiet_NaN() : sign * infinity;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}

struct Format {
  double half_ulp, smallest_step, largest;  // half_ulp: relative
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::float16:
      return {0x1p-11, 0x1p-24, 65504};
    case DType::bfloat16:
      return {0x1p-8, 0x1p-133, static_cast<double>(from_bfloat16(0x7f7f))};
    default:
      return {0x1p-24, 0x1p-149, static_cast<double>(std::numeric_limits<float>::max())};
  }
}

std::vector<float> widened(DType dtype, std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / bytes_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::float32) {
      std::memcpy(&values[i], bytes.data() + i * 4, 4);
      continue;
    }
    std::uint16_t half = 0;
    std::memcpy(&half, bytes.data() + i * 2, 2);
    values[i] = dtype == DType::float16 ? from_float16(half) : from_bfloat16(half);
  }
  return values;
}

void fill_floats(Random& random, std::span<float> values) {
  constexpr float specials[] = {0.0F,
                                -0.0F,
                                infinity,
                                -infinity,
                                std::numeric_limits<float>::quiet_NaN(),
                                1e-45F,
                                -1e-40F,
                                std::numeric_limits<float>::max(),
                                -std::numeric_limits<float>::max(),
                                std::numeric_limits<float>::min()};
  for (std::size_t begin = 0; begin < values.size(); begin += block) {
    const std::uint64_t style = random.below(12);
    const int exponent = static_cast<int>(random.below(250)) - 140;
    for (float& value : values.subspan(begin, std::min(block, values.size() - begin))) {
      const std::uint64_t bits = random.next();
      const auto fraction = static_cast<float>(static_cast<std::int32_t>(bits)) * 0x1p-31F;
      if (style < 6) {
        value = fraction;
      } else if (style < 8) {
        value = std::ldexp(fraction, exponent);
      } else if (style == 8) {
        value = std::ldexp(1.0F, exponent);  // every rank exactly 2^m
      } else if (style == 9) {
        value = 0.0F;
      } else if (style == 10) {
        value = std::bit_cast<float>(static_cast<std::uint32_t>(bits >> 32));
      } else {
        value = bits >> 32 & 7 ? fraction : random.pick(specials);
      }
    }
  }
}

// The format of a float in packets: float32 stands for block fixed point.
DType wire_of(const Operation& call) {
  const bool narrow = bytes_of(call.dtype) == 2;
  if (call.wire == WireFormat::float32) return DType::float32;
  if (narrow) return call.dtype;
  if (call.wire == WireFormat::float16) return DType::float16;
  return call.wire == WireFormat::bfloat16 ? DType::bfloat16 : DType::float32;
}

// The nearest value of a format, ties to even; infinity beyond the largest.
double nearest(DType dtype, double value) {
  if (!std::isfinite(value) || value == 0) return value;
  const int bits = dtype == DType::float16 ? 10 : 7, least = dtype == DType::float16 ? -14 : -126;
  const int unit = std::max(std::ilogb(value), least) - bits;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
  return std::fabs(rounded) > format_of(dtype).largest ? std::copysign(HUGE_VAL, value) : rounded;
}

// As a rank sends it: a finite value stays finite.
double travels(DType wire, double value) {
  const double largest = format_of(wire).largest;
  return std::isfinite(value) ? std::clamp(nearest(wire, value), -largest, largest) : value;
}

std::string complaint(std::size_t element, const char* what, double got, double expected) {
  return "element " + std::to_string(element) + ": " + what + " (got " + std::to_string(got) + ", the sum is " +
         std::to_string(expected) + ")";
}

std::string judge_exact(const Operation& call, const std::vector<std::vector<std::byte>>& inputs,
                        std::span<const std::byte> result) {
  std::vector<std::byte> expected(result.size());
  const std::vector<std::span<const std::byte>> views(inputs.begin(), inputs.end());
  reduce_exactly(call.op, call.dtype, views, expected);
  const auto wrong = std::mismatch(result.begin(), result.end(), expected.begin()).first;
  if (wrong == result.end()) return "";
  return "element " + std::to_string(static_cast<std::size_t>(wrong - result.begin()) / bytes_of(call.dtype)) + ": wrong";
}

// The elements whose largest value decides the step that values are rounded to: [begin, end).
std::size_t end_of_group(const JobPlan& job, std::size_t begin, std::size_t elements) {
  constexpr std::size_t scaled_block = 8192;  // of ATP
  return std::min(elements, begin + (job.rescaled ? scaled_block : block));
}

std::string judge_floats(const JobPlan& job, DType dtype, const std::vector<std::vector<std::byte>>& inputs,
                         std::span<const std::byte> result, bool avg) {
  const Format format = format_of(dtype);
  const auto ranks = static_cast<double>(inputs.size());
  const double divisor = avg ? ranks : 1;
  const int ranks_log = static_cast<int>(std::ceil(std::log2(ranks)));
  // Below a tree's root each switch rounds its sum to the tensor's type; the sums of one level together are bounded by the
  // total.
  constexpr int levels = 2;  // the most in scenarios
  const bool tree = job.numbers == Numbers::in_order && !job.switch_of_rank.empty();
  std::vector<std::vector<float>> values;
  for (const auto& input : inputs) values.push_back(widened(dtype, input));
  const std::vector<float> results = widened(dtype, result);
  for (std::size_t begin = 0, end = 0; begin < results.size(); begin = end) {
    end = end_of_group(job, begin, results.size());
    int exponent = -126;
    for (const auto& input : values) {
      for (std::size_t i = begin; i < end; ++i) {
        if (std::isfinite(input[i]) && std::fabs(input[i]) >= std::numeric_limits<float>::min()) {
          exponent = std::max(exponent, std::ilogb(input[i]) + 1);
        }
      }
    }
    // Every rank's value is rounded to a step of the block's fixed point, or of 10^-8, or, if larger, of the scale that the
    // block's largest value allows; from 128 ranks on one bit more.
    double step = std::ldexp(1.0, exponent - (31 - ranks_log));
    if (job.numbers == Numbers::in_order) step = 0;
    if (job.numbers == Numbers::scaled) step = job.rescaled ? std::max(1e-8, ranks > 128 ? 2 * step : step) : 1e-8;
    const double quantization = ranks * step / 2;
    const bool lost = job.chip && std::any_of(values.begin(), values.end(), [&](const std::vector<float>& input) {
                        return std::any_of(input.begin() + static_cast<std::ptrdiff_t>(begin),
                                           input.begin() + static_cast<std::ptrdiff_t>(end),
                                           [](float value) { return !std::isfinite(value); });
                      });
    for (std::size_t i = begin; i < end; ++i) {
      double sum = 0, magnitude = 0;
      bool nan = false, up = false, down = false;
      for (const auto& input : values) {
        nan |= std::isnan(input[i]);
        up |= input[i] == infinity;
        down |= input[i] == -infinity;
        if (std::isfinite(input[i])) {
          sum += static_cast<double>(input[i]);
          magnitude += std::fabs(static_cast<double>(input[i]));
        }
      }
      // Added in float32, one after the other: each addition rounds a value no larger than the sum of all magnitudes.
      const double additions = job.numbers == Numbers::in_order ? (ranks - 1) * 0x1p-24 * (1 + 0x1p-10) * magnitude : 0;
      const double rounded = tree ? levels * format.half_ulp * 1.01 * magnitude + ranks * format.smallest_step : 0;
      const double before = quantization + additions + rounded;
      const auto got = static_cast<double>(results[i]);
      const double expected = sum / divisor;
      // Rounded to float32 (before and after a division), then to the tensor's type.
      const double bound = before / divisor + (std::fabs(expected) + before) * (0x1p-23 + format.half_ulp * 1.01) +
                           0x1p-149 + format.smallest_step;
      // A rack's sum may leave the range where the sum of all would not.
      if (tree && magnitude + before >= format.largest && (std::isinf(got) || std::isnan(got))) continue;
      if (nan || (up && down) || lost) {
        if (!std::isnan(got)) return complaint(i, "no NaN", got, expected);
      } else if (up || down) {
        if (!std::isinf(got) || (got > 0) != up) return complaint(i, "not the infinity", got, expected);
      } else if (std::isnan(got)) {
        return complaint(i, "NaN", got, expected);
      } else if (std::isinf(got)) {
        if (std::fabs(expected) + bound < format.largest) return complaint(i, "infinity", got, expected);
      } else if (std::fabs(got - expected) > bound) {
        return complaint(i, "outside the bound", got, expected);
      }
    }
  }
  return "";
}

// 16 bits on the wire: compared bit by bit. float16 is added exactly; bfloat16 in float32, in rank order, and in double if
// that overflows.
std::string judge_narrow(const Operation& call, const std::vector<std::vector<std::byte>>& inputs,
                         std::span<const std::byte> result, bool avg) {
  const DType wire = wire_of(call);
  std::vector<std::vector<float>> values;
  for (const auto& input : inputs) values.push_back(widened(call.dtype, input));
  const std::vector<float> results = widened(call.dtype, result);
  const auto divisor = static_cast<float>(avg ? inputs.size() : 1);
  for (std::size_t i = 0; i < results.size(); ++i) {
    float sum = -0.0F;
    double wide = -0.0;
    for (const auto& input : values) {
      const double value = travels(wire, static_cast<double>(input[i]));
      sum += static_cast<float>(value);
      wide += value;
    }
    double expected = wide / static_cast<double>(divisor);
    if (wire == DType::bfloat16) {
      expected = static_cast<double>(std::isfinite(sum) ? sum / divisor : static_cast<float>(expected));
    }
    expected = nearest(wire, expected);
    const auto got = static_cast<double>(results[i]);
    if (std::isnan(expected) ? !std::isnan(got) : got != expected) return complaint(i, "not the sum", got, expected);
  }
  return "";
}

}  // namespace

std::size_t tensor_bytes(const Operation& call) {
  return call.elements * (stream::spreads(call) ? 1 : bytes_of(call.dtype));
}

std::vector<std::byte> tensor_of(const JobPlan& job, const Operation& call, std::uint32_t rank, std::uint32_t process) {
  Random random(derive(derive(job.seed, call.number), rank));
  if (job.recovers && process != 0) random = Random(derive(random.next(), process));
  std::vector<std::byte> bytes(tensor_bytes(call));
  if (stream::reduces(call) && call.dtype == DType::float32) {
    std::vector<float> values(call.elements);
    fill_floats(random, values);
    if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  if (stream::reduces(call) && (call.dtype == DType::float16 || call.dtype == DType::bfloat16)) {
    // Most blocks have moderate values: with random bits, almost every block would have an infinity or NaN.
    const bool anything = random.chance(0.2);
    for (std::size_t i = 0; i < call.elements; ++i) {
      auto half = static_cast<std::uint16_t>(random.next());
      if (!anything) half = static_cast<std::uint16_t>((half & 0x87ff) | (call.dtype == DType::float16 ? 0x3000 : 0x3f00));
      std::memcpy(bytes.data() + i * 2, &half, 2);
    }
    return bytes;
  }
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    const std::uint64_t bits = random.next();
    std::memcpy(bytes.data() + i, &bits, std::min<std::size_t>(8, bytes.size() - i));
  }
  return bytes;
}

bool same_everywhere(const Operation& call) {
  return call.collective != Collective::reduce && call.collective != Collective::reduce_scatter;
}

std::string judge(const JobPlan& job, const Operation& call, std::span<const std::byte> result,
                  std::span<const std::uint32_t> processes, std::uint32_t rank) {
  const auto input = [&](std::uint32_t of) { return tensor_of(job, call, of, processes.empty() ? 0 : processes[of]); };
  if (call.collective == Collective::barrier || call.elements == 0) return "";
  const auto is_input = [&](std::uint32_t of, std::size_t begin, std::size_t bytes) {
    const auto bytes_of_rank = input(of);
    const auto from = bytes_of_rank.begin() + static_cast<std::ptrdiff_t>(begin);
    return std::equal(from, from + static_cast<std::ptrdiff_t>(bytes), result.begin() + static_cast<std::ptrdiff_t>(begin));
  };
  if (call.collective == Collective::broadcast) {
    return is_input(call.root, 0, result.size()) ? "" : "not the root's bytes";
  }
  const std::size_t part = result.size() / call.parts;
  if (call.collective == Collective::all_gather) {
    for (std::uint32_t of = 0; of < job.workers; ++of) {
      if (!is_input(of, of * part, part)) return "part " + std::to_string(of) + " is not that rank's";
    }
    return "";
  }
  if (call.collective == Collective::reduce && call.root != rank) {
    return is_input(rank, 0, result.size()) ? "" : "changed, at a rank that gets no result";
  }
  std::vector<std::vector<std::byte>> inputs;
  for (std::uint32_t of = 0; of < job.workers; ++of) inputs.push_back(input(of));
  if (call.collective == Collective::reduce_scatter) {
    for (auto& each : inputs) {
      const auto from = each.begin() + static_cast<std::ptrdiff_t>(rank * part);
      each = std::vector<std::byte>(from, from + static_cast<std::ptrdiff_t>(part));
    }
    result = result.subspan(rank * part, part);
  }
  const bool avg = call.op == ReduceOp::avg;
  if (is_exact(call.op, call.dtype)) return judge_exact(call, inputs, result);
  if (job.numbers == Numbers::block_fixed_point && wire_of(call) != DType::float32) {
    return judge_narrow(call, inputs, result, avg);
  }
  return judge_floats(job, call.dtype, inputs, result, avg);
}

}  // namespace netsum::sim
