// What a collective call becomes: for a protocol that has it, and for one in which others stand in.
#include "collective/call_plan.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <cstring>
#include <numeric>
#include <vector>

#include "netsum/error.h"

namespace netsum::collective {
namespace {

using stream::Collective;

const RankTraits everything{.protocol = "SwitchML", .every_reduction = true, .every_collective = true};
const RankTraits sums_only{.protocol = "ATP"};

class Plan : public ::testing::Test {
 protected:
  Plan() { std::iota(in.begin(), in.end(), 0.0F); }

  [[nodiscard]] static TensorView view(std::vector<float>& values) { return {values.data(), values.size(), DType::float32}; }
  [[nodiscard]] CollectiveCall scatter() { return {Collective::reduce_scatter, ReduceOp::sum, view(in), view(out)}; }
  // The error's text; empty: none.
  [[nodiscard]] static std::string refusal(const CollectiveCall& call, const RankTraits& traits = everything,
                                           std::optional<double> factor = {}) {
    try {
      static_cast<void>(plan_of(call, {1, 3, traits}, factor));
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(ErrorCode::bad_argument, error.code());
      return error.what();
    }
  }

  std::vector<float> in = std::vector<float>(6), out = std::vector<float>(2);
};

TEST_F(Plan, AProtocolThatHasACollectiveGetsIt) {
  const CallPlan plan = plan_of(scatter(), {1, 3, everything}, {});
  ASSERT_EQ(1U, plan.operations.size());
  EXPECT_EQ(Collective::reduce_scatter, plan.operations[0].collective);
  EXPECT_EQ(3U, plan.operations[0].parts);
  EXPECT_EQ(in.data(), plan.operations[0].data);
  EXPECT_EQ(out.data(), plan.operations[0].out);
  EXPECT_FALSE(plan.staged);
}

TEST_F(Plan, PrivateSumsAreOfIntegers) {
  RankTraits traits = everything;
  traits.private_sums = true;
  EXPECT_TRUE(plan_of(scatter(), {1, 3, traits}, {}).operations[0].fixed_point);
  EXPECT_FALSE(plan_of(scatter(), {1, 3, everything}, {}).operations[0].fixed_point);
  for (const DType dtype : dtypes) {
    for (const ReduceOp op : reduce_ops) {
      if (!can_reduce(traits, op, dtype)) continue;
      stream::Operation operation{.op = op, .dtype = dtype, .elements = 5, .fixed_point = is_float(dtype)};
      EXPECT_TRUE(stream::adds_integers(operation)) << to_string(op) << " of " << to_string(dtype);
    }
  }
  CollectiveCall largest = scatter();
  largest.op = ReduceOp::max;
  EXPECT_NE(std::string::npos, refusal(largest, traits).find("max of float32 is not possible with private sums"));
}

TEST_F(Plan, OtherwiseEachPartIsAnAllReduceInMemoryOfItsOwn) {
  for (const bool divides : {false, true}) {
    const CallPlan plan = plan_of(scatter(), {1, 3, divides ? sums_only : everything, divides}, {});
    ASSERT_EQ(3U, plan.operations.size());
    for (std::size_t part = 0; part < 3; ++part) {
      const stream::Operation& operation = plan.operations[part];
      EXPECT_EQ(Collective::all_reduce, operation.collective);
      EXPECT_EQ(2U, operation.elements);
      EXPECT_EQ(nullptr, operation.out);
      EXPECT_EQ(0, std::memcmp(operation.data, in.data() + 2 * part, 8));
    }
    static_cast<float*>(plan.operations[1].data)[1] = 42;
    plan.finish();
    EXPECT_EQ((std::vector<float>{2, 42}), out) << "the part of rank 1";
    EXPECT_EQ(3, in[3]) << "the input is only read";
  }
}

TEST_F(Plan, PartsOfDifferentLengthsAreReductionsToTheirRanks) {
  const std::size_t counts[] = {1, 2, 0, 3};
  const CollectiveCall call{Collective::reduce_scatter, ReduceOp::sum, view(in), view(out), 0, counts};
  CallPlan plan = plan_of(call, {1, 4, everything}, {});
  ASSERT_EQ(3U, plan.operations.size()) << "none for rank 2, which has no part";
  const std::uint32_t roots[] = {0, 1, 3};
  const std::size_t lengths[] = {1, 2, 3}, begins[] = {0, 1, 3};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(Collective::reduce, plan.operations[i].collective);
    EXPECT_EQ(roots[i], plan.operations[i].root);
    EXPECT_EQ(lengths[i], plan.operations[i].elements);
    EXPECT_EQ(in.data() + begins[i], plan.operations[i].data);
    EXPECT_EQ(i == 1 ? out.data() : nullptr, plan.operations[i].out);
  }
  EXPECT_FALSE(plan.staged);

