// What the fuzzers share: a job of two ranks, and a sink that keeps what is sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "base/packet_io.h"
#include "protocol/switchml/switch.h"
#include "protocol/switchml/worker.h"

namespace netsum::fuzz {

// libFuzzer takes an abort for a finding.
inline void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

struct Datagram {
  Endpoint from, to;
  std::vector<std::byte> bytes;
};

// Reads references at flush() and not before, as the contract of Sink allows.
class Outbox final : public Sink {
 public:
  Outbox(Endpoint self, std::vector<Datagram>& sent) : self_(self), sent_(sent) {}

  std::span<std::byte> datagram(const Endpoint& to, std::size_t bytes) override {
    auto& item = *pending_.emplace_back(std::make_unique<Pending>(Pending{std::vector<std::byte>(bytes), {to}, {}, {}}));
    item.to = item.owned_to;
    return item.owned;
  }
  void multicast(std::span<const std::byte> packet, std::span<const Endpoint> to) override {
    pending_.push_back(std::make_unique<Pending>(Pending{{}, {}, packet, to}));
  }
  void flush() override {
    for (const auto& item : pending_) {
      const std::span<const std::byte> bytes = item->owned.empty() ? item->referenced : item->owned;
      for (const Endpoint& to : item->to) sent_.push_back({self_, to, {bytes.begin(), bytes.end()}});
    }
    pending_.clear();
  }

 private:
  struct Pending {  // behind a pointer: what was given out stays where it is
    std::vector<std::byte> owned;
    std::vector<Endpoint> owned_to;
    std::span<const std::byte> referenced;
    std::span<const Endpoint> to;
  };
  Endpoint self_;
  std::vector<Datagram>& sent_;
  std::vector<std::unique_ptr<Pending>> pending_;
};

inline constexpr std::uint64_t job_epoch = 0x1234567890abcdef;
inline constexpr std::uint32_t rank_epochs[] = {1000, 1001};
inline constexpr std::uint32_t packet_elements = 64;

[[nodiscard]] inline Endpoint endpoint_of(std::uint8_t host) {
  Endpoint endpoint;
  endpoint.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, host};
  endpoint.port = 7170;
  return endpoint;
}

struct alignas(64) CacheLine {
  std::byte bytes[64];
};

struct Job {
  explicit Job(std::uint32_t slots) : memory(switchml::Switch::memory_bytes(packet_elements, slots, 2) / sizeof(CacheLine)) {
    switchml::SwitchJobConfig config{job_epoch, packet_elements, slots, {}};
    for (std::uint8_t rank = 0; rank < 2; ++rank) config.members.push_back({rank_epochs[rank], endpoint_of(rank)});
    check(aggregator.add_job(config, std::as_writable_bytes(std::span(memory))), "a job is admitted");
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      switchml::WorkerConfig worker;
      worker.job_epoch = job_epoch;
      worker.rank = rank;
      worker.world_size = 2;
      worker.rank_epoch = rank_epochs[rank];
      worker.folded_epochs = wire::fold_epochs(rank_epochs);
      worker.packet_elements = packet_elements;
      worker.slots = slots;
      worker.aggregator = endpoint_of(255);
      workers.emplace_back(worker);
    }
  }

  std::vector<CacheLine> memory;
  switchml::Switch aggregator;
  std::vector<switchml::Worker> workers;
};

}  // namespace netsum::fuzz
