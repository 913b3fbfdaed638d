// On which CPUs threads run.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace netsum::runtime {

// Of a thread, in place of a CPU's number: any of them, or one that no other thread of this host has as its own.
inline constexpr int any_cpu = -1, own_cpu = -2;
// The latter, and of this NUMA node if one there is free (transport/system/numa.h).
[[nodiscard]] constexpr int own_cpu_near(std::optional<std::uint32_t> node) {
  return node ? own_cpu - 1 - static_cast<int>(*node) : own_cpu;
}

// Those that this process may use, in ascending order; empty: unknown.
[[nodiscard]] std::vector<std::uint32_t> allowed_cpus();

// Pins this thread until it ends. Its own CPU is the first allowed one that is free, those of its node before others; if
// none is, the thread is not pinned.
void pin_thread(int cpu);

}  // namespace netsum::runtime
