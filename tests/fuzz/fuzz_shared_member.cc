// A hostile member of a group that shares memory: any bytes in its control words and rows, at any time. The others, whose
// memory is as long as it must be and no longer, end in sums, in a failure, or wait for somebody whom they can name.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "fuzz/harness.h"
#include "protocol/shared/member.h"
#include "protocol/shared/small_member.h"

namespace {

using namespace netsum;          // NOLINT(google-build-using-namespace): a program of one function
using namespace netsum::shared;  // NOLINT(google-build-using-namespace)
using stream::Collective;

constexpr std::uint32_t ranks = 3, liar = 2;
constexpr std::size_t row_bytes = 1024;
using Bytes = std::vector<std::byte>;

void scribble(FuzzedDataProvider& input, std::span<std::byte> memory) {
  const auto bytes = input.ConsumeBytes<std::uint8_t>(input.ConsumeIntegralInRange<std::size_t>(1, 16));
  if (bytes.empty()) return;
  const std::size_t at = input.ConsumeIntegral<std::uint16_t>() % memory.size();
  std::memcpy(memory.data() + at, bytes.data(), std::min(bytes.size(), memory.size() - at));
}

std::uint64_t number(FuzzedDataProvider& input) {
  return input.ConsumeBool() ? input.ConsumeIntegralInRange<std::uint64_t>(0, 20)
                             : input.ConsumeIntegral<std::uint64_t>() >> input.ConsumeIntegralInRange(0, 63);
}

stream::Operation operation_of(FuzzedDataProvider& input, std::uint64_t number, std::size_t most_elements) {
  stream::Operation operation;
  operation.number = number;
  operation.collective = input.PickValueInArray({Collective::all_reduce, Collective::broadcast, Collective::barrier});
  operation.dtype = static_cast<DType>(input.ConsumeIntegralInRange(0, 3));
  operation.op = input.ConsumeBool() ? ReduceOp::avg : ReduceOp::sum;
  operation.elements =
      operation.collective == Collective::barrier ? 0 : input.ConsumeIntegralInRange<std::size_t>(0, most_elements);
  operation.root = input.ConsumeIntegralInRange<std::uint32_t>(0, ranks - 1);
  return operation;
}

std::size_t bytes_of_tensor(const stream::Operation& operation) {
  return operation.elements * (operation.collective == Collective::broadcast ? 1 : bytes_of(operation.dtype));
}

struct Lane {
  explicit Lane(std::uint32_t window) : headers(2 * window), staged(window * row_bytes), results(window * row_bytes) {}
  std::vector<RowHeader> headers;
  Bytes staged, results, arena;
  Progress shown;
};

void long_tensors(FuzzedDataProvider& input) {
  MemberConfig config;
  config.world_size = ranks;
  config.window = input.ConsumeIntegralInRange<std::uint32_t>(1, 3);
  config.row_bytes = row_bytes;
  config.rotate = input.ConsumeBool();
  std::vector<Lane> lanes(ranks, Lane(config.window));
  for (Lane& lane : lanes) lane.arena.resize(input.ConsumeIntegralInRange<std::size_t>(1, 9000));
  std::vector<stream::Operation> operations;
  for (std::uint64_t i = 0; i < 3; ++i) operations.push_back(operation_of(input, i * 2, 2000));

  struct Honest {
    std::unique_ptr<Member> member;
    std::vector<Bytes> tensors;
    std::size_t completed = 0;
  };
  std::array<Honest, liar> honest;
  for (std::uint32_t rank = 0; rank < liar; ++rank) {
    std::vector<PeerMemory> peers;
    for (const Lane& lane : lanes) peers.push_back({lane.headers.data(), lane.staged.data(), lane.results.data()});
    config.rank = rank;
    Lane& own = lanes[rank];
    honest[rank].member = std::make_unique<Member>(
        config, LaneMemory{own.headers.data(), own.staged.data(), own.results.data()}, std::move(peers));
    for (std::uint32_t other = 0; other < ranks; ++other) {
      honest[rank].member->set_arena(other, 1 + input.ConsumeIntegralInRange<std::uint32_t>(0, 3), lanes[other].arena);
    }
    for (const stream::Operation& operation : operations) {
      Call call{operation, 0, 0};
      call.operation.data = honest[rank].tensors.emplace_back(bytes_of_tensor(operation)).data();
      fuzz::check(honest[rank].member->submit(call), "there is room for three");
    }
  }

  std::array<Progress, ranks> seen;
  const auto step = [&](std::uint32_t rank) {
    for (std::uint32_t other = 0; other < ranks; ++other) seen[other] = lanes[other].shown;
    Honest& one = honest[rank];
    bool moved = one.member->advance(seen);
    lanes[rank].shown = one.member->progress();
    while (const auto ended = one.member->take_completed()) {
      fuzz::check(*ended == operations[one.completed].number, "in the order of calls");
      ++one.completed;
      moved = true;
    }
    return moved;
  };
  const auto lie = [&] {
    Lane& lane = lanes[liar];
    switch (input.ConsumeIntegralInRange(0, 5)) {
      case 0:
        lane.shown = {number(input), number(input), number(input)};
        break;
      case 1:
        lane.shown = {~std::uint64_t{0}, ~std::uint64_t{0}, ~std::uint64_t{0}};
        break;
      case 2:
        scribble(input, std::as_writable_bytes(std::span(lane.headers)));
        break;
      case 3:
        scribble(input, input.ConsumeBool() ? lane.staged : lane.results);
        break;
      default: {  // as a member would, but for where the tensor is
        const stream::Operation& operation = operations[input.ConsumeIntegral<std::uint8_t>() % operations.size()];
        for (RowHeader& header : lane.headers) {
          header = {operation.number, number(input), stream::signature_of(operation, 0),
                    input.ConsumeBool() ? input.ConsumeIntegralInRange<std::uint32_t>(0, 5)
                                        : input.ConsumeIntegral<std::uint32_t>()};
        }
      }
    }
  };
  while (input.remaining_bytes() > 0) {
    lie();
    static_cast<void>(step(input.ConsumeIntegralInRange<std::uint32_t>(0, liar - 1)));
  }
  for (int quiet = 0, steps = 0; quiet < 2; ++quiet) {
    fuzz::check(++steps < 10'000, "nobody moves for ever");
    for (std::uint32_t rank = 0; rank < liar; ++rank) {
      if (step(rank)) quiet = -1;
    }
  }
  for (std::uint32_t rank = 0; rank < liar; ++rank) {
    const Member& member = *honest[rank].member;
    for (std::uint32_t other = 0; other < ranks; ++other) seen[other] = lanes[other].shown;
    const auto stall = member.stall(seen);
    fuzz::check(member.failure() || member.idle() || (stall && !stall->missing.empty()), "who waits can say for whom");
    fuzz::check(!member.idle() || honest[rank].completed == operations.size(), "all that was called has ended");
  }
}

void short_tensors(FuzzedDataProvider& input) {
  struct Rank {
    std::vector<SmallSlot> slots = std::vector<SmallSlot>(2);
    std::uint64_t posted = 0;
  };
  std::vector<Rank> all(ranks);
  std::vector<std::unique_ptr<SmallMember>> members;
  for (std::uint32_t rank = 0; rank < liar; ++rank) {
    std::vector<const SmallSlot*> peers;
    for (const Rank& each : all) peers.push_back(each.slots.data());
    members.push_back(std::make_unique<SmallMember>(rank, ranks, all[rank].slots.data(), std::move(peers)));
  }
  for (std::uint64_t call = 0; call < 4 && input.remaining_bytes() > 0; ++call) {
    stream::Operation operation = operation_of(input, call, 300);
    std::array<Bytes, liar> tensors;
    for (std::uint32_t rank = 0; rank < liar; ++rank) {
      tensors[rank].resize(bytes_of_tensor(operation));
      operation.data = tensors[rank].data();
      members[rank]->post(operation);
      all[rank].posted = members[rank]->posted();
    }
    for (SmallSlot& slot : all[liar].slots) {
      slot.operation = input.ConsumeIntegralInRange(0, 7) == 0 ? number(input) : operation.number;
      slot.signature = input.ConsumeIntegralInRange(0, 7) == 0 ? 1 : stream::signature_of(operation, 0);
      scribble(input, std::span(slot.values).first(std::max<std::size_t>(1, bytes_of_tensor(operation))));
    }
    all[liar].posted = input.ConsumeIntegralInRange(0, 3) == 0 ? number(input) : call + 1;
    for (std::uint32_t rank = 0; rank < liar; ++rank) {
      const std::array<std::uint64_t, ranks> seen{all[0].posted, all[1].posted, all[2].posted};
      if (members[rank]->finish(seen)) continue;
      fuzz::check(members[rank]->failure() || members[rank]->missing(seen).contains(liar), "who waits can say for whom");
      return;
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  input.ConsumeIntegralInRange(0, 3) == 0 ? short_tensors(input) : long_tensors(input);
  return 0;
}