  plan = plan_of(call, {1, 4, sums_only}, {});
  ASSERT_EQ(3U, plan.operations.size());
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(Collective::all_reduce, plan.operations[i].collective);
    EXPECT_EQ(lengths[i], plan.operations[i].elements);
    EXPECT_EQ(0, std::memcmp(plan.operations[i].data, in.data() + begins[i], lengths[i] * 4));
  }
  static_cast<float*>(plan.operations[1].data)[1] = 42;
  plan.finish();
  EXPECT_EQ((std::vector<float>{1, 42}), out);

  const std::size_t equal[] = {2, 2, 2};
  plan = plan_of({Collective::reduce_scatter, ReduceOp::sum, view(in), view(out), 0, equal}, {1, 3, everything}, {});
  ASSERT_EQ(1U, plan.operations.size());
  EXPECT_EQ(Collective::reduce_scatter, plan.operations[0].collective);
}

TEST_F(Plan, ARootReducesInPlaceAndTheOthersApart) {
  for (const std::uint32_t root : {0U, 1U}) {
    const CallPlan plan = plan_of({Collective::reduce, ReduceOp::sum, view(in), view(in), root}, {1, 3, sums_only}, {});
    ASSERT_EQ(1U, plan.operations.size());
    EXPECT_EQ(Collective::all_reduce, plan.operations[0].collective);
    EXPECT_EQ(root == 1, plan.operations[0].data == in.data());
  }
}

TEST_F(Plan, AnAllGatherIsABroadcastFromEachRank) {
  const auto bytes = std::as_writable_bytes(std::span(in));
  const CallPlan plan = plan_of({Collective::all_gather, ReduceOp::sum, view(out), view(in)}, {1, 3, sums_only}, {});
  ASSERT_EQ(3U, plan.operations.size());
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(Collective::broadcast, plan.operations[rank].collective);
    EXPECT_EQ(rank, plan.operations[rank].root);
    EXPECT_EQ(bytes.data() + rank * 8, plan.operations[rank].data);
  }
  EXPECT_EQ((std::vector<float>{0, 1, 0, 0, 4, 5}), in) << "its own part is in place";
}

TEST_F(Plan, PartsOfDifferentLengthsAreBroadcastsFromThoseThatHaveSome) {
  const std::size_t counts[] = {1, 2, 0, 3};
  const CollectiveCall call{Collective::all_gather, ReduceOp::sum, view(out), view(in), 0, counts};
  const CallPlan plan = plan_of(call, {1, 4, everything}, {});
  ASSERT_EQ(3U, plan.operations.size());
  const std::uint32_t roots[] = {0, 1, 3};
  const std::size_t lengths[] = {1, 2, 3}, begins[] = {0, 1, 3};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(Collective::broadcast, plan.operations[i].collective);
    EXPECT_EQ(roots[i], plan.operations[i].root);
    EXPECT_EQ(lengths[i] * 4, plan.operations[i].elements);
    EXPECT_EQ(in.data() + begins[i], plan.operations[i].data);
  }
  EXPECT_EQ((std::vector<float>{0, 0, 0, 3, 4, 5}), in) << "its own part is in place";
}

