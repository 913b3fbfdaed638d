#include "stream/operation.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

namespace netsum::stream {
namespace {

Operation usual() {
  Operation operation;
  operation.number = 3;
  operation.elements = 1000;
  return operation;
}

TEST(Signature, DiffersWithEverythingThatMustAgree) {
  std::set<std::uint32_t> seen = {signature_of(usual(), 256)};
  const auto expect_new = [&](const char* what, const std::function<void(Operation&)>& change,
                              std::uint32_t packet_elements = 256) {
    Operation operation = usual();
    change(operation);
    EXPECT_TRUE(seen.insert(signature_of(operation, packet_elements)).second) << what;
  };
  expect_new("broadcast", [](Operation& o) { o.collective = Collective::broadcast; });
  expect_new("barrier", [](Operation& o) { o.collective = Collective::barrier; });
  expect_new("avg", [](Operation& o) { o.op = ReduceOp::avg; });
  expect_new("int32", [](Operation& o) { o.dtype = DType::int32; });
  expect_new("float16", [](Operation& o) { o.dtype = DType::float16; });
  expect_new("bfloat16", [](Operation& o) { o.dtype = DType::bfloat16; });
  expect_new("float32 as float16", [](Operation& o) { o.wire = WireFormat::float16; });
  expect_new("float32 as bfloat16", [](Operation& o) { o.wire = WireFormat::bfloat16; });
  expect_new("float16 as float32", [](Operation& o) {
    o.dtype = DType::float16;
    o.wire = WireFormat::float32;
  });
  expect_new("one element more", [](Operation& o) { o.elements += 1; });
  expect_new("2^32 elements more", [](Operation& o) { o.elements += std::uint64_t{1} << 32; });
  expect_new("root", [](Operation& o) { o.root = 1; });
  expect_new("tag", [](Operation& o) { o.tag = 1; });
  expect_new("high bits of the tag", [](Operation& o) { o.tag = 1U << 31; });
  expect_new(
      "elements per packet", [](Operation&) {}, 512);
}

TEST(Signature, IgnoresWhatEachRankHasForItself) {
  Operation other = usual();
  float value = 0;
  other.data = &value;
  other.number = 4;
  EXPECT_EQ(signature_of(other, 256), signature_of(usual(), 256));
  other.wire = WireFormat::float32;  // as it travels anyway
  EXPECT_EQ(signature_of(other, 256), signature_of(usual(), 256));
}

TEST(Operation, SaysWhatItIs) {
  Operation operation = usual();
  operation.tag = 7;
  EXPECT_EQ(to_string(operation), "all_reduce sum of 1000 float32, tag 7");
  operation.wire = WireFormat::float16;
  EXPECT_EQ(to_string(operation), "all_reduce sum of 1000 float32 as float16, tag 7");
  operation.collective = Collective::broadcast;
  operation.root = 2;
  EXPECT_EQ(to_string(operation), "broadcast of 1000 bytes from rank 2, tag 7");
  operation.collective = Collective::barrier;
  EXPECT_EQ(to_string(operation), "barrier, tag 7");
}

TEST(Operation, TravelsAsWholeWords) {
  Operation operation = usual();
  EXPECT_EQ(wire_elements(operation), 1000U);
  operation.dtype = DType::bfloat16;
  EXPECT_EQ(wire_elements(operation), 1000U);
  operation.collective = Collective::broadcast;
  for (const auto& [bytes, words] : {std::pair{0U, 0U}, {1U, 1U}, {4U, 1U}, {5U, 2U}}) {
    operation.elements = bytes;
    EXPECT_EQ(wire_elements(operation), words);
  }
  operation.collective = Collective::barrier;
  EXPECT_EQ(wire_elements(operation), 0U);
}

TEST(Operation, TravelsInItsOwnWidthOrAsAsked) {
  const auto wire = [](DType dtype, WireFormat format) {
    Operation operation = usual();
    operation.dtype = dtype;
    operation.wire = format;
    EXPECT_EQ(adds_floats(operation), dtype != DType::int32);
    EXPECT_EQ(uses_exponents(operation), dtype != DType::int32 && wire_dtype(operation) == DType::int32);
    return wire_dtype(operation);
  };
  for (const WireFormat format : {WireFormat::native, WireFormat::float32, WireFormat::float16, WireFormat::bfloat16}) {
    EXPECT_EQ(DType::int32, wire(DType::int32, format));
    EXPECT_EQ(format == WireFormat::float32 ? DType::int32 : DType::float16, wire(DType::float16, format));
    EXPECT_EQ(format == WireFormat::float32 ? DType::int32 : DType::bfloat16, wire(DType::bfloat16, format));
  }
  EXPECT_EQ(DType::int32, wire(DType::float32, WireFormat::native));
  EXPECT_EQ(DType::int32, wire(DType::float32, WireFormat::float32));
  EXPECT_EQ(DType::float16, wire(DType::float32, WireFormat::float16));
  EXPECT_EQ(DType::bfloat16, wire(DType::float32, WireFormat::bfloat16));
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    EXPECT_EQ(block8, wire(dtype, WireFormat::int8));
    EXPECT_EQ(block4, wire(dtype, WireFormat::int4));
  }
  EXPECT_EQ(DType::float16, wire(DType::float16, WireFormat::int4));
  EXPECT_EQ(DType::int32, wire(DType::int32, WireFormat::int4));
}

// Too few elements to be worth a round for their exponents.
TEST(Operation, FewFloatsTravelAsTheyAre) {
  Operation operation = usual();
  for (const auto& [elements, wire] : {std::pair{1U, DType::float32}, {16U, DType::float32}, {17U, DType::int32}}) {
    operation.elements = elements;
    EXPECT_EQ(wire_dtype(operation), wire) << elements;
    EXPECT_EQ(uses_exponents(operation), wire == DType::int32) << elements;
  }
  operation.elements = 16;
  operation.wire = WireFormat::bfloat16;
  EXPECT_EQ(wire_dtype(operation), DType::bfloat16);
  operation.dtype = DType::int32;
  EXPECT_EQ(wire_dtype(operation), DType::int32);
}

TEST(Operation, NeedsExponentsOnlyForRealNumbers) {
  Operation operation = usual();
  EXPECT_TRUE(uses_exponents(operation));
  operation.elements = 0;
  EXPECT_FALSE(uses_exponents(operation));
  operation = usual();
  operation.collective = Collective::broadcast;
  EXPECT_FALSE(uses_exponents(operation));
  operation.wire = WireFormat::float16;
  EXPECT_EQ(DType::int32, wire_dtype(operation));
}

}  // namespace
}  // namespace netsum::stream
