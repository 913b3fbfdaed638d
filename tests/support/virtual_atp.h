// ATP jobs under a virtual clock: the real switches, servers and workers on a virtual network. All jobs have one switch, to
// which their ranks are attached, and one parameter server. Each lane has a node of its own at every host.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "protocol/atp/server.h"
#include "protocol/atp/switch.h"
#include "protocol/atp/worker.h"
#include "support/late_node.h"
#include "support/virtual_network.h"

namespace netsum::testing {

struct AtpJob {
  std::uint32_t number = 0;  // of at most 6
  std::uint32_t ranks = 4;   // at most 15
  std::uint32_t window = 256;
  bool congestion_control = true;
  atp::Indexing indexing = atp::Indexing::rehash;
  std::uint32_t first_slot = 0, slots = 0;  // of its part, if it has one
  std::size_t elements = 2'000'000;

  [[nodiscard]] std::uint64_t epoch() const { return 0x1234567 + number; }
  [[nodiscard]] std::uint32_t folded_epochs() const { return 77 + number; }
  [[nodiscard]] static std::uint32_t rank_epoch(std::uint32_t rank) { return 100 + rank; }
  [[nodiscard]] std::uint8_t host(std::uint32_t rank) const { return static_cast<std::uint8_t>(number * 15 + rank + 1); }
  [[nodiscard]] atp::Topology topology() const {
    return atp::Topology({{atp::at_server}, std::vector<std::uint32_t>(ranks, 0)});
  }
  // Sums are exact.
  [[nodiscard]] static float part_of(std::uint32_t rank) { return 0.125F * static_cast<float>(rank + 1); }
  [[nodiscard]] float sum() const { return 0.0625F * static_cast<float>(ranks * (ranks + 1)); }
};

struct AtpHosts {
  std::uint32_t slots = 4096;  // of each lane
  std::uint32_t lanes = 1;
  Stops stops{};  // of every thread
};

inline constexpr std::uint32_t atp_packet_elements = 353;  // fill 1500 bytes
inline constexpr std::uint8_t atp_switch_host = 100, atp_server_host = 101;

[[nodiscard]] inline Endpoint atp_endpoint(std::uint8_t host, std::uint32_t lane) {
  return endpoint_of(host, static_cast<std::uint16_t>(1 + lane));
}

class AlignedMemory {
 public:
  explicit AlignedMemory(std::size_t bytes) : lines_((bytes + sizeof(Line) - 1) / sizeof(Line)) {}
  [[nodiscard]] std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(lines_)); }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> lines_;
};

class AtpSwitchNode final : public LateNode {
 public:
  AtpSwitchNode(VirtualNetwork& network, const AtpHosts& hosts, std::uint32_t lane)
      : LateNode(network, atp_endpoint(atp_switch_host, lane), hosts.stops),
        lane_(lane),
        memory_(atp::Switch::memory_bytes(config(hosts))),
        switch_(config(hosts), memory_.bytes()) {}
  void add(const AtpJob& job) {
    atp::SwitchJobConfig c;
    c.epoch = job.epoch();
    c.folded_epochs = job.folded_epochs();
    c.packet_elements = atp_packet_elements;
    c.window = job.window;
    c.parent = atp_endpoint(atp_server_host, lane_);
    for (std::uint32_t rank = 0; rank < job.ranks; ++rank) {
      atp::SwitchChild child{atp_endpoint(job.host(rank), lane_), false, AtpJob::rank_epoch(rank), {}};
      child.ranks.insert(rank);
      c.children.push_back(child);
    }
    EXPECT_TRUE(switch_.add_job(c));
  }
  void serve(std::span<const RxView> packets) override { switch_.on_packets(packets, false, now(), sink); }

 private:
  static atp::SwitchConfig config(const AtpHosts& hosts) {
    atp::SwitchConfig c;
    c.slots = hosts.slots;
    c.packet_elements = atp_packet_elements;
    return c;
  }
  std::uint32_t lane_;
  AlignedMemory memory_;
  atp::Switch switch_;
};

class AtpServerNode final : public LateNode {
 public:
  AtpServerNode(VirtualNetwork& network, const AtpHosts& hosts, std::uint32_t lane)
      : LateNode(network, atp_endpoint(atp_server_host, lane), hosts.stops), slots_(hosts.slots), lane_(lane) {}
  void add(const AtpJob& job) {
    atp::ServerJobConfig c;
    c.epoch = job.epoch();
    c.folded_epochs = job.folded_epochs();
    c.packet_elements = atp_packet_elements;
    c.window = job.window;
    c.switch_slots = slots_;
    c.indexing = job.indexing;
    c.topology = job.topology();
    for (std::uint32_t rank = 0; rank < job.ranks; ++rank) {
      c.members.push_back({AtpJob::rank_epoch(rank), atp_endpoint(job.host(rank), lane_)});
    }
    c.roots = {atp_endpoint(atp_switch_host, lane_)};
    auto& memory = memory_.emplace_back(
        std::make_unique<AlignedMemory>(atp::Server::memory_bytes(atp_packet_elements, job.window, job.ranks)));
    EXPECT_TRUE(server_.add_job(c, memory->bytes()));
  }
  void serve(std::span<const RxView> packets) override { server_.on_packets(packets, false, now(), sink); }
  [[nodiscard]] const atp::ServerJobCounters& counters(const AtpJob& job) const {
    return *server_.job_counters(job.epoch());
  }

 private:
  std::uint32_t slots_, lane_;
  std::vector<std::unique_ptr<AlignedMemory>> memory_;
  atp::Server server_;
};

