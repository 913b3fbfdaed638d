// SwitchML's packets with seals: somebody between the nodes reads, changes, repeats and makes packets, and none of them is
// believed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "protocol/switchml/switch.h"
#include "protocol/switchml/worker.h"
#include "seal/sealer.h"
#include "support/recording_sink.h"
#include "support/virtual_network.h"
#include "wire/epochs.h"

namespace netsum::switchml {
namespace {

using namespace std::chrono_literals;
using testing::Datagram;
using testing::RecordingSink;
using wire::switchml::Type;
using Bytes = std::vector<std::byte>;

constexpr std::uint64_t epoch = 77;
constexpr std::uint32_t packet_elements = 256, slots = 4;
const std::vector<std::uint32_t> rank_epochs = {100, 101};

Endpoint at(std::uint16_t port) {
  Endpoint endpoint;
  endpoint.address[15] = 1;
  endpoint.port = port;
  return endpoint;
}
const Endpoint root = at(1), leaf = at(2);
Endpoint worker_at(std::size_t rank) {
  return at(static_cast<std::uint16_t>(10 + rank));
}

seal::PacketKey key(std::uint8_t number) {
  seal::PacketKey::Bytes bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(number * 41 + i);
  return seal::PacketKey(bytes);
}
HopKeys hop(std::uint8_t number) {
  return {key(number), key(static_cast<std::uint8_t>(number + 1))};
}
const HopKeys leaf_keys = hop(60);

// Two ranks at a switch, or at a switch below another. Datagrams wait in `under_way`.
struct Cluster {
  explicit Cluster(PacketSecurity security, bool tree = false, std::size_t near = SIZE_MAX) : protection(security) {
    SwitchJobConfig config{epoch, packet_elements, slots, {}};
    config.security = security;
    config.results = key(1);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      config.members.push_back({rank_epochs[rank], worker_at(rank), false, rank == near ? HopKeys() : keys_of(rank)});
    }
    if (tree) {
      SwitchJobConfig above{epoch, packet_elements, slots, {{0, leaf, false, leaf_keys}}};
      above.security = security;
      above.results = key(1);
      above.tree = TreePlace{{wire::switchml::Ranks::first(2)}, {true}, {}, rank_epochs};
      add(root, above);
      wire::switchml::Ranks zero, one;
      zero.insert(0);
      one.insert(1);
      config.tree = TreePlace{{zero, one}, {false, false}, root, rank_epochs, leaf_keys};
    }
    add(tree ? leaf : root, config);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      WorkerConfig worker;
      worker.job_epoch = epoch;
      worker.rank = static_cast<std::uint32_t>(rank);
      worker.world_size = 2;
      worker.rank_epoch = rank_epochs[rank];
      worker.folded_epochs = wire::fold_epochs(rank_epochs);
      worker.packet_elements = packet_elements;
      worker.slots = slots;
      worker.aggregator = tree ? leaf : root;
      worker.security = security;
      worker.results = key(1);
      if (rank != near) worker.keys = keys_of(rank);
      workers.push_back(std::make_unique<Worker>(worker));
      sinks[worker_at(rank)] = std::make_unique<RecordingSink>(worker_at(rank), under_way);
    }
  }

  [[nodiscard]] static HopKeys keys_of(std::size_t rank) { return hop(static_cast<std::uint8_t>(10 + 10 * rank)); }

  void add(const Endpoint& where, const SwitchJobConfig& config) {
    auto& [machine, memory] = switches[where];
    memory.resize(Switch::memory_bytes(config) + 64);
    const std::size_t skip = -reinterpret_cast<std::uintptr_t>(memory.data()) % 64;
    ASSERT_TRUE(machine.add_job(config, std::span(memory).subspan(skip)));
    sinks[where] = std::make_unique<RecordingSink>(where, under_way);
  }

  template <class Value>
  void submit(std::size_t rank, std::uint64_t number, std::vector<Value>& values, DType dtype) {
    stream::Operation operation;
    operation.number = number;
    operation.dtype = dtype;
    operation.elements = values.size();
    operation.data = values.data();
    ASSERT_TRUE(workers[rank]->submit(operation, now, *sinks[worker_at(rank)]));
    sinks[worker_at(rank)]->flush();
  }

