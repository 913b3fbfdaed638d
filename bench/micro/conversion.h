// The least that quantizing costs, to measure kernels beside.
#pragma once

#include <cstddef>
#include <cstdint>

namespace netsum {

// integers[i] = values[i] * scale, rounded to nearest: no exponent is looked for, nothing clamped, nothing checked. With the
// widest instruction set of this CPU.
void convert_to_integers(std::int32_t* integers, const float* values, std::size_t count, float scale);

}  // namespace netsum
