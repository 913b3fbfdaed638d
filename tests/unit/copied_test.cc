// Where memory begins that is copied.
#include "unit/copied_ends.h"

namespace netsum {
namespace {

TEST(Copied, IsSlowCloselyBehindItsSource) {
  constexpr std::uintptr_t source = 7 * copied_page + 100;
  for (std::uintptr_t pages = 0; pages <= 8; ++pages) {
    const std::uintptr_t same = pages * copied_page + 100;
    EXPECT_FALSE(copies_slowly(same, source));
    EXPECT_TRUE(copies_slowly(same + 1, source));
    EXPECT_TRUE(copies_slowly(same + 31, source));
    EXPECT_FALSE(copies_slowly(same + 32, source));
    EXPECT_FALSE(copies_slowly(same - 1, source));
  }
}

TEST(Copied, LiesWellWithAllThatFollowsAtWholeLines) {
  for (const Copied way : {Copied::from, Copied::into}) {
    const CopiedMemory memory(way, 3 * copied_page);
    for (std::size_t at = 0; at < memory.size(); at += cache_line) expect_lies_well(way, memory.data() + at);
  }
}

// A caller's tensor is copied in and out again.
TEST(Copied, LiesWellBesideTensorsOfCallers) {
  for (const Copied way : {Copied::from, Copied::into}) {
    const CopiedMemory memory(way, copied_page);
    const auto ours = reinterpret_cast<std::uintptr_t>(memory.data());
    for (const std::uintptr_t tensor : {0U, 16U, 64U}) {
      EXPECT_FALSE(copies_slowly(ours, tensor)) << tensor;
      EXPECT_FALSE(copies_slowly(tensor, ours)) << tensor;
    }
  }
}

TEST(Copied, StaysWhereItIsWhenItIsMoved) {
  CopiedMemory memory(Copied::into, 100);
  std::byte* const place = memory.data();
  const CopiedMemory moved = std::move(memory);
  EXPECT_EQ(moved.data(), place);
  EXPECT_EQ(moved.size(), 100U);
  EXPECT_EQ(moved.first(7).size(), 7U);
  EXPECT_EQ(CopiedMemory().data(), nullptr);
}

}  // namespace
}  // namespace netsum