TEST_F(Plan, CountsThatDoNotAddUpAreRefused) {
  const auto refusal_of = [&](const std::vector<std::size_t>& counts) {
    const std::string text = refusal({Collective::all_gather, ReduceOp::sum, view(out), view(in), 0, counts});
    const CollectiveCall scatter{Collective::reduce_scatter, ReduceOp::sum, view(in), view(out), 0, counts};
    EXPECT_EQ(text.empty(), refusal(scatter).empty());
    return text;
  };
  const char* const expected =
      "all_gather_v: the input has 2 float32, the output 6 float32, for 3 ranks: counts must have 3 lengths, the sum 6, and "
      "2 for rank 1";
  EXPECT_EQ("", refusal_of({4, 2, 0}));
  EXPECT_EQ(expected, refusal_of({})) << "no lengths";
  EXPECT_EQ(expected, refusal_of({4, 2})) << "too few";
  EXPECT_EQ(expected, refusal_of({4, 2, 0, 0})) << "too many";
  EXPECT_EQ(expected, refusal_of({3, 2, 0})) << "a sum too short";
  EXPECT_EQ(expected, refusal_of({4, 2, 1})) << "a sum too long";
  EXPECT_EQ(expected, refusal_of({2, 4, 0})) << "another length for this rank";
  EXPECT_EQ(expected, refusal_of({SIZE_MAX, 2, 5})) << "a sum that wraps";
}

TEST_F(Plan, ShortTensorsOfAListShareAnOperation) {
  std::vector<float> most(4096, 2), more(4097, 3);
  const TensorView tensors[] = {view(out), view(more), {nullptr, 0, DType::float32}, view(most), view(in)};
  const CallPlan plan = plan_of(tensors, ReduceOp::sum, {1, 3, sums_only}, {});
  ASSERT_EQ(2U, plan.operations.size());
  const stream::Operation& packed = plan.operations[0];
  EXPECT_EQ(Collective::all_reduce, packed.collective);
  EXPECT_EQ(256U + 4096U + 256U, packed.elements) << "each in blocks of its own";
  EXPECT_EQ(nullptr, packed.out);
  auto* const values = static_cast<float*>(packed.data);
  EXPECT_EQ(0, values[2]) << "and zeros";
  EXPECT_EQ(2, values[256]);
  EXPECT_EQ(5, values[4357]);
  EXPECT_EQ(more.data(), plan.operations[1].data) << "a long one is not copied";
  EXPECT_EQ(0U, plan.operations[1].tag);
  values[1] = 41;
  values[4357] = 42;
  plan.finish();
  EXPECT_EQ((std::vector<float>{0, 41}), out);
  EXPECT_EQ((std::vector<float>{0, 1, 2, 3, 4, 42}), in);

  const TensorView swapped[] = {view(in), view(out)}, kept[] = {view(out), view(in)};
  const auto tag_of = [](std::span<const TensorView> list) {
    return plan_of(list, ReduceOp::sum, {1, 3, everything}, {}).operations.at(0).tag;
  };
  EXPECT_NE(tag_of(kept), tag_of(swapped)) << "as long together, and not the same";
  EXPECT_EQ(tag_of(kept), tag_of(kept));
  std::vector<std::int32_t> whole(5);
  const TensorView ints[] = {{whole.data(), 2, DType::int32}, {whole.data() + 2, 3, DType::int32}};
  EXPECT_EQ(5U, plan_of(ints, ReduceOp::sum, {1, 3, everything}, {}).operations.at(0).elements) << "which have no exponents";
  EXPECT_TRUE(plan_of({}, ReduceOp::sum, {1, 3, everything}, {}).operations.empty());
}

