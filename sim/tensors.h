// The tensors of a simulated call: what each rank gives, and whether it has in the end what it must have (oracle/judge.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/scenario.h"

namespace netsum::sim {

// The bytes of a call's tensor.
[[nodiscard]] std::size_t tensor_bytes(const stream::Operation& call);

// A rank's input: blocks of different magnitudes, and now and then NaN, infinities, zeros, subnormals and powers of two.
// Differs between jobs, operations and ranks; in a job that recovers also between processes of a rank: a new process
// computes another gradient.
[[nodiscard]] std::vector<std::byte> tensor_of(const JobPlan& job, const stream::Operation& call, std::uint32_t rank,
                                               std::uint32_t process = 0);

// Whether all ranks have the same bytes in the end.
[[nodiscard]] bool same_everywhere(const stream::Operation& call);

inline constexpr std::uint32_t absent = UINT32_MAX;  // in place of a process
// Empty if `result`, the tensor of `rank`, is correct, else a description of the error. `processes`: by rank; empty: the
// first of each rank. The values of a rank whose process is `absent` are not in it.
[[nodiscard]] std::string judge(const JobPlan& job, const stream::Operation& call, std::span<const std::byte> result,
                                std::span<const std::uint32_t> processes = {}, std::uint32_t rank = 0);

}  // namespace netsum::sim
