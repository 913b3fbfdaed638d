// What ATP's fuzzers share: a job of three ranks below two levels of switches. Ranks 0 and 1 are at switch 0, which is below
// switch 1, where rank 2 is.
#pragma once

#include "base/counter_list.h"
#include "fuzz/harness.h"
#include "protocol/atp/server.h"
#include "protocol/atp/switch.h"
#include "protocol/atp/topology.h"
#include "protocol/atp/worker.h"

namespace netsum::fuzz {

inline constexpr std::uint32_t atp_ranks = 3, atp_switches = 2;
inline constexpr std::uint32_t atp_rank_epochs[] = {1000, 1001, 1002};
inline constexpr std::uint32_t atp_folded_epochs = 0x5a5a5a5a;
inline constexpr std::uint32_t atp_packet_elements = 4;

inline const Endpoint atp_server = endpoint_of(255);
[[nodiscard]] inline Endpoint atp_switch(std::uint32_t index) {
  return endpoint_of(static_cast<std::uint8_t>(100 + index));
}
[[nodiscard]] inline Endpoint atp_rank(std::uint32_t rank) {
  return endpoint_of(static_cast<std::uint8_t>(rank));
}

[[nodiscard]] inline const atp::Topology& atp_topology() {
  static const atp::Topology topology({{1, atp::at_server}, {0, 0, 1}});
  return topology;
}

struct AtpSettings {
  std::uint32_t slots = 4, window = 2;
  bool saturating = false, congestion_control = false;
  atp::Indexing indexing = atp::Indexing::rehash;
  atp::Scaling scaling = atp::Scaling::fixed;
  bool chip = false;  // switches are chips
};

struct AtpJob {
  explicit AtpJob(const AtpSettings& settings) : settings_(settings) {
    for (std::uint32_t i = 0; i < atp_switches; ++i) {
      auto& memory = switch_memory_[i];
      memory.resize(atp::Switch::memory_bytes(switch_config()) / sizeof(CacheLine));
      switches.emplace_back(switch_config(), std::as_writable_bytes(std::span(memory)));
      install(i);
    }
    const auto& topology = atp_topology();
    atp::ServerJobConfig config;
    config.epoch = job_epoch;
    config.folded_epochs = atp_folded_epochs;
    config.packet_elements = atp_packet_elements;
    config.window = settings.window;
    config.switch_slots = settings.slots;
    config.indexing = settings.indexing;
    config.overflow = overflow();
    config.rules = rules();
    config.topology = topology;
    config.roots = {atp_switch(1)};
    for (std::uint32_t rank = 0; rank < atp_ranks; ++rank) {
      config.members.push_back({atp_rank_epochs[rank], atp_rank(rank)});
    }
    server_memory_.resize(atp::Server::memory_bytes(atp_packet_elements, settings.window, atp_ranks) / sizeof(CacheLine));
    check(server.add_job(config, std::as_writable_bytes(std::span(server_memory_))), "a job is admitted");
    for (std::uint32_t rank = 0; rank < atp_ranks; ++rank) {
      atp::WorkerConfig worker;
      worker.job_epoch = job_epoch;
      worker.rank = rank;
      worker.world_size = atp_ranks;
      worker.rank_epoch = atp_rank_epochs[rank];
      worker.folded_epochs = atp_folded_epochs;
      worker.packet_elements = atp_packet_elements;
      worker.window = settings.window;
      worker.first_hop = atp_switch(rank == 2 ? 1 : 0);
      worker.server = atp_server;
      worker.path = topology.path(rank);
      worker.indexing = settings.indexing;
      worker.scaling = settings.scaling;
      worker.switch_slots = settings.slots;
      worker.rules = rules();
      worker.checksums = !settings.chip;
      worker.congestion_control = settings.congestion_control;
      workers.emplace_back(worker);
    }
  }
  AtpJob(const AtpJob&) = delete;
  AtpJob& operator=(const AtpJob&) = delete;

  // A switch learns of the job: at first, or again after it forgot.
  void install(std::uint32_t index) {
    const auto& topology = atp_topology();
    atp::SwitchJobConfig config;
    config.epoch = job_epoch;
    config.folded_epochs = atp_folded_epochs;
    config.packet_elements = atp_packet_elements;
    config.window = settings_.window;
    config.level = topology.level(index);
    config.next_level = static_cast<std::uint8_t>(index + 1);
    config.parent = index == 0 ? atp_switch(1) : atp_server;
    config.overflow = overflow();
    config.rules = rules();
    for (const auto& child : topology.children(index)) {
      atp::SwitchChild c;
      c.is_switch = child.is_switch;
      c.ranks = topology.below(child);
      c.endpoint = child.is_switch ? atp_switch(child.index) : atp_rank(child.index);
      if (!child.is_switch) c.rank_epoch = atp_rank_epochs[child.index];
      config.children.push_back(c);
    }
    check(switches[index].add_job(config), "a switch takes the job");
  }

  void check_switch(std::uint32_t index, std::uint64_t packets, std::uint64_t of_ended_jobs) const {
    const atp::Switch& it = switches[index];
    std::uint64_t seen = outcomes(it.counters()) + of_ended_jobs;
    if (const auto* job = it.job_counters(job_epoch)) {
      check(job->packets == outcomes(*job), "a switch counts every packet of the job by what became of it");
      seen += job->packets;
    }
    check(seen == packets, "a switch counts every packet once");
    check(it.slots_in_use() == it.slots_in_use(job_epoch) && it.slots_in_use() <= settings_.slots,
          "slots are neither lost nor given out twice");
  }
  void check_server(std::uint64_t packets) const {
    const atp::ServerJobCounters& job = *server.job_counters(job_epoch);
    check(job.packets == outcomes(job), "the server counts every packet of the job by what became of it");
    check(job.packets + outcomes(server.counters()) == packets, "the server counts every packet once");
  }
  void check_worker(std::uint32_t rank, std::uint64_t packets) const {
    const atp::Worker& worker = workers[rank];
    check(outcomes(worker.counters()) == packets, "a worker counts every packet once");
    check(worker.congestion_window() > 0 && worker.congestion_window() <= settings_.window,
          "a congestion window is neither empty nor longer than the job's");
    check(!worker.idle() || !worker.oldest_stall(), "a worker without operations waits for nothing");
  }

  atp::Server server;
  std::vector<atp::Switch> switches;
  std::vector<atp::Worker> workers;

 private:
  [[nodiscard]] atp::Overflow overflow() const {
    return settings_.saturating ? atp::Overflow::saturating : atp::Overflow::exact;
  }
  [[nodiscard]] atp::Rules rules() const { return settings_.chip ? atp::Rules::chip : atp::Rules::netsum; }
  [[nodiscard]] atp::SwitchConfig switch_config() const {
    return {settings_.slots, atp_packet_elements, std::chrono::milliseconds(200), settings_.chip};
  }

  AtpSettings settings_;
  std::vector<CacheLine> server_memory_, switch_memory_[atp_switches];
};

}  // namespace netsum::fuzz
