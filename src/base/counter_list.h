// Counters, each listed once: a struct of counters has a table of its fields, beside them, with the names that reports,
// metrics and the simulator's tallies give them. Names are an interface: users' dashboards read them.
//
//   struct Counters {
//     std::uint64_t packets = 0, added = 0;
//     static constexpr auto fields() {
//       return std::to_array<CounterField<Counters>>({{"packets", &Counters::packets, CounterKind::other}, ...});
//     }
//   };
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <type_traits>

namespace netsum {

enum class CounterKind : std::uint8_t {
  outcome,  // what became of a packet: each packet received counts in exactly one outcome
  more,     // outcomes of packets of several chunks, beyond one for each packet
  other,
};

template <class Counters>
struct CounterField {
  const char* name;
  std::uint64_t Counters::*value;
  CounterKind kind;
};

struct CounterValue {
  const char* name;
  std::uint64_t value = 0;
  CounterKind kind = CounterKind::other;
};

// A struct may count packets that are none in an array besides, `malformed`, by the reason: these are outcomes.
template <class Counters>
concept CountsMalformed = requires(Counters counters) {
  std::size(counters.malformed);
};

// Whether a table has every field of its struct, once.
template <class Counters, std::size_t count>
consteval bool lists_every_counter(const std::array<CounterField<Counters>, count>& fields) {
  std::size_t bytes = count * sizeof(std::uint64_t);
  if constexpr (CountsMalformed<Counters>) bytes += sizeof(Counters::malformed);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (fields[i].value == fields[j].value) return false;
    }
  }
  return bytes == sizeof(Counters);
}

// The table. A counter that is missing there does not compile, wherever its struct is added, summed or reported.
template <class Counters>
inline constexpr auto counter_fields = [] {
  static_assert(lists_every_counter(Counters::fields()), "each counter is in its struct's fields() once");
  return Counters::fields();
}();

template <class Counters>
constexpr void add(Counters& total, const Counters& more) {
  for (const auto& field : counter_fields<Counters>) total.*field.value += more.*field.value;
  if constexpr (CountsMalformed<Counters>) {
    for (std::size_t i = 0; i < std::size(total.malformed); ++i) total.malformed[i] += more.malformed[i];
  }
}

template <class Counters>
[[nodiscard]] constexpr std::uint64_t malformed_packets(const Counters& counters) {
  return std::accumulate(std::begin(counters.malformed), std::end(counters.malformed), std::uint64_t{0});
}

// The number of packets received, from what became of them.
template <class Counters>
[[nodiscard]] constexpr std::uint64_t outcomes(const Counters& counters) {
  std::uint64_t sum = 0;
  for (const auto& field : counter_fields<Counters>) {
    if (field.kind == CounterKind::outcome) sum += counters.*field.value;
    if (field.kind == CounterKind::more) sum -= counters.*field.value;
  }
  if constexpr (CountsMalformed<Counters>) sum += malformed_packets(counters);
  return sum;
}

// In the table's order; without `malformed`, whose names are the parser's (wire/parse_error.h).
template <class Counters, class Visit>
constexpr void for_each_counter(const Counters& counters, const Visit& visit) {
  for (const auto& field : counter_fields<Counters>) visit(CounterValue{field.name, counters.*field.value, field.kind});
}

}  // namespace netsum
