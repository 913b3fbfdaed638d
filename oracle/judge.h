// Whether a reduction's result is right: to the bit, and within the bound of docs/numerics.md. One element at a time,
// without the code under test.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "oracle/reduction.h"

namespace netsum::oracle {

// Empty if `result` is right, else which element is not. `inputs`: by rank, each as long as `result`. Bits are not known of
// saturating sums, of racks' sums, of what is added in any order or before it travels: these have the bound alone.
[[nodiscard]] std::string judge(const Reduction& reduction, std::span<const std::vector<std::byte>> inputs,
                                std::span<const std::byte> result);

}  // namespace netsum::oracle
