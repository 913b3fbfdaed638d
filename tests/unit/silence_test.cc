#include "stream/silence.h"

#include <gtest/gtest.h>

namespace netsum::stream {
namespace {

TEST(Silence, AllThatWasSentStandsBackBeforeAnyAnswer) {
  const Silence silence;
  EXPECT_TRUE(silence.ahead(1));
  EXPECT_TRUE(silence.stands_back(2));
}

TEST(Silence, AnAnswerLeavesThoseBehindThatWereSentBefore) {
  Silence silence;
  silence.answered(5, 5);
  silence.answered(3, 3);
  EXPECT_FALSE(silence.ahead(4));
  EXPECT_FALSE(silence.stands_back(4));  // its answer should have come
  EXPECT_TRUE(silence.ahead(6));
  EXPECT_TRUE(silence.stands_back(6));
}

TEST(Silence, AnAnsweredRepeatSpeaksForWhatWasSentBeforeIt) {
  Silence silence;
  silence.answered(1, 9);
  EXPECT_TRUE(silence.ahead(8));
  EXPECT_FALSE(silence.stands_back(8));
  EXPECT_TRUE(silence.stands_back(10));
  silence.answered(2, 3);
  EXPECT_FALSE(silence.stands_back(8));
}

}  // namespace
}  // namespace netsum::stream
