// The input is a schedule: which of the packets under way arrives next, again, late, damaged, with others in one batch, or
// never, and when timers fire. Whatever it says, an operation that completes has the right sum on both ranks, and once the
// network is kind again everything completes.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "fuzz/harness.h"
#include "fuzz/under_way.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function

constexpr std::size_t operations = 3;

struct Cluster {
  explicit Cluster(FuzzedDataProvider& input) : job(input.ConsumeIntegralInRange<std::uint32_t>(1, 3)) {
    for (std::size_t number = 0; number < operations; ++number) {
      const std::size_t elements = input.ConsumeIntegralInRange<std::size_t>(0, 400);
      const auto kind = input.ConsumeIntegral<std::uint8_t>();
      floats[number] = kind % 2 != 0;
      if (floats[number]) wires[number] = std::array{WireFormat::native, WireFormat::int8, WireFormat::int4}[kind / 2 % 3];
      for (std::size_t rank = 0; rank < 2; ++rank) {
        tensors[rank][number].resize(elements);
        for (std::size_t i = 0; i < elements; ++i) tensors[rank][number][i] = contribution(rank, number, i);
        if (kind >= 128) apart[rank][number].resize(elements);
      }
    }
  }

  // Powers of two apart between ranks and operations: a part that is missing, foreign or counted twice shows in the sum.
  // What is rounded to few bits is the same on both.
  [[nodiscard]] std::int32_t value(std::size_t rank, std::size_t number, std::size_t i) const {
    return static_cast<std::int32_t>((i % 251 + 1) << (rank == 0 || rounds_blocks(wires[number]) ? 0 : 9) << (2 * number));
  }
  [[nodiscard]] std::int32_t contribution(std::size_t rank, std::size_t number, std::size_t i) const {
    const std::int32_t number_value = value(rank, number, i);
    return floats[number] ? std::bit_cast<std::int32_t>(static_cast<float>(number_value)) : number_value;
  }
  [[nodiscard]] std::int32_t expected(std::size_t number, std::size_t i) const {
    const std::int32_t sum = value(0, number, i) + value(1, number, i);
    return floats[number] ? std::bit_cast<std::int32_t>(static_cast<float>(sum)) : sum;
  }

  [[nodiscard]] const std::vector<std::int32_t>& results(std::size_t rank, std::size_t number) const {
    return apart[rank][number].empty() ? tensors[rank][number] : apart[rank][number];
  }
  // Rounded to nearest, by steps that are an eighth of a block's largest value or shorter, of 4 bits a half of it.
  void check_rounded(std::size_t rank, std::size_t number) const {
    const std::vector<std::int32_t>& own = results(rank, number);
    for (std::size_t i = 0; i < own.size(); ++i) {
      std::int32_t largest = 0;
      for (std::size_t j = i / 64 * 64; j < std::min(own.size(), i / 64 * 64 + 64); ++j) {
        largest = std::max(largest, value(rank, number, j));
      }
      const float most = (wires[number] == WireFormat::int4 ? 0.75F : 0.125F) * static_cast<float>(largest);
      const float exact = std::bit_cast<float>(expected(number, i));
      fuzz::check(std::abs(std::bit_cast<float>(own[i]) - exact) <= most, "the rounded sum is near");
    }
    const std::size_t other = 1 - rank;
    fuzz::check(!completed[other][number] || results(other, number) == own, "ranks have the same bits");
  }

  void submit(std::size_t rank) {
    const std::size_t number = submitted[rank];
    if (number == operations) return;
    stream::Operation operation;
    operation.number = number;
    operation.dtype = floats[number] ? DType::float32 : DType::int32;
    operation.elements = tensors[rank][number].size();
    operation.data = tensors[rank][number].data();
    if (!apart[rank][number].empty()) operation.out = apart[rank][number].data();
    operation.wire = wires[number];
    operation.nearest = true;
    fuzz::check(job.workers[rank].submit(operation, now, outboxes[rank]), "an operation is taken");
    ++submitted[rank];
    settle(rank);
  }