TEST_F(Plan, AListIsRefusedAsAWhole) {
  std::vector<float> more(20000, 3);
  std::vector<std::int32_t> whole(2);
  const auto refusal_of = [](const std::vector<TensorView>& list, ReduceOp op = ReduceOp::sum) -> std::string {
    try {
      static_cast<void>(plan_of(list, op, {1, 3, sums_only}, 2.0));
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(ErrorCode::bad_argument, error.code());
      return error.what();
    }
  };
  const TensorView ints{whole.data(), 2, DType::int32};
  EXPECT_EQ("all_reduce_coalesced: tensor 1: its type is float16, and that of tensor 0 float32: make one call for each type",
            refusal_of({view(more), {nullptr, 0, DType::float16}}));
  EXPECT_EQ("all_reduce_coalesced: tensor 0: a factor requires a sum of floats, not sum of int32", refusal_of({ints}));
  EXPECT_EQ("all_reduce_coalesced: tensor 1: 5 float32 at a null pointer",
            refusal_of({view(more), {nullptr, 5, DType::float32}}));
  EXPECT_EQ("all_reduce_coalesced: tensor 0: it overlaps tensor 2",
            refusal_of({view(more), view(in), {more.data() + 19999, 1, DType::float32}}));
  EXPECT_NE("", refusal_of({view(more)}, ReduceOp::max));
  EXPECT_EQ(std::vector<float>(20000, 3), more) << "no value was multiplied";
  EXPECT_EQ("", refusal_of({{more.data(), 19999, DType::float32}, {more.data() + 19999, 1, DType::float32}}));
}

TEST_F(Plan, AFactorChangesNoInputButAnInPlaceOne) {
  std::vector<float> before = in, result(6);
  CallPlan plan = plan_of({Collective::all_reduce, ReduceOp::sum, view(in), view(result)}, {1, 3, everything}, 2.0);
  EXPECT_EQ(before, in);
  EXPECT_EQ(10, static_cast<float*>(plan.operations[0].data)[5]);
  plan = plan_of(scatter(), {1, 3, everything}, 2.0);
  EXPECT_EQ(before, in);
  EXPECT_EQ(10, static_cast<float*>(plan.operations[0].data)[5]);
  EXPECT_EQ(out.data(), plan.operations[0].out);
  static_cast<void>(plan_of({Collective::all_reduce, ReduceOp::sum, view(in), view(in)}, {1, 3, everything}, 2.0));
  EXPECT_EQ(10, in[5]);
}

TEST_F(Plan, AnAllReduceIntoAnotherTensorIsCopiedOnlyWhereItMustBeInPlace) {
  std::vector<float> result(6);
  const CollectiveCall apart{Collective::all_reduce, ReduceOp::sum, view(in), view(result)};
  for (const RankTraits& traits : {everything, sums_only}) {
    const CallPlan plan = plan_of(apart, {1, 3, traits}, {});
    EXPECT_EQ(in.data(), plan.operations[0].data);
    EXPECT_EQ(result.data(), plan.operations[0].out);
  }
  RankTraits in_place = everything;
  in_place.every_collective = false;
  in_place.in_place = true;
  const CallPlan plan = plan_of(apart, {1, 3, in_place}, {});
  EXPECT_EQ(result.data(), plan.operations[0].data);
  EXPECT_EQ(nullptr, plan.operations[0].out);
  EXPECT_EQ(in, result);
}

