// The parameter server: it adds every rank's chunks up, and sends every rank the sums. It keeps the sums of two windows for
// ranks that have lost one.
//
// A rank that sends chunk s has the sums of all chunks up to s - W, for a window of W. So every rank has sent s - W, and has
// the sum of s - 2W: its place is free for s.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/counter_list.h"
#include "base/packet_io.h"
#include "protocol/baseline/packet.h"

namespace netsum::baseline {

struct Member {
  std::uint32_t epoch = 0;
  Endpoint endpoint;
};

struct ServerJobConfig {
  std::uint64_t epoch = 0;
  std::uint32_t packet_elements = 256, window = 64;
  std::vector<Member> members;  // by rank
};

struct JobCounters {
  std::uint64_t packets = 0;  // received for this job
  std::uint64_t added = 0, repeats_answered = 0, repeats_waiting = 0, old = 0, mismatch = 0;
  std::uint64_t dropped_source = 0;  // not the rank's endpoint or process
  std::uint64_t dropped_early = 0;   // the place's chunk is not complete: a worker with a bug
  std::uint64_t dropped_shape = 0;
  std::uint64_t chunks = 0;  // complete

  static constexpr auto fields() {
    using enum CounterKind;
    return std::to_array<CounterField<JobCounters>>({{"packets", &JobCounters::packets, other},
                                                     {"added", &JobCounters::added, outcome},
                                                     {"repeats_answered", &JobCounters::repeats_answered, outcome},
                                                     {"repeats_waiting", &JobCounters::repeats_waiting, outcome},
                                                     {"old", &JobCounters::old, outcome},
                                                     {"mismatch", &JobCounters::mismatch, outcome},
                                                     {"dropped_source", &JobCounters::dropped_source, outcome},
                                                     {"dropped_early", &JobCounters::dropped_early, outcome},
                                                     {"dropped_shape", &JobCounters::dropped_shape, outcome},
                                                     {"chunks", &JobCounters::chunks, other}});
  }
};

struct ServerCounters {
  std::uint64_t malformed = 0, unknown_job = 0, unexpected_type = 0;

  static constexpr auto fields() {
    using enum CounterKind;
    return std::to_array<CounterField<ServerCounters>>({{"malformed_packets", &ServerCounters::malformed, outcome},
                                                        {"unknown_job", &ServerCounters::unknown_job, outcome},
                                                        {"unexpected_type", &ServerCounters::unexpected_type, outcome}});
  }
};

class Server {
 public:
  // Of sums, for two windows of chunks.
  [[nodiscard]] static std::size_t memory_bytes(std::uint32_t packet_elements, std::uint32_t window);

  struct Job {
    // `memory` (memory_bytes, aligned to doubles) outlives the job.
    Job(const ServerJobConfig& c, std::span<std::byte> memory);

    struct Chunk {
      bool used = false, complete = false, floats = false, average = false, mismatch = false;
      std::uint64_t sequence = 0, ranks = 0;  // ranks, as bits
      std::uint32_t signature = 0, elements = 0;
      std::uint32_t first = 0, second = 0;  // of a mismatch
      std::span<double> sums;               // of floats, which may leave float's range on the way
      std::span<std::uint32_t> values;      // as they are sent; of integers, the sums so far
    };
    ServerJobConfig config;
    std::vector<Chunk> chunks;
    JobCounters counters;
  };

  // Jobs are made and destroyed off the thread that serves packets. False: the epoch is in use.
  [[nodiscard]] bool add_job(Job&& job);
  [[nodiscard]] std::map<std::uint64_t, Job>::node_type remove_job(std::uint64_t epoch);

  void on_packets(std::span<const RxView> packets, Sink& sink);

  [[nodiscard]] const std::map<std::uint64_t, Job>& jobs() const { return jobs_; }  // by epoch
  [[nodiscard]] const ServerCounters& counters() const { return counters_; }

 private:
  void on_packet(const RxView& view, Sink& sink);
  static void add(Job::Chunk& chunk, const Packet& packet, std::size_t world_size);
  static void answer(const Job& job, const Job::Chunk& chunk, std::uint32_t rank, Sink& sink);

  std::map<std::uint64_t, Job> jobs_;
  ServerCounters counters_;
};

}  // namespace netsum::baseline
