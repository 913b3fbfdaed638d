// How operations are dealt to lanes: the same on all ranks, every element once.
#include "protocol/atp/shares.h"

#include <gtest/gtest.h>

namespace netsum::atp {
namespace {

using Dealt = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

Dealt deal(Shares& shares, std::uint64_t elements) {
  std::vector<Piece> pieces{{9, 9}};  // of the operation before
  shares.deal(elements, pieces);
  Dealt list;
  for (const Piece& piece : pieces) list.emplace_back(piece.offset, piece.elements);
  return list;
}

TEST(Shares, OneLaneHasEverything) {
  Shares shares(0, 1);
  EXPECT_EQ((Dealt{{0, 100}}), deal(shares, 100));
  EXPECT_EQ((Dealt{{0, Shares::piece_elements}, {Shares::piece_elements, 1}}), deal(shares, Shares::piece_elements + 1));
  EXPECT_EQ((Dealt{{0, Shares::piece_elements}}), deal(shares, Shares::piece_elements));
}

TEST(Shares, AnOperationGoesToTheLaneWithTheLeastWorkSoFar) {
  Shares first(0, 2), second(1, 2);
  EXPECT_EQ((Dealt{{0, 100}}), deal(first, 100));
  EXPECT_EQ(Dealt{}, deal(second, 100));
  for (int i = 0; i < 3; ++i) {  // 30, 60, 90 against 100
    EXPECT_EQ(Dealt{}, deal(first, 30));
    EXPECT_EQ((Dealt{{0, 30}}), deal(second, 30));
  }
  EXPECT_EQ(Dealt{}, deal(first, 30));
  EXPECT_EQ((Dealt{{0, 30}}), deal(second, 30));
  EXPECT_EQ((Dealt{{0, 30}}), deal(first, 30));  // 100 against 120
  EXPECT_EQ(Dealt{}, deal(second, 30));
}

TEST(Shares, ABarrierIsOneEmptyPieceAndCountsAsWork) {
  Shares first(0, 2), second(1, 2);
  EXPECT_EQ((Dealt{{0, 0}}), deal(first, 0));
  EXPECT_EQ(Dealt{}, deal(second, 0));
  EXPECT_EQ(Dealt{}, deal(first, 0));
  EXPECT_EQ((Dealt{{0, 0}}), deal(second, 0));
}

TEST(Shares, LanesTogetherHaveEveryElementOnce) {
  constexpr std::uint32_t lanes = 3;
  std::vector<Shares> all;
  for (std::uint32_t lane = 0; lane < lanes; ++lane) all.emplace_back(lane, lanes);
  for (const std::uint64_t elements : {std::uint64_t{1}, 5 * Shares::piece_elements + 7, std::uint64_t{1000}}) {
    std::vector<Piece> pieces;
    Dealt together;
    for (Shares& shares : all) {
      const Dealt own = deal(shares, elements);
      together.insert(together.end(), own.begin(), own.end());
    }
    std::sort(together.begin(), together.end());
    std::uint64_t end = 0;
    for (const auto& [offset, length] : together) {
      EXPECT_EQ(end, offset);
      EXPECT_LE(length, Shares::piece_elements);
      end = offset + length;
    }
    EXPECT_EQ(elements, end);
  }
}

}  // namespace
}  // namespace netsum::atp