  void deliver(const Endpoint& to, const Endpoint& from, const Bytes& bytes) {
    RecordingSink& sink = *sinks.at(to);
    const RxView view{bytes, from};
    if (const auto switch_id = switches.find(to); switch_id != switches.end()) {
      switch_id->second.first.on_packets({&view, 1}, now, sink);
    } else {
      workers[to.port - 10U]->on_packets({&view, 1}, now, sink);
    }
    sink.flush();
  }
  // Until nothing is under way; each datagram after `before` has seen it.
  template <class Before>
  void run(const Before& before) {
    while (!under_way.empty()) {
      const Datagram datagram = under_way.front();
      under_way.erase(under_way.begin());
      before(datagram);
      deliver(datagram.to, datagram.from, datagram.bytes);
      now += 1us;
    }
  }
  void run() {
    run([](const Datagram&) {});
  }

  // What a node does next.
  [[nodiscard]] Bytes state_of(const Endpoint& node) const {
    Bytes state;
    if (const auto switch_id = switches.find(node); switch_id != switches.end()) {
      switch_id->second.first.append_state(state);
    } else {
      workers[node.port - 10U]->append_state(state);
    }
    return state;
  }
  void expect_unbelieved(const Endpoint& to, const Endpoint& from, const Bytes& bytes, const char* what) {
    const Bytes before = state_of(to);
    const std::size_t sent = under_way.size();
    deliver(to, from, bytes);
    EXPECT_EQ(before, state_of(to)) << what;
    EXPECT_EQ(sent, under_way.size()) << what << " was answered";
    for (const auto& worker : workers) EXPECT_FALSE(worker->failure()) << what;
  }

  Time now{1s};
  PacketSecurity protection;
  std::map<Endpoint, std::pair<Switch, Bytes>> switches;
  std::vector<std::unique_ptr<Worker>> workers;
  std::map<Endpoint, std::unique_ptr<RecordingSink>> sinks;
  std::vector<Datagram> under_way;
};

// What somebody makes of a datagram who has read it, and knows the format, but no key.
std::vector<std::pair<const char*, Bytes>> forgeries_of(const Datagram& datagram, PacketSecurity security,
                                                        testing::Random& random) {
  std::vector<std::pair<const char*, Bytes>> made;
  const Bytes& bytes = datagram.bytes;
  for (int i = 0; i < 20; ++i) {
    Bytes changed = bytes;
    changed[random.below(changed.size())] ^= static_cast<std::byte>(1U << random.below(8));
    made.emplace_back("a changed packet", changed);
  }
  Bytes truncated = bytes;
  truncated.resize(bytes.size() - 1 - random.below(bytes.size() - 1));
  made.emplace_back("a truncated packet", truncated);
  Bytes longer = bytes;
  longer.resize(bytes.size() + 1 + random.below(40));
  made.emplace_back("a longer packet", longer);

  // Another tenant's key, which fits the format.
  seal::Sealer other(security, key(200), 0);
  Bytes tagged = bytes;
  other.seal(tagged, wire::switchml::common_bytes);
  made.emplace_back("a packet with another's seal", tagged);

  // Without a seal, and with a valid checksum or none, where a rank without keys is believed.
  Bytes bare(bytes.begin(), bytes.end() - static_cast<std::ptrdiff_t>(seal::trailer_bytes(security)));
  bare.back() ^= std::byte{1};
  wire::switchml::reseal(bare, PacketSecurity::none);
  made.emplace_back("a packet with a checksum", bare);
  bare[wire::switchml::at_type] &= static_cast<std::byte>(wire::switchml::type_bits);
  wire::switchml::seal(bare);
  made.emplace_back("a packet without a checksum", bare);

  // As another kind of packet, which has another key or none.
  Bytes unknown(wire::switchml::common_bytes);
  wire::switchml::write_unknown_job(unknown, {.type = Type::contribution,
                                              .sender = 0,
                                              .job_epoch = epoch,
                                              .rank_epoch = datagram.to == worker_at(0) ? rank_epochs[0] : rank_epochs[1]});
  made.emplace_back("'unknown job'", unknown);
  Bytes mismatch(wire::switchml::mismatch_bytes);
  wire::switchml::write_mismatch(mismatch, {{Type::mismatch, 0, epoch, wire::fold_epochs(rank_epochs)}, 0, 0, 1, 2, 0, 1});
  made.emplace_back("'mismatch'", mismatch);
  return made;
}

