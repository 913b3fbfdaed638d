#include "apps/netsum/result_hash.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace netsum::app {
namespace {

TEST(ResultHash, TellsBitsApart) {
  std::vector<std::byte> bytes(100);
  const std::uint64_t hash = hash_of(bytes);
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_NE(hash_of(bytes), hash) << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
  }
  EXPECT_EQ(hash_of(bytes), hash);
  bytes.push_back(std::byte{0});
  EXPECT_NE(hash_of(bytes), hash);
}

}  // namespace
}  // namespace netsum::app
