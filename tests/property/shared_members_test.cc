// Ranks that share memory, in one thread: any interleaving of their steps, and any age of what they see of each other, gives
// the sums that packets give; a rank that lies spoils its own job's sums and nothing else.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/kernels.h"
#include "protocol/shared/member.h"
#include "protocol/shared/small_member.h"
#include "support/virtual_network.h"

namespace netsum::shared {
namespace {

using netsum::testing::Random;
using stream::Collective;
using stream::Operation;

using Bytes = std::vector<std::byte>;

constexpr std::size_t row_bytes = 2048;
constexpr std::uint32_t arena = 3;

struct Rank {
  std::vector<RowHeader> headers;
  Bytes staged, results, arena_memory;
  std::vector<Bytes> tensors;   // by operation; in place of those in the arena: empty
  std::vector<Bytes> expected;  // like the next
  std::vector<std::byte*> data;
  std::vector<Progress> seen;  // of the others
  std::unique_ptr<Member> member;
  std::size_t submitted = 0, completed = 0;
};

struct Shape {
  std::uint32_t ranks, window;
  bool rotate;
  std::uint32_t lane, lanes;
};

class Cluster {
 public:
  Cluster(std::uint64_t seed, Shape shape) : random_(seed), shape_(shape), ranks_(shape.ranks) {
    for (Rank& rank : ranks_) {
      rank.headers.resize(2 * shape.window);
      rank.staged.resize(shape.window * row_bytes);
      rank.results.resize(shape.window * row_bytes);
      rank.seen.resize(shape.ranks);
    }
  }

  void add_operations(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      Operation operation;
      operation.number = i * 3;  // others were short, and are not of this lane
      operation.collective = std::array{Collective::all_reduce, Collective::all_reduce, Collective::broadcast,
                                        Collective::barrier}[random_.below(4)];
      operation.dtype = static_cast<DType>(random_.below(4));
      operation.op = static_cast<ReduceOp>(random_.below(2));
      operation.elements = random_.below(3) == 0 ? random_.below(300) : random_.below(20'000);
      if (operation.collective == Collective::barrier) operation.elements = 0;
      operation.root = static_cast<std::uint32_t>(random_.below(shape_.ranks));
      operations_.push_back(operation);
    }
    for (Rank& rank : ranks_) rank.arena_memory.resize(80'000 * operations_.size());
    for (std::size_t i = 0; i < count; ++i) make_tensors(i);
  }

  void make_members() {
    for (std::uint32_t r = 0; r < shape_.ranks; ++r) {
      std::vector<PeerMemory> peers;
      for (const Rank& rank : ranks_) peers.push_back({rank.headers.data(), rank.staged.data(), rank.results.data()});
      MemberConfig config;
      config.rank = r;
      config.world_size = shape_.ranks;
      config.lane = shape_.lane;
      config.lanes = shape_.lanes;
      config.rotate = shape_.rotate;
      config.window = shape_.window;
      config.row_bytes = row_bytes;
      Rank& own = ranks_[r];
      own.member = std::make_unique<Member>(config, LaneMemory{own.headers.data(), own.staged.data(), own.results.data()},
                                            std::move(peers));
      for (std::uint32_t other = 0; other < shape_.ranks; ++other) {
        own.member->set_arena(other, arena, ranks_[other].arena_memory);
      }
    }
  }

  // One step of one rank, which has looked at some of the others.
  void step(std::uint32_t r) {
    Rank& rank = ranks_[r];
    while (rank.submitted < operations_.size() && random_.below(2) == 0) {
      Call call;
      call.operation = operations_[rank.submitted];
      call.operation.data = rank.data[rank.submitted];
      if (rank.tensors[rank.submitted].empty()) {
        call.arena = arena;
        call.offset = rank.submitted * 80'000;
      }
      if (!rank.member->submit(call)) break;
      ++rank.submitted;
    }
    for (std::uint32_t other = 0; other < shape_.ranks; ++other) {
      if (other != r && random_.below(3) != 0) rank.seen[other] = ranks_[other].member->progress();
    }
    static_cast<void>(rank.member->advance(rank.seen));
    while (const auto number = rank.member->take_completed()) {
      ASSERT_EQ(*number, operations_[rank.completed].number);
      std::byte* const data = rank.data[rank.completed];
      const Bytes& expected = rank.expected[rank.completed];
      check_lane(data, expected, operations_[rank.completed]);
      std::fill_n(data, expected.size(), std::byte{0x5a});  // it is the caller's again
      ++rank.completed;
    }
  }

  void run() {
    // Some ranks are slow, for a while.
    std::uint64_t steps = 0, slow = 0;
    while (
        std::any_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) { return rank.completed < operations_.size(); })) {
      if (steps % 64 == 0) slow = random_.next();
      const auto r = static_cast<std::uint32_t>(random_.below(shape_.ranks));
      ASSERT_LT(++steps, 4'000'000U) << "no end";
      if ((slow >> r & 1) != 0 && random_.below(50) != 0) continue;
      step(r);
      if (::testing::Test::HasFatalFailure()) return;
      ASSERT_FALSE(ranks_[r].member->failure());
    }
  }

