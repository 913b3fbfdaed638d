// The exact result, bit by bit, of reductions that have no bound: integers and booleans, minima and maxima, products, and
// doubles (docs/numerics.md, "Other operations"). In scalar code of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "netsum/types.h"

namespace netsum::oracle {

// Whether it is one of these.
[[nodiscard]] bool is_exact(ReduceOp op, DType dtype);

// `inputs`: by rank, as long as `result`.
void reduce_exactly(ReduceOp op, DType dtype, std::span<const std::span<const std::byte>> inputs,
                    std::span<std::byte> result);

// A float of any type.
[[nodiscard]] double value_at(DType dtype, const std::byte* from);
// A value as the type's bits, rounded to nearest even, by way of float32 if it is shorter; all NaN are one.
void put_float(DType dtype, std::byte* out, double value);

}  // namespace netsum::oracle