class SealsTest : public ::testing::TestWithParam<PacketSecurity> {};
INSTANTIATE_TEST_SUITE_P(Securities, SealsTest, ::testing::Values(PacketSecurity::tag, PacketSecurity::encrypt),
                         [](const auto& test) { return to_string(test.param); });

TEST_P(SealsTest, NothingThatSomebodyOnThePathMakesIsBelieved) {
  for (const bool tree : {false, true}) {
    Cluster cluster(GetParam(), tree);
    testing::Random random(7);
    std::vector<std::int32_t> integers[2];
    std::vector<float> floats[2], few[2];
    for (std::size_t rank = 0; rank < 2; ++rank) {
      integers[rank].resize(3000);
      std::iota(integers[rank].begin(), integers[rank].end(), static_cast<std::int32_t>(1000 * rank));
      floats[rank].assign(2000, 1.5F + static_cast<float>(rank));
      few[rank].assign(3, 0.25F);  // these travel as they are, summed in rank order
      cluster.submit(rank, 0, integers[rank], DType::int32);
      cluster.submit(rank, 1, floats[rank], DType::float32);
      cluster.submit(rank, 2, few[rank], DType::float32);
    }
    std::vector<Datagram> seen;
    std::size_t forged = 0;
    cluster.run([&](const Datagram& datagram) {
      for (const auto& [what, bytes] : forgeries_of(datagram, GetParam(), random)) {
        cluster.expect_unbelieved(datagram.to, datagram.from, bytes, what);
        ++forged;
      }
      // Another rank's, from this one's address.
      for (const Datagram& old : seen) {
        if (old.to == datagram.to && old.from != datagram.from) {
          cluster.expect_unbelieved(datagram.to, datagram.from, old.bytes, "another's packet");
          ++forged;
        }
      }
      seen.push_back(datagram);
    });
    EXPECT_GT(forged, 500U);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(cluster.workers[rank]->idle());
      for (std::size_t i = 0; i < integers[rank].size(); ++i) {
        ASSERT_EQ(static_cast<std::int32_t>(1000 + 2 * i), integers[rank][i]) << "rank " << rank;
      }
      EXPECT_EQ(std::vector<float>(2000, 4.0F), floats[rank]);
      EXPECT_EQ(std::vector<float>(3, 0.5F), few[rank]);
    }
    // Every packet once more, when all is done.
    for (const Datagram& old : seen) cluster.deliver(old.to, old.from, old.bytes);
    cluster.run();
    EXPECT_EQ(static_cast<std::int32_t>(1000 + 2 * 2999), integers[0][2999]);
    EXPECT_EQ(std::vector<float>(2000, 4.0F), floats[1]);
  }
}

TEST_P(SealsTest, ARepeatedWordOnMissingRanksCountsOnce) {
  Cluster cluster(GetParam());
  std::vector<std::int32_t> values(10);
  cluster.submit(0, 0, values, DType::int32);
  cluster.run();
  cluster.now = cluster.workers[0]->next_timeout();
  cluster.workers[0]->on_timer(cluster.now, *cluster.sinks[worker_at(0)]);
  cluster.sinks[worker_at(0)]->flush();
  Datagram waiting;
  cluster.run([&](const Datagram& datagram) {
    if (datagram.to == worker_at(0)) waiting = datagram;
  });
  const WorkerCounters& counters = cluster.workers[0]->counters();
  EXPECT_EQ(1U, counters.waiting);
  cluster.expect_unbelieved(waiting.to, waiting.from, waiting.bytes, "a repeated 'waiting'");
  EXPECT_EQ(1U, counters.waiting);
  EXPECT_EQ(1U, counters.unbelieved);
}

