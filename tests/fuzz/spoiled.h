// Messages of protocol buffers that are right but for a few fields, at any depth: bytes alone seldom get as far as what is
// checked last.
#pragma once

#include <fuzzer/FuzzedDataProvider.h>
#include <google/protobuf/message.h>

#include <cstdint>
#include <string>

#include "fuzz/harness.h"

namespace netsum::fuzz {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

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

inline void spoil(Message& message, FuzzedDataProvider& input);

inline void spoil_value(Message& message, const FieldDescriptor* field, FuzzedDataProvider& input) {
  const auto* r = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return spoil(*r->MutableMessage(&message, field), input);
    case FieldDescriptor::CPPTYPE_STRING:
      return r->SetString(&message, field, odd_text(input));
    case FieldDescriptor::CPPTYPE_UINT32:
      return r->SetUInt32(&message, field, static_cast<std::uint32_t>(odd_number(input)));
    case FieldDescriptor::CPPTYPE_UINT64:
      return r->SetUInt64(&message, field, odd_number(input));
    case FieldDescriptor::CPPTYPE_BOOL:
      return r->SetBool(&message, field, input.ConsumeBool());
    case FieldDescriptor::CPPTYPE_ENUM:
      return r->SetEnumValue(&message, field, static_cast<int>(odd_number(input)));
    default:
      check(false, "a kind of field that no message has yet");
  }
}

// One of the list's elements, or one more, which is like another.
inline void spoil_element(Message& message, const FieldDescriptor* field, FuzzedDataProvider& input) {
  const auto* r = message.GetReflection();
  const int size = r->FieldSize(message, field);
  const bool add = size == 0 || input.ConsumeBool();
  const int at = size == 0 ? 0 : input.ConsumeIntegralInRange<int>(0, size - 1);
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE: {
      if (!add) return spoil(*r->MutableRepeatedMessage(&message, field, at), input);
      Message* const added = r->AddMessage(&message, field);
      if (size != 0) added->CopyFrom(r->GetRepeatedMessage(message, field, at));
      return;
    }
    case FieldDescriptor::CPPTYPE_STRING:
      return add ? r->AddString(&message, field, odd_text(input))
                 : r->SetRepeatedString(&message, field, at, odd_text(input));
    case FieldDescriptor::CPPTYPE_UINT32: {
      const auto value = static_cast<std::uint32_t>(odd_number(input));
      return add ? r->AddUInt32(&message, field, value) : r->SetRepeatedUInt32(&message, field, at, value);
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      const std::uint64_t value = odd_number(input);
      return add ? r->AddUInt64(&message, field, value) : r->SetRepeatedUInt64(&message, field, at, value);
    }
    default:
      check(false, "a kind of list that no message has yet");
  }
}

inline void spoil(Message& message, FuzzedDataProvider& input) {
  const int fields = message.GetDescriptor()->field_count();
  if (fields == 0) return;
  const FieldDescriptor* const field = message.GetDescriptor()->field(input.ConsumeIntegralInRange<int>(0, fields - 1));
  const auto* r = message.GetReflection();
  if (!field->is_repeated()) return spoil_value(message, field, input);
  const int size = r->FieldSize(message, field);
  switch (size == 0 ? 5 : input.ConsumeIntegralInRange<int>(0, 7)) {
    case 0:
      return r->ClearField(&message, field);
    case 1:
      return r->RemoveLast(&message, field);
    case 2:
      return r->SwapElements(&message, field, 0, input.ConsumeIntegralInRange<int>(0, size - 1));
    case 3: {
      const int more = input.ConsumeIntegralInRange<int>(1, 1100);
      for (int i = 0; i < more && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE; ++i) {
        r->AddMessage(&message, field)->CopyFrom(r->GetRepeatedMessage(message, field, 0));
      }
      return;
    }
    default:
      return spoil_element(message, field, input);
  }
}

// The message over a network on which a stranger is: as it was, with some fields changed, or any bytes in its place. False:
// no handler sees it.
[[nodiscard]] inline bool arrive(Message& message, FuzzedDataProvider& input) {
  const int kind = input.ConsumeIntegralInRange<int>(0, 7);
  if (kind == 0) return message.ParseFromString(input.ConsumeRandomLengthString(512));
  for (int changes = kind < 3 ? 0 : input.ConsumeIntegralInRange<int>(1, 3); changes > 0; --changes) spoil(message, input);
  return true;
}

}  // namespace netsum::fuzz
