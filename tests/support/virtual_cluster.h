// A whole SwitchML job under a virtual clock: the real switch and worker objects, and a network that loses, repeats,
// delays and reorders from one seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <queue>
#include <span>
#include <vector>

#include "base/packet_io.h"
#include "base/time.h"
#include "protocol/switchml/switch.h"
#include "protocol/switchml/worker.h"

namespace netsum::testing {

// splitmix64
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  bool chance(double probability) { return static_cast<double>(next() >> 11) * 0x1p-53 < probability; }

 private:
  std::uint64_t state_;
};

struct Faults {
  double loss = 0, duplicate = 0, corrupt = 0;
  Duration least_delay = std::chrono::microseconds(10), most_delay = std::chrono::microseconds(10);
  double late = 0;  // probability of a delay of up to `latest`
  Duration latest = std::chrono::seconds(1);
};

class VirtualNetwork {
 public:
  VirtualNetwork(std::uint64_t seed, Faults faults) : random_(seed), faults_(faults) {}

  struct Delivery {
    Time at;
    std::uint64_t order;
    Endpoint from, to;
    std::vector<std::byte> bytes;
    bool operator<(const Delivery& other) const { return std::tie(other.at, other.order) < std::tie(at, order); }
  };

  void send(Time now, const Endpoint& from, const Endpoint& to, std::span<const std::byte> bytes) {
    ++sent;
    if (random_.chance(faults_.loss)) return;
    const int copies = random_.chance(faults_.duplicate) ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
      Delivery delivery{now + delay(), order_++, from, to, {bytes.begin(), bytes.end()}};
      if (random_.chance(faults_.corrupt)) {
        delivery.bytes[random_.below(delivery.bytes.size())] ^= static_cast<std::byte>(1 + random_.below(255));
      }
      queue_.push(std::move(delivery));
    }
  }

  [[nodiscard]] Time next() const { return queue_.empty() ? never : queue_.top().at; }
  Delivery take() {
    Delivery delivery = queue_.top();
    queue_.pop();
    return delivery;
  }
  [[nodiscard]] bool empty() const { return queue_.empty(); }
  std::uint64_t sent = 0;

 private:
  Duration delay() {
    if (random_.chance(faults_.late)) return Duration(random_.below(static_cast<std::uint64_t>(faults_.latest.count())));
    const auto spread = static_cast<std::uint64_t>((faults_.most_delay - faults_.least_delay).count());
    return faults_.least_delay + Duration(spread == 0 ? 0 : random_.below(spread));
  }

  Random random_;
  Faults faults_;
  std::priority_queue<Delivery> queue_;
  std::uint64_t order_ = 0;
};

// Keeps the contract of Sink to the letter: references are read at flush() and not before.
class VirtualSink final : public Sink {
 public:
  VirtualSink(VirtualNetwork& network, Endpoint self) : network_(network), self_(self) {}
  ~VirtualSink() = default;

  std::span<std::byte> datagram(const Endpoint& to, std::size_t bytes) override {
    items_.push_back({std::vector<std::byte>(bytes), {}, {to}});
    return items_.back().owned;
  }
  void multicast(std::span<const std::byte> packet, std::span<const Endpoint> to) override {
    items_.push_back({{}, packet, {to.begin(), to.end()}});
  }
  void flush() override {
    for (const Item& item : items_) {
      for (const Endpoint& to : item.to) {
        network_.send(now, self_, to, item.owned.empty() ? item.referenced : std::span<const std::byte>(item.owned));
      }
    }
    items_.clear();
  }
  Time now{};

 private:
  struct Item {
    std::vector<std::byte> owned;
    std::span<const std::byte> referenced;
    std::vector<Endpoint> to;
  };
  VirtualNetwork& network_;
  Endpoint self_;
  std::vector<Item> items_;
};

[[nodiscard]] inline Endpoint endpoint_of(std::uint8_t host, std::uint16_t port) {
  Endpoint endpoint;
  endpoint.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, host};
  endpoint.port = port;
  return endpoint;
}

struct ClusterConfig {
  std::uint32_t workers = 2, lanes = 1, slots = 4, packet_elements = 256;
  std::uint64_t seed = 1;
  Faults faults{};
};

class VirtualCluster {
 public:
  explicit VirtualCluster(const ClusterConfig& config) : config_(config), network(config.seed, config.faults) {
    for (std::uint32_t rank = 0; rank < config.workers; ++rank) rank_epochs_.push_back(1000 + rank);
    for (std::uint32_t lane = 0; lane < config.lanes; ++lane) add_lane(lane);
    completed_.resize(config.workers);
  }

  void submit(std::uint32_t rank, const stream::Operation& operation) {
    for (std::uint32_t lane = 0; lane < config_.lanes; ++lane) {
      Node& node = worker_node(lane, rank);
      node.sink->now = now;
      if (!node.worker->submit(operation, now, *node.sink)) throw std::runtime_error("too many operations");
      node.sink->flush();
      collect(rank, node);
    }
  }

  // Runs until every rank has completed `operations` operations on every lane, or virtual time ends. Whether it did.
  bool run(std::size_t operations, Duration limit = std::chrono::seconds(60)) {
    const Time end = now + limit;
    while (!all_completed(operations)) {
      if (!step(end)) return false;
    }
    return true;
  }

