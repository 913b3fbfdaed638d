// The exact result, bit by bit, of reductions that have no bound: integers and booleans, minima and maxima, products, and
// doubles (docs/numerics.md, "Other operations"). In scalar code of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "netsum/types.h"

namespace netsum::sim {

// Whether it is one of these.
[[nodiscard]] bool is_exact(ReduceOp op, DType dtype);

// `inputs`: by rank, as long as `result`.
void reduce_exactly(ReduceOp op, DType dtype, std::span<const std::span<const std::byte>> inputs,
                    std::span<std::byte> result);

// A value as the type's bits, rounded to nearest even.
void put_float(DType dtype, std::byte* out, double value);

}  // namespace netsum::sim