// One lane of a rank.
class AtpRankNode final : public LateNode {
 public:
  AtpRankNode(VirtualNetwork& network, const AtpHosts& hosts, const AtpJob& job, std::uint32_t rank, std::uint32_t lane)
      : LateNode(network, atp_endpoint(job.host(rank), lane), hosts.stops), worker_(config(hosts, job, rank, lane)) {}

  void submit(std::uint64_t number, std::vector<float>& tensor) {
    EXPECT_TRUE(worker_.submit({.number = number, .elements = tensor.size(), .data = tensor.data()}, now(), sink));
    sink.flush();
    static_cast<void>(worker_.take_completed());
  }
  void serve(std::span<const RxView> packets) override {
    worker_.on_packets(packets, now(), sink);
    static_cast<void>(worker_.take_completed());
  }
  [[nodiscard]] Time timer() const override { return worker_.next_timeout(); }
  void on_time() override { worker_.on_timer(now(), sink); }
  [[nodiscard]] const atp::Worker& worker() const { return worker_; }

 private:
  static atp::WorkerConfig config(const AtpHosts& hosts, const AtpJob& job, std::uint32_t rank, std::uint32_t lane) {
    atp::WorkerConfig c;
    c.job_epoch = job.epoch();
    c.rank = rank;
    c.world_size = job.ranks;
    c.rank_epoch = AtpJob::rank_epoch(rank);
    c.folded_epochs = job.folded_epochs();
    c.packet_elements = atp_packet_elements;
    c.window = job.window;
    c.lane = lane;
    c.lanes = hosts.lanes;
    c.first_hop = atp_endpoint(atp_switch_host, lane);
    c.server = atp_endpoint(atp_server_host, lane);
    c.path = job.topology().path(rank);
    c.indexing = job.indexing;
    c.switch_slots = hosts.slots;
    c.partition_first = job.first_slot;
    c.partition_count = job.slots;
    c.congestion_control = job.congestion_control;
    return c;
  }
  atp::Worker worker_;
};

// A rank of a job, on all lanes: its tensors, one after the other.
class AtpRank {
 public:
  AtpRank(VirtualNetwork& network, const AtpHosts& hosts, const AtpJob& job, std::uint32_t rank)
      : tensor_(job.elements), part_(AtpJob::part_of(rank)) {
    for (std::uint32_t lane = 0; lane < hosts.lanes; ++lane) {
      lanes_.push_back(std::make_unique<AtpRankNode>(network, hosts, job, rank, lane));
    }
  }
  // The next all-reduce.
  void begin() {
    std::fill(tensor_.begin(), tensor_.end(), part_);
    for (auto& lane : lanes_) lane->submit(next_, tensor_);
    ++next_;
  }
  [[nodiscard]] bool done() const {
    return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->worker().idle(); });
  }
  [[nodiscard]] const std::vector<float>& tensor() const { return tensor_; }
  [[nodiscard]] double count(std::uint64_t atp::WorkerCounters::*counter) const {
    double total = 0;
    for (const auto& lane : lanes_) total += static_cast<double>(lane->worker().counters().*counter);
    return total;
  }

 private:
  std::vector<float> tensor_;
  float part_;
  std::vector<std::unique_ptr<AtpRankNode>> lanes_;
  std::uint64_t next_ = 0;
};

class AtpCluster {
 public:
  AtpCluster(VirtualNetwork& network, const AtpHosts& hosts, const std::vector<AtpJob>& jobs) {
    for (std::uint32_t lane = 0; lane < hosts.lanes; ++lane) {
      switches_.push_back(std::make_unique<AtpSwitchNode>(network, hosts, lane));
      servers_.push_back(std::make_unique<AtpServerNode>(network, hosts, lane));
    }
    ranks_.resize(jobs.size());
    for (const AtpJob& job : jobs) {
      for (auto& node : switches_) node->add(job);
      for (auto& node : servers_) node->add(job);
      for (std::uint32_t rank = 0; rank < job.ranks; ++rank) {
        ranks_[job.number].push_back(std::make_unique<AtpRank>(network, hosts, job, rank));
      }
    }
  }
  // All ranks' next all-reduce.
  void begin(const AtpJob& job) {
    for (auto& rank : ranks_[job.number]) rank->begin();
  }
  // Whether all ranks have their results.
  [[nodiscard]] bool done(const AtpJob& job) const {
    const auto& ranks = ranks_[job.number];
    return std::all_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank->done(); });
  }
  void expect_right(const AtpJob& job) const {
    for (const auto& rank : ranks_[job.number]) {
      EXPECT_TRUE(
          std::all_of(rank->tensor().begin(), rank->tensor().end(), [&](float value) { return value == job.sum(); }));
    }
  }
  // So far.
  [[nodiscard]] double count(const AtpJob& job, std::uint64_t atp::WorkerCounters::*counter) const {
    double total = 0;
    for (const auto& rank : ranks_[job.number]) total += rank->count(counter);
    return total;
  }
  [[nodiscard]] double count(const AtpJob& job, std::uint64_t atp::ServerJobCounters::*counter) const {
    double total = 0;
    for (const auto& node : servers_) total += static_cast<double>(node->counters(job).*counter);
    return total;
  }

 private:
  std::vector<std::unique_ptr<AtpSwitchNode>> switches_;
  std::vector<std::unique_ptr<AtpServerNode>> servers_;
  std::vector<std::vector<std::unique_ptr<AtpRank>>> ranks_;  // by job
};

}  // namespace netsum::testing
