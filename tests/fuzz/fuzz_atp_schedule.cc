// The input is a schedule of an ATP job below two levels of switches with a few slots: which of the packets under way
// arrives next, again, late, damaged, marked, with others in one batch, or never, when timers fire, and when a switch
// forgets the job or learns of it again. Whatever it says, an operation that completes has the right sum on every rank, and
// once the network is kind again everything completes.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <bit>
#include <map>

#include "fuzz/atp_harness.h"
#include "fuzz/under_way.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function

constexpr std::size_t operations = 3;

fuzz::AtpSettings settings_of(FuzzedDataProvider& input) {
  fuzz::AtpSettings settings;
  settings.slots = input.ConsumeIntegralInRange<std::uint32_t>(1, 4);
  settings.window = input.ConsumeIntegralInRange<std::uint32_t>(1, 12);
  const auto numbers = input.ConsumeIntegralInRange<std::uint8_t>(0, 3);
  settings.saturating = (numbers & 1) != 0;
  settings.scaling = (numbers & 2) != 0 ? atp::Scaling::dynamic : atp::Scaling::fixed;
  settings.congestion_control = input.ConsumeBool();
  settings.indexing = static_cast<atp::Indexing>(input.ConsumeIntegralInRange<int>(0, 2));
  return settings;
}

enum class Kind : std::uint8_t { integers, small, overflowing, average, broadcast };

struct Cluster {
  explicit Cluster(FuzzedDataProvider& input) : job(settings_of(input)) {
    for (std::size_t number = 0; number < operations; ++number) {
      kinds[number] = static_cast<Kind>(input.ConsumeIntegralInRange<int>(0, 4));
      const std::size_t elements = input.ConsumeIntegralInRange<std::size_t>(0, 50);
      for (std::uint32_t rank = 0; rank < fuzz::atp_ranks; ++rank) {
        tensors[rank][number].resize(elements);
        for (std::size_t i = 0; i < elements; ++i) tensors[rank][number][i] = contribution(rank, number, i);
      }
    }
  }

  // Powers of two apart between ranks: a part that is missing, foreign or counted twice shows in the sum.
  [[nodiscard]] std::int32_t value(std::uint32_t rank, std::size_t number, std::size_t i) const {
    switch (kinds[number]) {
      case Kind::integers:
      case Kind::broadcast:
        return static_cast<std::int32_t>((i % 251 + 1) << (9 * rank)) + static_cast<std::int32_t>(number);
      case Kind::small:
        return 1 << (2 * rank);  // the sum fits: 21 times the scale
      default:
        return static_cast<std::int32_t>(i % 3 + 1) << (2 * rank);
    }
  }
  [[nodiscard]] bool is_float(std::size_t number) const {
    return kinds[number] != Kind::integers && kinds[number] != Kind::broadcast;
  }
  [[nodiscard]] std::int32_t bits(std::size_t number, std::int32_t number_value) const {
    return is_float(number) ? std::bit_cast<std::int32_t>(static_cast<float>(number_value)) : number_value;
  }
  [[nodiscard]] std::int32_t contribution(std::uint32_t rank, std::size_t number, std::size_t i) const {
    return bits(number, value(rank, number, i));
  }
  [[nodiscard]] std::int32_t expected(std::size_t number, std::size_t i) const {
    if (kinds[number] == Kind::broadcast) return value(1, number, i);
    const std::int32_t sum = value(0, number, i) + value(1, number, i) + value(2, number, i);
    return bits(number, kinds[number] == Kind::average ? sum / 3 : sum);
  }

  void submit(std::uint32_t rank) {
    const std::size_t number = submitted[rank];
    if (number == operations) return;
    stream::Operation operation;
    operation.number = number;
    operation.dtype = is_float(number) ? DType::float32 : DType::int32;
    operation.elements = tensors[rank][number].size();
    operation.data = tensors[rank][number].data();
    if (kinds[number] == Kind::average) operation.op = ReduceOp::avg;
    if (kinds[number] == Kind::broadcast) {
      operation.collective = stream::Collective::broadcast;
      operation.elements *= 4;
      operation.root = 1;
    }
    fuzz::check(job.workers[rank].submit(operation, now, outbox(fuzz::atp_rank(rank))), "an operation is taken");
    ++submitted[rank];
    settle(rank);
  }

  void fire(std::uint32_t rank) {
    const Time timeout = job.workers[rank].next_timeout();
    if (timeout == never) return;
    now = std::max(now, timeout);
    job.workers[rank].on_timer(now, outbox(fuzz::atp_rank(rank)));
    settle(rank);
  }

  fuzz::RecordingSink& outbox(const Endpoint& self) {
    return outboxes.try_emplace(self, self, under_way.sent).first->second;
  }

