#include "sim/tensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "oracle/judge.h"
#include "sim/random.h"

namespace netsum::sim {
namespace {

using stream::Collective;
using stream::Operation;

constexpr std::size_t block = 256;  // elements that share an exponent
constexpr float infinity = std::numeric_limits<float>::infinity();

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

// How a job adds a call's floats.
Numbers numbers_of(const JobPlan& job, const Operation& call) {
  if (job.numbers == Numbers::in_order && !job.switch_of_rank.empty()) return Numbers::in_racks;
  if (job.numbers != Numbers::block_fixed_point || job.chip || call.fixed_point) return job.numbers;
  if (call.dtype != DType::float32 && call.wire == WireFormat::float32) return Numbers::block_fixed_point;
  constexpr std::uint64_t few = 16;  // of a part: they travel as they are
  if (rounds_blocks(call.wire) && call.dtype != DType::float16 && call.elements / call.parts > few)
    return call.wire == WireFormat::int4 ? Numbers::as_block4 : Numbers::as_block8;
  if (call.dtype == DType::float16) return Numbers::as_float16;
  if (call.dtype == DType::bfloat16) return Numbers::as_bfloat16;
  if (call.wire == WireFormat::float16) return Numbers::as_float16;
  if (call.wire == WireFormat::bfloat16) return Numbers::as_bfloat16;
  return call.elements / call.parts <= few ? Numbers::in_double : Numbers::block_fixed_point;
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
  const auto is_absent = [&](std::uint32_t of) { return !processes.empty() && processes[of] == absent; };
  if (call.collective == Collective::broadcast) {
    std::uint32_t root = call.root;
    while (is_absent(root)) root = (root + 1) % job.workers;
    return is_input(root, 0, result.size()) ? "" : "not the root's bytes";
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
  bool in_tree = false;
  for (std::uint32_t of = 0; of < job.workers; ++of) {
    if (is_absent(of)) continue;
    inputs.push_back(input(of));
    in_tree |= !job.switch_of_rank.empty() && job.switch_of_rank[of] != UINT32_MAX;
  }
  if (call.collective == Collective::reduce_scatter) {
    for (auto& each : inputs) {
      const auto from = each.begin() + static_cast<std::ptrdiff_t>(rank * part);
      each = std::vector<std::byte>(from, from + static_cast<std::ptrdiff_t>(part));
    }
    result = result.subspan(rank * part, part);
  }
  const auto judged = [&](bool tree) {
    return oracle::judge({.op = call.op,
                          .dtype = call.dtype,
                          .numbers = numbers_of(job, call),
                          .ranks = static_cast<std::uint32_t>(inputs.size()),
                          .loses_blocks = job.chip,
                          .block_elements = job.block_elements,
                          .in_tree = tree,
                          .saturates = job.saturating},
                         inputs, result);
  };
  std::string wrong = judged(in_tree);
  // All ranks may have gone around their switches: then there is no tree.
  return !wrong.empty() && in_tree && job.recovers ? judged(false) : wrong;
}

}  // namespace netsum::sim
