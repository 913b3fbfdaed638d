// Memory of packets, as the place gives it where a lane runs: a kernel's pages, or the simulator's heap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace netsum::service {

// `now`: no packet waits for a page.
enum class Pages : std::uint8_t { when_touched, now };

// Zeroed at first, so that nothing of a former owner remains, and aligned to 64 bytes. The object's end frees it, which may
// take long: not within Lane::run().
class Memory {
 public:
  virtual ~Memory() = default;
  [[nodiscard]] virtual std::span<std::byte> bytes() = 0;
};

}  // namespace netsum::service
