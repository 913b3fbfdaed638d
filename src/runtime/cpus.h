// On which CPUs threads run.
#pragma once

#include <cstdint>
#include <vector>

namespace netsum::runtime {

// Of a thread, in place of a CPU's number: any of them, or one that no other thread of this host has as its own.
inline constexpr int any_cpu = -1, own_cpu = -2;

// Those that this process may use, in ascending order; empty: unknown.
[[nodiscard]] std::vector<std::uint32_t> allowed_cpus();

// Of a daemon's threads, if they are to be pinned; else none.
[[nodiscard]] inline std::vector<std::uint32_t> cpus_in_order(bool pinned) {
  return pinned ? allowed_cpus() : std::vector<std::uint32_t>();
}

// Pins this thread until it ends. Its own CPU is the first allowed one that is free; if none is, the thread is not pinned.
void pin_thread(int cpu);

}  // namespace netsum::runtime
