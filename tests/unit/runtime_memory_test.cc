#include "runtime/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "base/check.h"

namespace netsum::runtime {
namespace {

TEST(PacketMemory, IsZeroedAndWritable) {
  for (const Pages pages : {Pages::when_touched, Pages::now}) {
    PacketMemory memory(100'000, pages);
    const std::span<std::byte> bytes = memory.bytes();
    ASSERT_EQ(bytes.size(), 100'000U);
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{0}), 100'000);
    std::fill(bytes.begin(), bytes.end(), std::byte{1});
  }
  EXPECT_TRUE(PacketMemory(0).bytes().empty());
}

TEST(PacketMemory, ThatCannotBeHadThrows) {
  EXPECT_THROW(PacketMemory(std::size_t{1} << 60), std::bad_alloc);
}

TEST(PacketMemory, ComesAndGoesAwayFromThreadsThatServePackets) {
  std::thread([] {
    serves_packets = true;
    EXPECT_THROW(PacketMemory(4096), std::logic_error);
  }).join();
}

TEST(JobMemory, GivesBackWhatWasNotServed) {
  JobMemory memory;
  EXPECT_THROW(memory.add(1, 4096, [](std::span<std::byte>) { throw std::runtime_error("the lane refused"); }),
               std::runtime_error);
  bool served = false;
  memory.add(1, 4096, [&](std::span<std::byte> bytes) { served = bytes.size() == 4096; });  // so it is free again
  EXPECT_TRUE(served);
  EXPECT_THROW(memory.add(1, 4096, [](std::span<std::byte>) {}), Error);
  memory.remove(1);
}

}  // namespace
}  // namespace netsum::runtime