TEST_F(Plan, WhatCannotBeIsRefusedWithTheReason) {
  const auto expect = [](const std::string& text, const char* part) {
    EXPECT_NE(std::string::npos, text.find(part)) << text << ", without " << part;
  };
  expect(refusal({Collective::all_reduce, ReduceOp::max, view(in), view(in)}, sums_only),
         "max of float32 is not possible with ATP");
  std::vector<double> wide(6);
  const TensorView doubles{wide.data(), 6, DType::float64};
  expect(refusal({Collective::reduce, ReduceOp::sum, doubles, doubles}, sums_only), "sum of float64 is not possible");
  EXPECT_EQ("", refusal({Collective::reduce, ReduceOp::sum, doubles, doubles}));
  expect(refusal({Collective::all_reduce, ReduceOp::bit_and, view(in), view(in)}), "band is not defined on float32");
  expect(refusal({Collective::all_reduce, ReduceOp::sum, view(in), view(out)}), "both must have the same length and type");
  expect(refusal({Collective::reduce_scatter, ReduceOp::sum, view(in), view(in)}), "as long as all ranks' outputs");
  expect(refusal({Collective::all_gather, ReduceOp::sum, view(in), view(in)}), "as long as all ranks' inputs");
  expect(refusal({Collective::reduce, ReduceOp::sum, view(in), view(in), 3}), "root rank 3 is not below the world size 3");
  expect(refusal({Collective::all_reduce, ReduceOp::sum, {nullptr, 6, DType::float32}, view(in)}), "null pointer");
  // The second part is rank 1's own; the first is another's.
  const auto part = [&](std::size_t at) { return TensorView{in.data() + at, 2, DType::float32}; };
  EXPECT_EQ("", refusal({Collective::reduce_scatter, ReduceOp::sum, view(in), part(2)}));
  expect(refusal({Collective::reduce_scatter, ReduceOp::sum, view(in), part(0)}), "overlaps");
  const std::size_t counts[] = {3, 2, 1};
  EXPECT_EQ("", refusal({Collective::reduce_scatter, ReduceOp::sum, view(in), part(3), 0, counts}));
  EXPECT_EQ("", refusal({Collective::all_gather, ReduceOp::sum, part(3), view(in), 0, counts}));
  expect(refusal({Collective::reduce_scatter, ReduceOp::sum, view(in), part(2), 0, counts}), "overlaps");
  expect(refusal({Collective::all_gather, ReduceOp::sum, part(2), view(in), 0, counts}), "overlaps");
  expect(refusal({Collective::all_reduce, ReduceOp::max, view(in), view(in)}, everything, 2.0),
         "a factor requires a sum of floats");
  expect(refusal({Collective::broadcast}, everything, 2.0), "a factor requires a sum of floats");
}

TEST_F(Plan, ValuesThatNoEnumeratorHasAreRefused) {
  const auto expect = [](const std::string& text, const char* part) {
    EXPECT_NE(std::string::npos, text.find(part)) << text << ", without " << part;
  };
  TensorView strange = view(in);
  strange.dtype = static_cast<DType>(10);
  expect(refusal({Collective::all_reduce, ReduceOp::sum, strange, strange}), "10 is not an element type");
  expect(refusal({Collective::broadcast, ReduceOp::sum, strange, strange}), "10 is not an element type");
  expect(refusal({Collective::all_reduce, static_cast<ReduceOp>(8), view(in), view(in)}), "8 is not a reduction");
  for (const std::size_t elements : {std::size_t{1} << 57, std::size_t{1} << 62, SIZE_MAX}) {
    const TensorView absurd{in.data(), elements, DType::float32};
    expect(refusal({Collective::all_reduce, ReduceOp::sum, absurd, absurd}), "longer than a process can address");
  }
}

TEST_F(Plan, AFactorRoundsToNearestWhateverTheCallersThreadDoes) {
  in.assign(6, 1.0F);
  ASSERT_EQ(0, std::fesetround(FE_UPWARD));
  const CallPlan plan =
      plan_of({Collective::all_reduce, ReduceOp::sum, view(in), view(in)}, {1, 3, everything}, 1 + 0x1p-30);
  EXPECT_EQ(FE_UPWARD, std::fegetround());
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(std::vector<float>(6, 1.0F), in);
}

}  // namespace
}  // namespace netsum::collective
