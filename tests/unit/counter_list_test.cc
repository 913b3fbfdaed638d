// Tables of counters: nothing is left out of them, and everything that reads counters goes through them.
#include "base/counter_list.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "wire/counter_values.h"

namespace netsum {
namespace {

struct Counted {
  std::uint64_t packets = 0, added = 0;
  std::uint64_t malformed[wire::parse_error_kinds] = {};
  std::uint64_t dropped = 0;

  static constexpr auto fields() {
    using enum CounterKind;
    using C = Counted;
    return std::to_array<CounterField<C>>(
        {{"packets", &C::packets, other}, {"dropped", &C::dropped, outcome}, {"added", &C::added, outcome}});
  }
};

constexpr Counted example{9, 1, {0, 2, 0, 0, 0, 3, 0}, 4};

TEST(CounterList, HasEachFieldOnce) {
  constexpr auto whole = Counted::fields();
  static_assert(lists_every_counter(whole));
  static_assert(!lists_every_counter(std::array{whole[0], whole[1]}));
  static_assert(!lists_every_counter(std::array{whole[0], whole[1], whole[1]}));
}

TEST(CounterList, AddsEveryField) {
  Counted total = example;
  add(total, example);
  EXPECT_EQ(total.packets, 18U);
  EXPECT_EQ(total.added, 2U);
  EXPECT_EQ(total.dropped, 8U);
  EXPECT_EQ(malformed_packets(total), 10U);
}

TEST(CounterList, SumsOutcomesAndMalformedPackets) {
  EXPECT_EQ(outcomes(example), 1U + 4U + 2U + 3U);
}

TEST(CounterList, NamesValuesInTheTablesOrderAndThenMalformedOnesByTheReason) {
  std::vector<std::pair<std::string, std::uint64_t>> values;
  std::uint64_t sum = 0;
  for (const CounterValue& value : wire::counter_values(example)) {
    values.emplace_back(value.name, value.value);
    if (value.kind == CounterKind::outcome) sum += value.value;
  }
  EXPECT_EQ(values, (std::vector<std::pair<std::string, std::uint64_t>>{{"packets", 9},
                                                                        {"dropped", 4},
                                                                        {"added", 1},
                                                                        {"malformed_truncated", 2},
                                                                        {"malformed_version", 0},
                                                                        {"malformed_type", 0},
                                                                        {"malformed_length", 0},
                                                                        {"malformed_checksum", 3},
                                                                        {"malformed_field", 0}}));
  EXPECT_EQ(sum, outcomes(example));
}

}  // namespace
}  // namespace netsum