TEST_P(SealsTest, AMismatchIsBelievedFromTheSwitch) {
  for (const bool tree : {false, true}) {
    Cluster cluster(GetParam(), tree);
    std::vector<std::int32_t> values(10), other(11);
    cluster.submit(0, 0, values, DType::int32);
    cluster.submit(1, 0, other, DType::int32);
    cluster.run();
    for (const auto& worker : cluster.workers) {
      ASSERT_TRUE(worker->failure());
      EXPECT_EQ(WorkerFailure::Kind::mismatch, worker->failure()->kind);
    }
  }
}

TEST_P(SealsTest, ARankOnTheSwitchsHostNeedsNoSeal) {
  Cluster cluster(GetParam(), false, 1);
  std::vector<std::int32_t> values[2] = {std::vector<std::int32_t>(600, 1), std::vector<std::int32_t>(600, 2)};
  for (std::size_t rank = 0; rank < 2; ++rank) cluster.submit(rank, 0, values[rank], DType::int32);
  cluster.run([&](const Datagram& datagram) {
    wire::switchml::Common common{};
    ASSERT_EQ(wire::ParseError::none, wire::switchml::parse_common(datagram.bytes, common));
    EXPECT_EQ(datagram.from == worker_at(1) ? PacketSecurity::none : GetParam(), common.security);
  });
  EXPECT_EQ(std::vector<std::int32_t>(600, 3), values[0]);
  EXPECT_EQ(std::vector<std::int32_t>(600, 3), values[1]);
}

TEST_P(SealsTest, WhereNoJobHasKeysNoSealIsBelieved) {
  Cluster sealed(GetParam()), bare(PacketSecurity::none);
  std::vector<std::int32_t> values[2] = {std::vector<std::int32_t>(10, 1), std::vector<std::int32_t>(10, 2)};
  for (std::size_t rank = 0; rank < 2; ++rank) sealed.submit(rank, 0, values[rank], DType::int32);
  std::vector<std::int32_t> own(10);
  bare.submit(0, 0, own, DType::int32);
  sealed.run([&](const Datagram& datagram) {
    bare.expect_unbelieved(datagram.to, datagram.from, datagram.bytes, "a sealed packet");
  });
  EXPECT_EQ(2U, bare.switches[root].first.job_counters(epoch)->dropped_seal);
  EXPECT_EQ(1U, bare.workers[0]->counters().unbelieved);
}

TEST_P(SealsTest, ASwitchThatHasLostTheJobSaysNothing) {
  Cluster cluster(GetParam());
  std::vector<std::int32_t> values(10);
  cluster.submit(0, 0, values, DType::int32);
  static_cast<void>(cluster.switches[root].first.remove_job(epoch));
  cluster.run();
  EXPECT_EQ(1U, cluster.switches[root].first.counters().unknown_job);
  EXPECT_EQ(0U, cluster.switches[root].first.counters().unknown_job_replies);
}

TEST_P(SealsTest, NoTwoPacketsOfAKeyHaveOneNumber) {
  Cluster cluster(GetParam());
  std::vector<std::int32_t> values[2] = {std::vector<std::int32_t>(3000, 1), std::vector<std::int32_t>(3000, 2)};
  for (std::size_t rank = 0; rank < 2; ++rank) cluster.submit(rank, 0, values[rank], DType::int32);
  // The first transmissions are lost, and repeated.
  cluster.under_way.clear();
  for (std::size_t rank = 0; rank < 2; ++rank) {
    cluster.workers[rank]->on_timer(cluster.now + 1s, *cluster.sinks[worker_at(rank)]);
    cluster.sinks[worker_at(rank)]->flush();
  }
  std::map<std::pair<Endpoint, std::uint64_t>, Bytes> numbers;
  cluster.run([&](const Datagram& datagram) {
    const std::size_t trailer = seal::trailer_bytes(GetParam());
    const auto counter = load_le<std::uint64_t>(datagram.bytes.data() + datagram.bytes.size() - trailer);
    const auto [entry, first] = numbers.emplace(std::pair(datagram.from, counter), datagram.bytes);
    EXPECT_TRUE(first || entry->second == datagram.bytes)
        << "number " << counter << " twice";                 // a result goes to both ranks
    EXPECT_GT(counter, datagram.from == root ? 0U : slots);  // those of the lost transmissions are not used again
  });
  EXPECT_EQ(std::vector<std::int32_t>(3000, 3), values[0]);
}

}  // namespace
}  // namespace netsum::switchml
