// Messages that are right but for a few fields, at any depth: bytes alone seldom get as far as what is checked last.
#pragma once

#include <fuzzer/FuzzedDataProvider.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>
#include <protozero/varint.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/shared_list.h"
#include "encoding/codec.h"
#include "fuzz/harness.h"

namespace netsum::fuzz {

using encoding::fields;

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

// ---- parts of messages whose fields only their protocol knows

struct RawField {
  std::uint32_t tag = 0;
  bool is_number = false;
  std::uint64_t number = 0;
  std::string bytes;  // if it is no number: a message, numbers or a text
};
[[nodiscard]] inline std::optional<std::vector<RawField>> raw_fields(std::string_view part) {
  std::vector<RawField> all;
  try {
    for (protozero::pbf_reader reader(part.data(), part.size()); reader.next();) {
      if (reader.wire_type() == protozero::pbf_wire_type::varint) {
        const std::uint64_t number = reader.get_uint64();
        all.push_back({reader.tag(), true, number, {}});
      } else if (reader.wire_type() == protozero::pbf_wire_type::length_delimited) {
        all.push_back({reader.tag(), false, 0, reader.get_string()});
      } else {
        return std::nullopt;
      }
    }
  } catch (const protozero::exception&) {
    return std::nullopt;
  }
  return all;
}
[[nodiscard]] inline std::string written(const std::vector<RawField>& all) {
  std::string bytes;
  protozero::pbf_writer writer(bytes);
  for (const RawField& field : all) {
    if (field.is_number) {
      writer.add_uint64(field.tag, field.number);
    } else {
      writer.add_bytes(field.tag, field.bytes);
    }
  }
  return bytes;
}

// Numbers of which one is odd, or of which there are more or fewer.
[[nodiscard]] inline std::string spoiled_numbers(const std::string& packed, FuzzedDataProvider& input) {
  std::vector<std::uint64_t> numbers;
  try {
    const char* at = packed.data();
    while (at != packed.data() + packed.size()) {
      numbers.push_back(protozero::decode_varint(&at, packed.data() + packed.size()));
    }
  } catch (const protozero::exception&) {
    return packed;
  }
  if (numbers.empty() || input.ConsumeBool()) {
    numbers.resize(input.ConsumeIntegralInRange<std::size_t>(0, numbers.size() + 2), odd_number(input));
  } else {
    numbers[input.ConsumeIntegralInRange<std::size_t>(0, numbers.size() - 1)] = odd_number(input);
  }
  std::string bytes;
  for (const std::uint64_t number : numbers) protozero::add_varint_to_buffer(&bytes, number);
  return bytes;
}

// The part with one of its fields changed, at any depth.
[[nodiscard]] inline std::string spoiled_part(std::string_view part, FuzzedDataProvider& input) {
  auto all = raw_fields(part);
  if (!all || all->empty()) return input.ConsumeRandomLengthString(40);
  const std::size_t at = input.ConsumeIntegralInRange<std::size_t>(0, all->size() - 1);
  RawField& field = (*all)[at];
  switch (input.ConsumeIntegralInRange<int>(0, 7)) {
    case 0:
      all->erase(all->begin() + static_cast<std::ptrdiff_t>(at));
      break;
    case 1: {
      const RawField same = field;
      all->insert(all->end(), input.ConsumeIntegralInRange<std::size_t>(1, input.ConsumeBool() ? 2 : 1100), same);
      break;
    }
    case 2:
      std::swap(field, (*all)[input.ConsumeIntegralInRange<std::size_t>(0, all->size() - 1)]);
      break;
    default:
      if (field.is_number) {
        field.number = odd_number(input);
        break;
      }
      const auto inner = raw_fields(field.bytes);
      if (inner && !inner->empty() && input.ConsumeIntegralInRange<int>(0, 3) != 0) {
        field.bytes = spoiled_part(field.bytes, input);
      } else if (!field.bytes.empty() && input.ConsumeBool()) {
        field.bytes[input.ConsumeIntegralInRange<std::size_t>(0, field.bytes.size() - 1)] = input.ConsumeIntegral<char>();
      } else {
        field.bytes = input.ConsumeBool() ? spoiled_numbers(field.bytes, input) : odd_text(input);
      }
  }
  return written(*all);
}

// ---- messages

// Goes through a message's fields (encoding/codec.h), counts them, and changes that with the number `target`. A protocol's
// own part counts as several.
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
  void text(std::uint32_t, const char* name, std::string& value, std::size_t) {
    if (std::string_view(name) == "own") {
      if (hit(fields_of_part)) value = spoiled_part(value, input_);
    } else if (hit()) {
      value = odd_text(input_);
    }
  }
  void blob(std::uint32_t, const char*, encoding::Bytes& value, std::size_t) {
    if (!hit(fields_of_part)) return;
    const std::string spoiled = spoiled_part(encoding::view(value), input_);
    value.assign(spoiled.begin(), spoiled.end());
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
  void list(std::uint32_t tag, const char* name, SharedList<Value>& list, std::size_t most) {
    std::vector<Value> values = list;
    this->list(tag, name, values, most);
    list = std::move(values);
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
  template <std::uint32_t Capacity>
  void ranks(std::uint32_t, const char*, BasicRankSet<Capacity>& value) {
    if (hit()) value.insert(input_.ConsumeIntegralInRange<std::uint32_t>(0, Capacity - 1));
  }

 private:
  Spoiler(FuzzedDataProvider& input, std::size_t target) : input_(input), target_(target) {}
  static constexpr std::size_t fields_of_part = 8;
  [[nodiscard]] bool hit(std::size_t fields = 1) {
    const std::size_t first = std::exchange(seen_, seen_ + fields);
    return target_ >= first && target_ - first < fields;
  }

  template <class Value>
  void element(Value& value) {
    if constexpr (encoding::is_number<Value>) {
      number(0, "", value);
    } else if constexpr (encoding::is_text<Value>) {
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
[[nodiscard]] encoding::Bytes arrived(Message message, FuzzedDataProvider& input) {
  const int kind = input.ConsumeIntegralInRange<int>(0, 7);
  if (kind == 0) {
    const std::string any = input.ConsumeRandomLengthString(512);
    return {any.begin(), any.end()};
  }
  for (int changes = kind < 3 ? 0 : input.ConsumeIntegralInRange<int>(1, 3); changes > 0; --changes) {
    Spoiler::spoil(message, input);
  }
  encoding::Bytes bytes = encoding::encoded(message);
  if (kind == 7 && !bytes.empty()) {
    bytes[input.ConsumeIntegralInRange<std::size_t>(0, bytes.size() - 1)] = input.ConsumeIntegral<char>();
    if (input.ConsumeBool()) bytes.resize(input.ConsumeIntegralInRange<std::size_t>(0, bytes.size()));
  }
  return bytes;
}

}  // namespace netsum::fuzz
