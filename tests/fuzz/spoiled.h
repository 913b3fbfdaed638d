// Messages that are right but for a few fields, at any depth: bytes alone seldom get as far as what is checked last.
#pragma once

#include <fuzzer/FuzzedDataProvider.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "encoding/codec.h"
#include "fuzz/harness.h"

namespace netsum::fuzz {

using control::fields;

[[nodiscard]] inline std::uint64_t odd_number(FuzzedDataProvider& input) {
  if (input.ConsumeBool()) return input.ConsumeIntegralInRange<std::uint64_t>(0, 8);
  return input.PickValueInArray<std::uint64_t>({9,
                                                16,
                                                32,
                                                33,
                                                63,
                                                64,
                                                65,
                                                255,
                                                256,
                                                257,
                                                1023,
                                                1024,
                                                1025,
                                                4096,
                                                4097,
                                                0xffff,
                                                0x10000,
                                                0xffffff,
                                                0x1000000,
                                                0x40000040,
                                                0x7fffffff,
                                                0xfffffffe,
                                                0xffffffff,
                                                UINT64_MAX / 2,
                                                UINT64_MAX - 1,
                                                UINT64_MAX});
}

[[nodiscard]] inline std::string odd_text(FuzzedDataProvider& input) {
  switch (input.ConsumeIntegralInRange<int>(0, 5)) {
    case 0:
      return "";
    case 1:
      return std::string(16, '\0');
    case 2:
      return std::string(input.ConsumeIntegralInRange<std::size_t>(200, 2100), 'a');
    case 3:
      return "\x1b[2J";
    case 4:
      return input.ConsumeBytesAsString(16);
    default:
      return input.ConsumeRandomLengthString(20);
  }
}

// Goes through a message's fields (control/messages.h), counts them, and changes that with the number `target`.
class Spoiler {
 public:
  template <class Message>
  static void spoil(Message& message, FuzzedDataProvider& input) {
    Spoiler counts(input, SIZE_MAX);
    fields(counts, message);
    if (counts.seen_ == 0) return;
    Spoiler changes(input, input.ConsumeIntegralInRange<std::size_t>(0, counts.seen_ - 1));
    fields(changes, message);
  }

  template <class Number>
  void number(std::uint32_t, const char*, Number& value) {
    if (hit()) value = static_cast<Number>(odd_number(input_));
  }
  template <class Choice>
  void choice(std::uint32_t, const char*, Choice& value, Choice) {
    if (hit()) value = static_cast<Choice>(odd_number(input_) & 0xff);
  }
  void flag(std::uint32_t, const char*, bool& value) {
    if (hit()) value = input_.ConsumeBool();
  }
  void duration(std::uint32_t, const char*, std::chrono::milliseconds& value) {
    if (hit()) value = std::chrono::milliseconds(input_.ConsumeIntegral<std::uint16_t>());
  }
  void text(std::uint32_t, const char*, std::string& value, std::size_t) {
    if (hit()) value = odd_text(input_);
  }
  void bytes(std::uint32_t, const char*, std::array<std::uint8_t, 16>& value) {
    if (hit()) value[input_.ConsumeIntegralInRange<std::size_t>(0, 15)] = input_.ConsumeIntegral<std::uint8_t>();
  }
  void key(std::uint32_t, const char*, seal::PacketKey& value) {
    if (!hit()) return;
    seal::PacketKey::Bytes bytes{};
    bytes[0] = std::byte{input_.ConsumeIntegral<std::uint8_t>()};
    value = input_.ConsumeBool() ? seal::PacketKey(bytes) : seal::PacketKey();
  }
  template <class Message>
  void message(std::uint32_t, const char*, Message& value) {
    fields(*this, value);
  }
  template <class Value>
  void maybe(std::uint32_t, const char*, std::optional<Value>& value) {
    if (hit()) {
      input_.ConsumeBool() ? value.reset() : static_cast<void>(value.emplace());
    } else if (value) {
      element(*value);
    }
  }
  template <class Value>
  void list(std::uint32_t, const char*, std::vector<Value>& values, std::size_t) {
    if (hit()) return change(values);
    for (Value& value : values) element(value);
  }
  template <class Value>
  void lists(std::uint32_t tag, const char* name, std::vector<std::vector<Value>>& values, std::size_t, std::size_t most) {
    if (hit()) return change(values);
    for (std::vector<Value>& value : values) list(tag, name, value, most);
  }
  template <class Key, class Value>
  void map(std::uint32_t, const char*, std::map<Key, Value>& values, std::size_t) {
    if (!hit()) return;
    if (!values.empty() && input_.ConsumeBool()) values.erase(values.begin());
    values[static_cast<Key>(odd_number(input_))] = static_cast<Value>(odd_number(input_));
  }
  void ranks(std::uint32_t, const char*, RankSet& value) {
    if (hit()) value.insert(input_.ConsumeIntegralInRange<std::uint32_t>(0, max_world_size - 1));
  }

 private:
  Spoiler(FuzzedDataProvider& input, std::size_t target) : input_(input), target_(target) {}
  [[nodiscard]] bool hit() { return seen_++ == target_; }

  template <class Value>
  void element(Value& value) {
    if constexpr (control::is_number<Value>) {
      number(0, "", value);
    } else if constexpr (control::is_text<Value>) {
      text(0, "", value, 0);
    } else {
      fields(*this, value);
    }
  }
  // One less, two swapped, or some more.
  template <class Value>
  void change(std::vector<Value>& values) {
    switch (values.empty() ? 3 : input_.ConsumeIntegralInRange<int>(0, 3)) {
      case 0:
        return values.clear();
      case 1:
        return values.pop_back();
      case 2:
        return std::swap(values.front(), values[input_.ConsumeIntegralInRange<std::size_t>(0, values.size() - 1)]);
      default: {
        const Value like = values.empty() ? Value{} : values.front();
        values.resize(values.size() + input_.ConsumeIntegralInRange<std::size_t>(1, input_.ConsumeBool() ? 2 : 1100), like);
      }
    }
  }

  FuzzedDataProvider& input_;
  const std::size_t target_;
  std::size_t seen_ = 0;
};

// The message over a network on which a stranger is: as it was, with some fields changed, with some bytes changed, or any
// bytes in its place.
template <class Message>
[[nodiscard]] control::Bytes arrived(Message message, FuzzedDataProvider& input) {
  const int kind = input.ConsumeIntegralInRange<int>(0, 7);
  if (kind == 0) {
    const std::string any = input.ConsumeRandomLengthString(512);
    return {any.begin(), any.end()};
  }
  for (int changes = kind < 3 ? 0 : input.ConsumeIntegralInRange<int>(1, 3); changes > 0; --changes) {
    Spoiler::spoil(message, input);
  }
  control::Bytes bytes = control::encoded(message);
  if (kind == 7 && !bytes.empty()) {
    bytes[input.ConsumeIntegralInRange<std::size_t>(0, bytes.size() - 1)] = input.ConsumeIntegral<char>();
    if (input.ConsumeBool()) bytes.resize(input.ConsumeIntegralInRange<std::size_t>(0, bytes.size()));
  }
  return bytes;
}

}  // namespace netsum::fuzz