  void fire(std::size_t rank) {
    const Time timeout = job.workers[rank].next_timeout();
    if (timeout == never) return;
    now = std::max(now, timeout);
    job.workers[rank].on_timer(now, outboxes[rank]);
    settle(rank);
  }

  void deliver(const fuzz::Datagram& datagram) {
    const RxView view{datagram.bytes, datagram.from};
    if (datagram.to == fuzz::endpoint_of(255)) {
      job.aggregator.on_packets({&view, 1}, now, outboxes[2]);
      outboxes[2].flush();
      return;
    }
    const std::size_t rank = datagram.to == fuzz::endpoint_of(0) ? 0 : 1;
    job.workers[rank].on_packets({&view, 1}, now, outboxes[rank]);
    settle(rank);
  }

  // All that is under way to the switch, at once: a result that it still lends to the sink is not overwritten.
  void deliver_batch() {
    const std::vector<fuzz::Datagram> batch = under_way.take_all_to(fuzz::endpoint_of(255));
    job.aggregator.on_packets(fuzz::views_of(batch), now, outboxes[2]);
    outboxes[2].flush();
  }

  void settle(std::size_t rank) {
    outboxes[rank].flush();
    for (const std::uint64_t number : job.workers[rank].take_completed()) {
      fuzz::check(number < operations && !completed[rank][number], "an operation completes once");
      completed[rank][number] = true;
      if (rounds_blocks(wires[number]) && tensors[rank][number].size() > stream::most_plain_floats) {
        check_rounded(rank, number);
        continue;
      }
      for (std::size_t i = 0; i < tensors[rank][number].size(); ++i) {
        fuzz::check(results(rank, number)[i] == expected(number, i), "the sum is right");
      }
    }
    fuzz::check(!job.workers[rank].failure(), "ranks that agree do not fail");
  }

  [[nodiscard]] bool all_completed() const {
    return std::all_of(std::begin(completed), std::end(completed), [](const auto& rank) {
      return std::all_of(std::begin(rank), std::end(rank), [](bool c) { return c; });
    });
  }

  fuzz::Job job;
  Time now{};
  fuzz::UnderWay under_way;
  fuzz::RecordingSink outboxes[3] = {{fuzz::endpoint_of(0), under_way.sent},
                                     {fuzz::endpoint_of(1), under_way.sent},
                                     {fuzz::endpoint_of(255), under_way.sent}};
  bool floats[operations] = {};
  WireFormat wires[operations] = {};
  std::vector<std::int32_t> tensors[2][operations], apart[2][operations];  // bits of int32 or float32
  std::size_t submitted[2] = {};
  bool completed[2][operations] = {};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  Cluster cluster(input);
  while (input.remaining_bytes() > 0) {
    const auto action = input.ConsumeIntegralInRange<std::uint8_t>(0, 15);
    cluster.now += std::chrono::microseconds(action);
    const std::size_t rank = action % 2;
    if (action < 2) {
      cluster.submit(rank);
    } else if (action < 4) {
      cluster.fire(rank);
    } else if (!cluster.under_way.sent.empty()) {
      const std::size_t index = input.ConsumeIntegral<std::uint8_t>() % cluster.under_way.sent.size();
      if (action < 6) {
        cluster.under_way.drop(index);
      } else if (action == 14) {
        if (const auto damaged = cluster.under_way.damaged(index, input)) cluster.deliver(*damaged);
      } else if (action == 15) {
        cluster.deliver_batch();
      } else {
        cluster.deliver(cluster.under_way.take(index, action < 9));
      }
    }
  }

  // From here on every packet arrives, oldest first: all that is left must end.
  for (std::size_t number = 0; number < operations; ++number) {
    cluster.submit(0);
    cluster.submit(1);
  }
  for (int step = 0; step < 100'000 && !cluster.all_completed(); ++step) {
    if (!cluster.under_way.sent.empty()) {
      cluster.deliver(cluster.under_way.take(0));
    } else {
      cluster.fire(0);
      cluster.fire(1);
    }
  }
  fuzz::check(cluster.all_completed(), "everything completes once the network is kind");
  return 0;
}