  std::vector<Rank>& ranks() { return ranks_; }
  Random& random() { return random_; }
  std::vector<Operation>& operations() { return operations_; }

 private:
  void make_tensors(std::size_t index) {
    const Operation& operation = operations_[index];
    const std::size_t width = operation.collective == Collective::broadcast ? 1 : bytes_of(operation.dtype);
    const std::size_t bytes = operation.elements * width;
    std::vector<const std::byte*> sources;
    for (Rank& rank : ranks_) {
      const bool in_arena = random_.below(2) == 0;
      rank.tensors.emplace_back(in_arena ? 0 : bytes + 1);
      std::byte* const data = in_arena ? rank.arena_memory.data() + index * 80'000 : rank.tensors.back().data();
      rank.data.push_back(data);
      for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(random_.next());
      if (operation.dtype != DType::int32) {  // no NaN, whose bits are nobody's concern here
        for (std::size_t i = 1; i < bytes; i += 2) data[i] &= std::byte{0xbf};
      }
      sources.push_back(data);
    }
    Bytes result(bytes);
    if (operation.collective == Collective::broadcast) {
      std::copy_n(sources[operation.root], bytes, result.data());
    } else if (bytes != 0) {
      kernels::sum_all(operation.dtype, result.data(), nullptr, sources, operation.elements,
                       operation.op == ReduceOp::avg ? shape_.ranks : 1, stream::wire_dtype(operation));
    }
    for (Rank& rank : ranks_) rank.expected.push_back(result);
  }

  // The rows of this lane alone: the others' are still as they were.
  void check_lane(const std::byte* data, const Bytes& expected, const Operation& operation) const {
    if (shape_.lanes == 1 && !expected.empty()) {
      ASSERT_EQ(std::memcmp(data, expected.data(), expected.size()), 0) << stream::to_string(operation);
    }
  }