  void receive(const Endpoint& host, std::span<const RxView> views, bool congested) {
    fuzz::RecordingSink& out = outbox(host);
    packets[host] += views.size();
    if (host == fuzz::atp_server) {
      job.server.on_packets(views, congested, now, out);
      out.flush();
      job.check_server(packets[host]);
      const auto& c = *job.server.job_counters(fuzz::job_epoch);
      fuzz::check(c.dropped_early == 0 && c.dropped_mismatch == 0, "ranks that agree are neither early nor refused");
      return;
    }
    for (std::uint32_t i = 0; i < fuzz::atp_switches; ++i) {
      if (host != fuzz::atp_switch(i)) continue;
      job.switches[i].on_packets(views, congested, now, out);
      out.flush();
      job.check_switch(i, packets[host], of_ended_jobs[i]);
      return;
    }
    for (std::uint32_t rank = 0; rank < fuzz::atp_ranks; ++rank) {
      if (host != fuzz::atp_rank(rank)) continue;
      job.workers[rank].on_packets(views, now, out);
      settle(rank);
      job.check_worker(rank, packets[host]);
    }
  }

  void deliver(const fuzz::Datagram& datagram, bool marked = false) {
    const RxView view{datagram.bytes, datagram.from, marked};
    receive(datagram.to, {&view, 1}, false);
  }

  // All that is under way to one host, at once: what it still lends to the sink is not overwritten.
  void deliver_batch(const Endpoint& to, bool congested) {
    const std::vector<fuzz::Datagram> batch = under_way.take_all_to(to);
    receive(to, fuzz::views_of(batch), congested);
  }

  void forget_or_learn(std::uint32_t index) {
    if (const auto* counters = job.switches[index].job_counters(fuzz::job_epoch)) {
      of_ended_jobs[index] += counters->packets;
      job.switches[index].remove_job(fuzz::job_epoch);
      fuzz::check(job.switches[index].slots_in_use() == 0, "a job that ended has no slots");
    } else {
      job.install(index);
    }
  }

  void settle(std::uint32_t rank) {
    outbox(fuzz::atp_rank(rank)).flush();
    for (const std::uint64_t number : job.workers[rank].take_completed()) {
      fuzz::check(number < operations && number < submitted[rank] && !completed[rank][number],
                  "an operation completes once");
      completed[rank][number] = true;
      for (std::size_t i = 0; i < tensors[rank][number].size(); ++i) {
        fuzz::check(tensors[rank][number][i] == expected(number, i), "the sum is right");
      }
    }
    fuzz::check(!job.workers[rank].failure(), "ranks that agree do not fail");
  }

  [[nodiscard]] bool all_completed() const {
    return std::all_of(std::begin(completed), std::end(completed), [](const auto& rank) {
      return std::all_of(std::begin(rank), std::end(rank), [](bool c) { return c; });
    });
  }

  fuzz::AtpJob job;
  Time now{std::chrono::seconds(1)};
  fuzz::UnderWay under_way;
  std::map<Endpoint, fuzz::RecordingSink> outboxes;
  std::map<Endpoint, std::uint64_t> packets;
  std::uint64_t of_ended_jobs[fuzz::atp_switches] = {};
  Kind kinds[operations] = {};
  std::vector<std::int32_t> tensors[fuzz::atp_ranks][operations];  // bits of int32 or float32
  std::size_t submitted[fuzz::atp_ranks] = {};
  bool completed[fuzz::atp_ranks][operations] = {};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  Cluster cluster(input);
  const Endpoint hosts[] = {fuzz::atp_rank(0),   fuzz::atp_rank(1),   fuzz::atp_rank(2),
                            fuzz::atp_switch(0), fuzz::atp_switch(1), fuzz::atp_server};
  while (input.remaining_bytes() > 0) {
    const auto action = input.ConsumeIntegralInRange<std::uint8_t>(0, 31);
    cluster.now += std::chrono::microseconds(50 * action);
    if (action < 3) {
      cluster.submit(action);
    } else if (action < 6) {
      cluster.fire(action - 3U);
    } else if (action < 8) {
      if (input.ConsumeIntegralInRange<int>(0, 3) == 0) cluster.forget_or_learn(action - 6U);
    } else if (action < 12) {
      cluster.deliver_batch(input.PickValueInArray(hosts), action == 8);
    } else if (!cluster.under_way.sent.empty()) {
      const std::size_t index = input.ConsumeIntegral<std::uint8_t>() % cluster.under_way.sent.size();
      if (action < 15) {
        cluster.under_way.drop(index);
      } else if (action == 15) {
        if (const auto damaged = cluster.under_way.damaged(index, input)) cluster.deliver(*damaged);
      } else {
        cluster.deliver(cluster.under_way.take(index, action < 20), action == 31);
      }
    }
  }

  // From here on every packet arrives, oldest first: all that is left must end, also past a switch that never learns of the
  // job again.
  for (std::size_t number = 0; number < operations; ++number) {
    for (std::uint32_t rank = 0; rank < fuzz::atp_ranks; ++rank) cluster.submit(rank);
  }
  for (int step = 0; step < 100'000 && !cluster.all_completed(); ++step) {
    cluster.now += std::chrono::microseconds(10);
    if (!cluster.under_way.sent.empty()) {
      cluster.deliver(cluster.under_way.take(0));
    } else {
      for (std::uint32_t rank = 0; rank < fuzz::atp_ranks; ++rank) cluster.fire(rank);
    }
  }
  fuzz::check(cluster.all_completed(), "everything completes once the network is kind");
  return 0;
}
