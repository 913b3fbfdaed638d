// Memory that other ranks have mapped: what lies wholly in it is found, and what is given back is not.
#include "runtime/arenas.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>

namespace netsum::runtime {
namespace {

using Block = std::array<std::byte, 1000>;

TEST(Arenas, FindWhatLiesWhollyInOne) {
  Arenas arenas;
  const auto block = std::make_shared<Block>(), other = std::make_shared<Block>();
  EXPECT_EQ(arenas.find(block->data(), 8, 4).arena, 0U);
  const std::uint32_t first = arenas.reserve(), second = arenas.reserve();
  EXPECT_NE(first, second);
  EXPECT_EQ(arenas.find(block->data(), 8, 4).arena, 0U) << "not shown yet";
  arenas.show(first, *block, block);
  arenas.show(second, *other, other);

  const Arenas::Place place = arenas.find(block->data() + 40, 960, 4);
  EXPECT_EQ(place.arena, first);
  EXPECT_EQ(place.offset, 40U);
  EXPECT_EQ(place.memory, block);
  EXPECT_EQ(arenas.find(other->data() + 1000, 0, 1).arena, second);
  EXPECT_EQ(arenas.find(other->data() + 8, 8, 4).offset, 8U);
  EXPECT_EQ(arenas.find(block->data() + 40, 961, 1).arena, 0U) << "ends outside";
  EXPECT_EQ(arenas.find(block->data() + 42, 8, 4).arena, 0U) << "is not aligned to its elements";
  EXPECT_EQ(arenas.find(&arenas, 8, 4).arena, 0U);
  EXPECT_EQ(arenas.find(nullptr, 0, 4).arena, 0U);
}

TEST(Arenas, NumbersAreFreeWhenTheOthersHaveHeard) {
  Arenas arenas;
  auto block = std::make_shared<Block>();
  const std::uint32_t number = arenas.reserve();
  arenas.show(number, *block, block);
  const std::byte* const at = block->data();
  arenas.hide(number);
  EXPECT_EQ(arenas.find(at, 8, 4).arena, 0U);
  for (std::uint32_t i = 1; i < Arenas::most; ++i) EXPECT_NE(arenas.reserve(), number);
  EXPECT_EQ(arenas.reserve(), 0U) << "all are in use";
  EXPECT_EQ(arenas.take_hidden(), std::vector<std::uint32_t>{number});
  EXPECT_TRUE(arenas.take_hidden().empty());
  EXPECT_EQ(arenas.reserve(), number);
  EXPECT_EQ(arenas.reserve(), 0U);
}

TEST(Arenas, DoNotFindWhatIsBeingGivenBack) {
  Arenas arenas;
  auto block = std::make_shared<Block>();
  const std::byte* const at = block->data();
  arenas.show(arenas.reserve(), *block, block);
  block.reset();
  EXPECT_EQ(arenas.find(at, 8, 4).arena, 0U);
}

}  // namespace
}  // namespace netsum::runtime