  // Delivers or times out the next thing; false if there is none before `end` (time then stands at `end`).
  bool step(Time end) {
    Time next = network.next();
    Node* timed = nullptr;
    for (auto& node : nodes_) {
      if (node->worker && !node->paused && node->worker->next_timeout() < next) {
        next = node->worker->next_timeout();
        timed = node.get();
      }
    }
    if (next > end || next == never) {
      now = end;
      return false;
    }
    now = std::max(now, next);
    if (timed != nullptr) {
      timed->sink->now = now;
      timed->worker->on_timer(now, *timed->sink);
      timed->sink->flush();
      return true;
    }
    const auto delivery = network.take();
    for (auto& node : nodes_) {
      if (node->self != delivery.to) continue;
      node->sink->now = now;
      const RxView view{delivery.bytes, delivery.from};
      if (node->worker) {
        node->worker->on_packets({&view, 1}, now, *node->sink);
        collect(node->rank, *node);
      } else {
        node->lane_switch->on_packets({&view, 1}, now, *node->sink);
      }
      node->sink->flush();
    }
    return true;
  }

  [[nodiscard]] bool all_completed(std::size_t operations) const {
    return std::all_of(completed_.begin(), completed_.end(), [&](const auto& counts) {
      return static_cast<std::size_t>(std::count(counts.begin(), counts.end(), config_.lanes)) >= operations;
    });
  }

  [[nodiscard]] switchml::Worker& worker(std::uint32_t rank, std::uint32_t lane = 0) {
    return *worker_node(lane, rank).worker;
  }
  [[nodiscard]] switchml::Switch& lane_switch(std::uint32_t lane = 0) {
    return *nodes_[lane * (config_.workers + 1)]->lane_switch;
  }
  [[nodiscard]] VirtualSink& sink_of_switch(std::uint32_t lane = 0) { return *nodes_[lane * (config_.workers + 1)]->sink; }

  static constexpr std::uint64_t job_epoch = 0x1234567890abcdef;

 private:
  struct Node {
    Endpoint self;
    std::uint32_t rank = 0;
    bool paused = false;
    std::unique_ptr<VirtualSink> sink;
    std::unique_ptr<switchml::Switch> lane_switch;
    std::unique_ptr<switchml::Worker> worker;
  };

  Node& worker_node(std::uint32_t lane, std::uint32_t rank) { return *nodes_[lane * (config_.workers + 1) + 1 + rank]; }

  void add_lane(std::uint32_t lane) {
    auto node = std::make_unique<Node>();
    const auto port = static_cast<std::uint16_t>(7170 + lane);
    node->self = endpoint_of(255, port);
    node->sink = std::make_unique<VirtualSink>(network, node->self);
    node->lane_switch = std::make_unique<switchml::Switch>();
    switchml::SwitchJobConfig job{job_epoch, config_.packet_elements, config_.slots, {}};
    for (std::uint32_t rank = 0; rank < config_.workers; ++rank) {
      job.members.push_back({rank_epochs_[rank], endpoint_of(static_cast<std::uint8_t>(rank), port)});
    }
    memory_.push_back(std::make_unique<Memory>(switchml::Switch::memory_bytes(config_.packet_elements, config_.slots) /
                                               sizeof(CacheLine)));
    if (!node->lane_switch->add_job(job, std::as_writable_bytes(std::span(*memory_.back())))) {
      throw std::runtime_error("add_job failed");
    }
    const Endpoint aggregator = node->self;
    nodes_.push_back(std::move(node));
    for (std::uint32_t rank = 0; rank < config_.workers; ++rank) {
      auto worker = std::make_unique<Node>();
      worker->self = job.members[rank].endpoint;
      worker->rank = rank;
      worker->sink = std::make_unique<VirtualSink>(network, worker->self);
      switchml::WorkerConfig w;
      w.job_epoch = job_epoch;
      w.rank = rank;
      w.world_size = config_.workers;
      w.rank_epoch = rank_epochs_[rank];
      w.folded_epochs = wire::fold_epochs(rank_epochs_);
      w.packet_elements = config_.packet_elements;
      w.slots = config_.slots;
      w.lane = lane;
      w.lanes = config_.lanes;
      w.aggregator = aggregator;
      worker->worker = std::make_unique<switchml::Worker>(w);
      nodes_.push_back(std::move(worker));
    }
  }

  void collect(std::uint32_t rank, Node& node) {
    for (const std::uint64_t number : node.worker->take_completed()) {
      if (completed_[rank].size() <= number) completed_[rank].resize(number + 1);
      ++completed_[rank][number];
    }
  }

  struct alignas(64) CacheLine {
    std::byte bytes[64];
  };
  using Memory = std::vector<CacheLine>;

  ClusterConfig config_;

 public:
  VirtualNetwork network;
  Time now{};

 private:
  std::vector<std::uint32_t> rank_epochs_;
  std::vector<std::unique_ptr<Memory>> memory_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<std::vector<std::uint32_t>> completed_;  // [rank][operation]: lanes that are done
};

}  // namespace netsum::testing
