// The rule of base/copied.h, against the other ends of copies that it names.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "base/copied.h"

namespace netsum {

// Of what the kernel copies: bytes behind some cache line.
inline constexpr std::uintptr_t kernel_ends[] = {0, 42, 44, 62, 64};

// That the kernel copies fast into the place, or out of it, wherever in a page its own end is.
inline void expect_lies_well(Copied way, const std::byte* place) {
  const auto ours = reinterpret_cast<std::uintptr_t>(place);
  for (std::uintptr_t line = 0; line < copied_page; line += cache_line) {
    for (const std::uintptr_t end : kernel_ends) {
      const bool slow = way == Copied::into ? copies_slowly(ours, line + end) : copies_slowly(line + end, ours);
      EXPECT_FALSE(slow) << ours % copied_page << " against " << line + end;
    }
  }
}

}  // namespace netsum
