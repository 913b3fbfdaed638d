#include "oracle/judge.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>

#include "oracle/exact.h"
#include "oracle/narrow.h"

namespace netsum::oracle {
namespace {

using Inputs = std::span<const std::vector<std::byte>>;
using Column = std::span<const double>;  // an element's inputs, by rank

constexpr std::size_t scaled_block = 8192;  // elements that share a scale of ATP's

std::string complaint(std::size_t element, const char* what, double got, double expected) {
  return "element " + std::to_string(element) + ": " + what + " (got " + std::to_string(got) + ", the sum is " +
         std::to_string(expected) + ")";
}

std::string judge_exact(const Reduction& reduction, Inputs inputs, std::span<const std::byte> result) {
  std::vector<std::byte> expected(result.size());
  const std::vector<std::span<const std::byte>> views(inputs.begin(), inputs.end());
  reduce_exactly(reduction.op, reduction.dtype, views, expected);
  const auto wrong = std::mismatch(result.begin(), result.end(), expected.begin()).first;
  if (wrong == result.end()) return "";
  const std::size_t element = static_cast<std::size_t>(wrong - result.begin()) / bytes_of(reduction.dtype);
  return "element " + std::to_string(element) + ": wrong";
}

// float32 results are the 16-bit ones widened.
std::string judge_narrow(const Reduction& reduction, Inputs inputs, std::span<const std::byte> result) {
  const DType wire = reduction.numbers == Numbers::as_float16 ? DType::float16 : DType::bfloat16;
  const bool wide = reduction.dtype == DType::float32;
  const std::size_t width = bytes_of(reduction.dtype);
  std::vector<std::uint16_t> column(inputs.size());
  for (std::size_t at = 0; at < result.size(); at += width) {
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
      if (wide) {
        column[rank] = narrow_on_wire(wire, value_at(reduction.dtype, inputs[rank].data() + at));
      } else {
        std::memcpy(&column[rank], inputs[rank].data() + at, width);
      }
    }
    const auto add = reduction.in_tree ? narrow_sum_exactly : narrow_sum;
    const std::uint16_t sum = add(wire, column, reduction.divisor());
    const double expected = narrow_value(wire, sum), got = value_at(reduction.dtype, result.data() + at);
    const bool same = !wide                  ? std::memcmp(&sum, result.data() + at, width) == 0
                      : std::isnan(expected) ? std::isnan(got)
                                             : got == expected;
    if (!same) return complaint(at / width, "not the sum", got, expected);
  }
  return "";
}

double sum_of(Column column) {
  double sum = -0.0;
  for (const double value : column) sum += value;
  return sum;
}

// The sum before it is rounded to the tensor's type; none: it depends on more than the inputs.
std::optional<double> formula(const Reduction& reduction, double scale, Column column) {
  const double divisor = reduction.divisor();
  const bool fixed = reduction.numbers == Numbers::block_fixed_point;
  if (reduction.saturates || reduction.added_before != 1) return std::nullopt;
  if (reduction.numbers == Numbers::in_racks || reduction.numbers == Numbers::in_any_order || in_blocks(reduction.numbers))
    return std::nullopt;
  if (reduction.numbers == Numbers::in_order) {
    float sum = -0.0F;
    for (const double value : column) sum += static_cast<float>(value);
    return std::isfinite(sum) ? static_cast<double>(sum / static_cast<float>(divisor)) : sum_of(column) / divisor;
  }
  if (reduction.numbers == Numbers::in_double) return sum_of(column) / divisor;
  const double limit = std::floor((0x1p31 - 1) / static_cast<double>(column.size()));
  double integers = 0;
  bool fits = true;
  for (const double value : column) {
    double integer = std::nearbyint(value * scale);
    if (fixed) integer = std::clamp(integer, -limit, limit);
    fits &= integer >= -0x1p31 && integer < 0x1p31;
    integers += integer;
  }
  fits &= integers >= -0x1p31 && integers < 0x1p31;
  return fits ? (integers + 0.0) / (scale * divisor) : sum_of(column) / divisor;
}

double largest_of(DType dtype) {
  if (dtype == DType::float32) return static_cast<double>(std::numeric_limits<float>::max());
  return dtype == DType::float16 ? 65504 : static_cast<double>(from_bfloat16(0x7f7f));
}

struct Element {
  double sum = 0, magnitude = 0;  // of the finite values
  bool nan = false, up = false, down = false;
};

Element element_of(Column column) {
  Element element;
  for (const double value : column) {
    element.nan |= std::isnan(value);
    element.up |= value == HUGE_VAL;
    element.down |= value == -HUGE_VAL;
    if (!std::isfinite(value)) continue;
    element.sum += value;
    element.magnitude += std::fabs(value);
  }
  element.nan |= element.up && element.down;
  return element;
}

// Empty, or what is wrong.
const char* outside(const Reduction& reduction, const Element& element, const Bound& bound, double got) {
  const double expected = element.sum / reduction.divisor(), largest = largest_of(reduction.dtype);
  const double may_differ = bound(expected, element.magnitude);
  // A rack's sum may leave the range where the sum of all would not.
  const double before = element.magnitude * (1 + bound.of_inputs * reduction.divisor());
  if (reduction.numbers == Numbers::in_racks && before >= largest && !std::isfinite(got)) return "";
  // In blocks there is one word for what is not finite, a sum that leaves float32 too.
  const bool one_word = in_blocks(reduction.numbers);
  if (one_word && std::isnan(got) && std::fabs(element.sum) + may_differ * reduction.divisor() >= largest) return "";
  if (element.nan || (one_word && (element.up || element.down))) return std::isnan(got) ? "" : "no NaN";
  if (element.up || element.down) return std::isinf(got) && (got > 0) == element.up ? "" : "not the infinity";
  if (std::isnan(got)) return "NaN";
  if (std::isinf(got)) return std::fabs(expected) + may_differ < largest ? "infinity" : "";
  return std::fabs(got - expected) > may_differ ? "outside the bound" : "";
}

std::string judge_floats(const Reduction& reduction, Inputs inputs, std::span<const std::byte> result) {
  const DType dtype = reduction.dtype;
  const std::size_t width = bytes_of(dtype), elements = result.size() / width, ranks = inputs.size();
  const std::size_t group = reduction.numbers == Numbers::rescaled ? scaled_block : reduction.block_elements;
  std::vector<double> values(std::min(elements, group) * ranks);  // by element, then by rank
  for (std::size_t begin = 0; begin < elements; begin += group) {
    const std::size_t count = std::min(elements - begin, group);
    int exponent = -126;
    bool lost = false;
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const double value = values[i * ranks + rank] = value_at(dtype, inputs[rank].data() + (begin + i) * width);
        lost |= !std::isfinite(value);
        if (std::isfinite(value) && std::fabs(value) >= 0x1p-126) exponent = std::max(exponent, std::ilogb(value) + 1);
      }
    }
    lost &= reduction.loses_blocks;
    const Bound bound = bound_of(reduction, exponent);
    const double scale = scale_of(reduction, exponent);
    for (std::size_t i = 0; i < count; ++i) {
      const Column column = std::span(values).subspan(i * ranks, ranks);
      Element element = element_of(column);
      element.nan |= lost;
      const std::byte* const at = result.data() + (begin + i) * width;
      const double got = value_at(dtype, at);
      const char* wrong = outside(reduction, element, bound, got);
      // In fixed point what is not finite is no part of the sum.
      const bool apart = reduction.numbers == Numbers::block_fixed_point && (element.nan || element.up || element.down);
      const std::optional<double> expected = apart ? got : formula(reduction, scale, column);
      // One NaN, but where floats are added as a processor does.
      const bool any_nan = reduction.numbers == Numbers::in_order && std::isnan(got);
      if (*wrong == 0 && expected && !(any_nan && std::isnan(*expected))) {
        std::byte bits[4];
        put_float(dtype, bits, *expected);
        if (std::memcmp(bits, at, width) != 0) wrong = "not the bits of the formula";
      }
      if (*wrong != 0) return complaint(begin + i, wrong, got, element.sum / reduction.divisor());
    }
  }
  return "";
}

}  // namespace

std::string judge(const Reduction& reduction, Inputs inputs, std::span<const std::byte> result) {
  if (is_exact(reduction.op, reduction.dtype)) return judge_exact(reduction, inputs, result);
  const bool narrow = reduction.numbers == Numbers::as_float16 || reduction.numbers == Numbers::as_bfloat16;
  return narrow ? judge_narrow(reduction, inputs, result) : judge_floats(reduction, inputs, result);
}

}  // namespace netsum::oracle