  Random random_;
  Shape shape_;
  std::vector<Rank> ranks_;
  std::vector<Operation> operations_;
};

RC_GTEST_PROP(SharedMembers, SumInAnyInterleaving, ()) {
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  Random random(seed);
  const Shape shape{1 + static_cast<std::uint32_t>(random.below(5)), 1 + static_cast<std::uint32_t>(random.below(4)),
                    random.below(2) == 0, 0, 1};
  Cluster cluster(seed, shape);
  cluster.add_operations(1 + random.below(14));
  cluster.make_members();
  cluster.run();
  RC_ASSERT(!::testing::Test::HasFailure());
}

RC_GTEST_PROP(SharedMembers, EndOnLanesThatHaveNoRows, ()) {
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  Random random(seed);
  const Shape shape{1 + static_cast<std::uint32_t>(random.below(4)), 2, random.below(2) == 0,
                    static_cast<std::uint32_t>(random.below(8)), 8};
  Cluster cluster(seed, shape);
  cluster.add_operations(10);
  cluster.make_members();
  cluster.run();
  RC_ASSERT(!::testing::Test::HasFailure());
}

TEST(SharedMember, RanksThatCallDifferentThingsFailAndNameBoth) {
  for (int field = 0; field < 6; ++field) {
    for (const bool rotate : {false, true}) {
      Cluster cluster(1, {2, 2, rotate, 0, 1});
      cluster.operations().resize(1);
      Operation& operation = cluster.operations().front();
      operation.elements = 3000;
      Bytes tensors[2] = {Bytes(16'000), Bytes(16'000)};
      cluster.make_members();
      for (std::uint32_t r = 0; r < 2; ++r) {
        Call call{operation, 0, 0};
        call.operation.data = tensors[r].data();
        if (r == 1) {
          if (field == 0) call.operation.number = 1;
          if (field == 1) call.operation.elements = 3001;
          if (field == 2) call.operation.dtype = DType::int32;
          if (field == 3) call.operation.op = ReduceOp::avg;
          if (field == 4) call.operation.tag = 9;
          if (field == 5) call.operation.collective = Collective::broadcast;
        }
        ASSERT_TRUE(cluster.ranks()[r].member->submit(call));
      }
      const Bytes before = tensors[0];
      for (int i = 0; i < 20; ++i) {
        for (std::uint32_t r = 0; r < 2; ++r) {
          const std::array others{cluster.ranks()[0].member->progress(), cluster.ranks()[1].member->progress()};
          static_cast<void>(cluster.ranks()[r].member->advance(others));
        }
      }
      const auto& failure =
          cluster.ranks()[0].member->failure() ? cluster.ranks()[0].member->failure() : cluster.ranks()[1].member->failure();
      ASSERT_TRUE(failure) << field;
      EXPECT_EQ(failure->first_rank + failure->second_rank, 1U);
      EXPECT_FALSE(cluster.ranks()[0].member->take_completed());
      EXPECT_FALSE(cluster.ranks()[1].member->take_completed());
      EXPECT_TRUE(tensors[0] == before);
    }
  }
}

TEST(SharedMember, SaysWhomItWaitsFor) {
  Cluster cluster(2, {3, 2, false, 0, 1});
  cluster.operations().resize(1);
  cluster.operations().front().elements = 3000;
  cluster.operations().front().number = 14;
  cluster.make_members();
  Bytes tensor(12'000), tensor_1(12'000);
  Call call{cluster.operations().front(), 0, 0};
  Member& member = *cluster.ranks()[0].member;
  const std::vector<Progress> nobody(3);
  EXPECT_FALSE(member.stall(nobody));
  call.operation.data = tensor.data();
  ASSERT_TRUE(member.submit(call));
  while (member.advance(nobody)) {
  }
  ASSERT_TRUE(member.stall(nobody));
  EXPECT_EQ(member.stall(nobody)->operation, 14U);
  EXPECT_EQ(member.stall(nobody)->missing.size(), 2U);
  const std::vector<Progress> one_came{{}, {2, 2, 0}, {}};
  EXPECT_TRUE(member.stall(one_came)->missing.contains(2));
  EXPECT_FALSE(member.stall(one_came)->missing.contains(1));
  // A rank that is not the owner, and has all but the owner's result.
  call.operation.data = tensor_1.data();
  Member& other = *cluster.ranks()[1].member;
  ASSERT_TRUE(other.submit(call));
  const std::vector<Progress> all_staged{{2, 0, 0}, {}, {2, 2, 0}};
  while (other.advance(all_staged)) {
  }
  EXPECT_TRUE(other.stall(all_staged)->missing.contains(0));
  EXPECT_EQ(other.stall(all_staged)->missing.size(), 1U);
}

// Whatever a rank says of itself: the others read and write nothing that is not theirs (AddressSanitizer looks), and end in
// sums or in a failure, or wait.
RC_GTEST_PROP(SharedMembers, SurviveALiar, ()) {
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  Random random(seed);
  Cluster cluster(seed, {3, 2, random.below(2) == 0, 0, 1});
  cluster.add_operations(4);
  cluster.make_members();
  Rank& liar = cluster.ranks()[2];
  for (int i = 0; i < 600; ++i) {
    for (std::uint32_t r = 0; r < 2; ++r) {
      Rank& rank = cluster.ranks()[r];
      while (rank.submitted < 4) {
        Call call{cluster.operations()[rank.submitted], 0, 0};
        call.operation.data = rank.data[rank.submitted];
        if (!rank.member->submit(call)) break;
        ++rank.submitted;
      }
      rank.seen[1 - r] = cluster.ranks()[1 - r].member->progress();
      rank.seen[2] = {random.next() >> random.below(64), random.next() >> random.below(64),
                      random.next() >> random.below(64)};
      const Operation& operation = cluster.operations()[random.below(4)];
      RowHeader& header = liar.headers[random.below(liar.headers.size())];
      header = {random.below(8) == 0 ? random.next() : operation.number, random.next() >> random.below(64),
                stream::signature_of(operation, 0), static_cast<std::uint32_t>(random.next() >> (32 + random.below(32)))};
      if (random.below(3) != 0) header.arena = random.below(2) == 0 ? arena : 0;
      static_cast<void>(rank.member->advance(rank.seen));
      while (rank.member->take_completed()) {
      }
    }
  }
}

struct SmallRank {
  std::array<SmallSlot, 2> slots;
  std::unique_ptr<SmallMember> member;
  std::vector<std::uint64_t> seen;
  std::size_t done = 0;
  bool posted = false;
  Bytes tensor;
};

RC_GTEST_PROP(SharedMembers, SumShortTensorsInAnyInterleaving, ()) {
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  Random random(seed);
  const auto size = 1 + static_cast<std::uint32_t>(random.below(5));
  std::vector<SmallRank> ranks(size);
  for (std::uint32_t r = 0; r < size; ++r) {
    std::vector<const SmallSlot*> peers;
    for (const SmallRank& rank : ranks) peers.push_back(rank.slots.data());
    ranks[r].member = std::make_unique<SmallMember>(r, size, ranks[r].slots.data(), std::move(peers));
    ranks[r].seen.resize(size);
  }
  constexpr std::size_t operations = 40;
  std::vector<Operation> calls(operations);
  for (std::size_t i = 0; i < operations; ++i) {
    calls[i].number = i;
    calls[i].dtype = DType::int32;
    calls[i].elements = random.below(small_bytes / (random.below(8) == 0 ? 16 : 256));
    if (random.below(4) == 0) calls[i].collective = Collective::broadcast;
    calls[i].root = static_cast<std::uint32_t>(random.below(size));
    RC_ASSERT(is_small(calls[i], size));
  }
  const auto input = [](std::uint32_t rank, std::size_t call) { return static_cast<std::uint8_t>(rank * 5 + call); };
  std::size_t steps = 0;
  while (std::any_of(ranks.begin(), ranks.end(), [](const SmallRank& rank) { return rank.done < operations; })) {
    RC_ASSERT(++steps < 100'000U);
    const auto r = static_cast<std::uint32_t>(random.below(size));
    SmallRank& rank = ranks[r];
    if (rank.done == operations) continue;
    Operation call = calls[rank.done];
    if (!rank.posted) {
      rank.tensor.assign(call.elements * 4, std::byte{0});
      for (std::size_t i = 0; i < rank.tensor.size(); i += 4) rank.tensor[i] = static_cast<std::byte>(input(r, rank.done));
      call.data = rank.tensor.data();
      rank.member->post(call);
      rank.posted = true;
    }
    for (std::uint32_t other = 0; other < size; ++other) {
      if (random.below(2) == 0) rank.seen[other] = ranks[other].member->posted();
    }
    if (!rank.member->finish(rank.seen)) continue;
    std::uint32_t sum = 0;
    for (std::uint32_t other = 0; other < size; ++other) sum += input(other, rank.done);
    if (call.collective == Collective::broadcast) sum = input(call.root, rank.done);
    const std::size_t bytes = call.collective == Collective::broadcast ? call.elements : call.elements * 4;
    for (std::size_t i = 0; i + 4 <= bytes; i += 4) {
      std::uint32_t value = 0;
      std::memcpy(&value, rank.tensor.data() + i, 4);
      RC_ASSERT(value == sum);
    }
    ++rank.done;
    rank.posted = false;
  }
}

TEST(SmallMember, RanksThatCallDifferentThingsFailAndNameBoth) {
  std::vector<SmallRank> ranks(2);
  for (std::uint32_t r = 0; r < 2; ++r) {
    std::vector<const SmallSlot*> peers;
    for (const SmallRank& rank : ranks) peers.push_back(rank.slots.data());
    ranks[r].member = std::make_unique<SmallMember>(r, 2, ranks[r].slots.data(), std::move(peers));
    ranks[r].tensor.resize(80);
    Operation call;
    call.number = 5;
    call.elements = 10 + r;
    call.data = ranks[r].tensor.data();
    ranks[r].member->post(call);
  }
  for (std::uint32_t r = 0; r < 2; ++r) {
    EXPECT_TRUE(ranks[r].member->missing(std::array<std::uint64_t, 2>{}).contains(1 - r));
    EXPECT_FALSE(ranks[r].member->finish(std::array<std::uint64_t, 2>{1, 1}));
    ASSERT_TRUE(ranks[r].member->failure());
    EXPECT_EQ(ranks[r].member->failure()->operation, 5U);
    EXPECT_EQ(ranks[r].member->failure()->second_rank, 1 - r);
  }
}

}  // namespace
}  // namespace netsum::shared
