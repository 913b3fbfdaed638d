// What the fuzzers share: a job of two ranks, a sink that keeps what is sent, and the end of a run that found something.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include "base/packet_io.h"
#include "protocol/switchml/switch.h"
#include "protocol/switchml/worker.h"
#include "support/recording_sink.h"
#include "wire/epochs.h"

namespace netsum::fuzz {

// libFuzzer takes an abort for a finding.
inline void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

using testing::Datagram;
using testing::RecordingSink;

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

[[nodiscard]] inline seal::PacketKey key(std::uint8_t number) {
  seal::PacketKey::Bytes bytes;
  bytes.fill(std::byte{number});
  return seal::PacketKey(bytes);
}

struct Job {
  explicit Job(std::uint32_t slots, PacketSecurity security = PacketSecurity::none)
      : memory(switchml::Switch::memory_bytes(packet_elements, slots, 2) / sizeof(CacheLine)) {
    const bool sealed = security != PacketSecurity::none;
    const auto keys_of = [&](std::uint8_t rank) {
      return sealed ? switchml::HopKeys{key(static_cast<std::uint8_t>(2 * rank + 1)),
                                        key(static_cast<std::uint8_t>(2 * rank + 2))}
                    : switchml::HopKeys();
    };
    switchml::SwitchJobConfig config{job_epoch, packet_elements, slots, {}};
    config.security = security;
    if (sealed) config.results = key(0);
    for (std::uint8_t rank = 0; rank < 2; ++rank) {
      config.members.push_back({rank_epochs[rank], endpoint_of(rank), false, keys_of(rank)});
    }
    check(aggregator.add_job(config, std::as_writable_bytes(std::span(memory))), "a job is admitted");
    for (std::uint8_t rank = 0; rank < 2; ++rank) {
      switchml::WorkerConfig worker;
      worker.security = security;
      worker.results = config.results;
      worker.keys = keys_of(rank);
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
