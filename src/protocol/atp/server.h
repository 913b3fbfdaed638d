// The parameter server: ATP §3.6-§3.8, for any number of jobs. It adds the gradient packets that reach it (individual,
// partial or complete) by their bitmaps and answers with parameter packets.
//
// One object serves one lane of each job. No I/O, no clock, no allocation per packet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/counter_list.h"
#include "base/drop_sources.h"
#include "base/packet_io.h"
#include "base/reply_budget.h"
#include "base/time.h"
#include "protocol/atp/index.h"
#include "protocol/atp/numbers.h"
#include "protocol/atp/topology.h"
#include "wire/atp.h"

namespace netsum::atp {

struct ServerMember {
  std::uint32_t epoch = 0;  // of the rank's process
  Endpoint endpoint;
};

struct ServerJobConfig {
  std::uint64_t epoch = 0;
  std::uint32_t folded_epochs = 0;
  std::uint32_t packet_elements = 256;
  std::uint32_t window = 256;  // the most chunks in flight per rank
  std::uint32_t switch_slots = 1024;
  Indexing indexing = Indexing::rehash;
  Overflow overflow = Overflow::exact;
  Rules rules = Rules::netsum;
  Topology topology;
  std::vector<ServerMember> members;  // by rank
  std::vector<Endpoint> roots;        // by position in topology.server_children(); without a port: not known yet
};

struct ServerJobCounters {
  std::uint64_t packets = 0, bytes = 0;
  std::uint64_t added_single = 0;    // one rank's values, added here
  std::uint64_t added_partial = 0;   // sums of several ranks
  std::uint64_t added_complete = 0;  // sums of all ranks
  std::uint64_t floats = 0;          // float values of one rank
  std::uint64_t repeats_answered = 0, repeats_waiting = 0, repeats_silent = 0;
  std::uint64_t overlaps = 0;  // partial sums with values of some ranks already added; unusable
  std::uint64_t old = 0;       // old sequence numbers, answered with "done"
  std::uint64_t dropped_early = 0, dropped_mismatch = 0, dropped_source = 0, dropped_rank_epoch = 0, dropped_shape = 0;

  std::uint64_t chunks = 0;      // completed
  std::uint64_t fallbacks = 0;   // of `chunks`: summed from float values
  std::uint64_t collisions = 0;  // packets that found no slot
  std::uint64_t remapped = 0;    // indices
  std::uint64_t asks = 0;        // to single ranks

  static constexpr auto fields() {
    using enum CounterKind;
    using C = ServerJobCounters;
    return std::to_array<CounterField<C>>({
        {"packets", &C::packets, other},
        {"bytes", &C::bytes, other},
        {"added_single", &C::added_single, outcome},
        {"added_partial", &C::added_partial, outcome},
        {"added_complete", &C::added_complete, outcome},
        {"chunks", &C::chunks, other},
        {"fallbacks", &C::fallbacks, other},
        {"collisions", &C::collisions, other},
        {"remapped", &C::remapped, other},
        {"floats", &C::floats, outcome},
        {"asks", &C::asks, other},
        {"overlaps", &C::overlaps, outcome},
        {"old", &C::old, outcome},
        {"repeats_answered", &C::repeats_answered, outcome},
        {"repeats_waiting", &C::repeats_waiting, outcome},
        {"repeats_silent", &C::repeats_silent, outcome},
        {"dropped_early", &C::dropped_early, outcome},
        {"dropped_mismatch", &C::dropped_mismatch, outcome},
        {"dropped_source", &C::dropped_source, outcome},
        {"dropped_rank_epoch", &C::dropped_rank_epoch, outcome},
        {"dropped_shape", &C::dropped_shape, outcome},
    });
  }
};

struct ServerCounters {
  std::uint64_t malformed[wire::parse_error_kinds] = {};  // by wire::ParseError
  std::uint64_t unknown_job = 0, unknown_job_replies = 0, unexpected_type = 0;
  std::uint64_t unbelieved = 0;  // packets of a job with keys, without a neighbour's seal

  static constexpr auto fields() {
    using enum CounterKind;
    using C = ServerCounters;
    return std::to_array<CounterField<C>>({
        {"dropped_unknown_job", &C::unknown_job, outcome},
        {"unknown_job_replies", &C::unknown_job_replies, other},
        {"dropped_unexpected_type", &C::unexpected_type, outcome},
        {"dropped_seal", &C::unbelieved, outcome},
    });
  }

  // Packets that belong to no job.
  [[nodiscard]] std::uint64_t strangers() const { return outcomes(*this); }
};

struct StalledSequence {
  std::uint64_t sequence;
  Ranks missing;
};

class Server {
 public:
  // Bytes that a job needs on this lane, independent of tensor length: two windows of chunks (§3.6 keeps results for
  // retransmission), and buffers for the float values of a few chunks.
  [[nodiscard]] static std::size_t memory_bytes(std::uint32_t packet_elements, std::uint32_t window,
                                                std::uint32_t world_size);
  // Including the chunks' state.
  [[nodiscard]] static std::size_t total_bytes(std::uint32_t packet_elements, std::uint32_t window,
                                               std::uint32_t world_size);

  Server();
  ~Server();
  Server(Server&&) noexcept;
  Server& operator=(Server&&) noexcept;
  // State is a value. A copy refers to the original's memory until move_memory() assigns new memory to each job.
  Server(const Server& other);
  Server& operator=(const Server& other);
  void move_memory(std::uint64_t epoch, std::span<std::byte> memory);
  // All state that determines responses to packets, for comparing and hashing: no times, no counters.
  void append_state(std::vector<std::byte>& out) const;

  // A job's state is large: it is created and destroyed off the thread that serves packets.
  struct Job;
  struct Destroy {
    void operator()(Job* job) const;
  };
  using JobState = std::unique_ptr<Job, Destroy>;
  // `memory` (memory_bytes, zeroed, 64-byte aligned) stays with the job until it is destroyed. Null: too little memory.
  [[nodiscard]] static JobState make_job(const ServerJobConfig& config, std::span<std::byte> memory);
  // False: the epoch is in use; `job` is untouched.
  [[nodiscard]] bool add_job(JobState&& job);
  [[nodiscard]] bool add_job(const ServerJobConfig& config, std::span<std::byte> memory) {
    JobState job = make_job(config, memory);
    return job && add_job(std::move(job));
  }
  JobState remove_job(std::uint64_t epoch);  // null: unknown
  // The job's switches have new endpoints, or first become known. Safe at any time between a flush of the sink, which refers
  // to the old endpoints, and the next packet: the content of a sum follows from bitmaps, and these from the topology, which
  // does not change. A packet in flight from an old endpoint is dropped, and its sender repeats it; a packet in flight to
  // one is lost and asked for again.
  void move_roots(std::uint64_t epoch, const std::vector<Endpoint>& roots);

  // From so many waiting bytes on its own queue is long; 0: it has no job.
  [[nodiscard]] std::uint64_t long_queue() const { return long_queue_; }
  // `congested`: its own queue is long; chunks whose packets arrive now are marked (§3.7).
  void on_packets(std::span<const RxView> packets, bool congested, Time now, Sink& sink);
  // Packets that came, and were kept from it (seal/hops.h).
  void count_unbelieved(std::uint64_t packets) { counters_.unbelieved += packets; }

  [[nodiscard]] const ServerJobCounters* job_counters(std::uint64_t epoch) const;
  [[nodiscard]] const DropSources<ServerJobCounters>* drop_sources(std::uint64_t epoch) const;
  [[nodiscard]] const ServerCounters& counters() const { return counters_; }
  [[nodiscard]] std::uint32_t incomplete(std::uint64_t epoch) const;                                // chunks
  [[nodiscard]] std::vector<StalledSequence> stalled(std::uint64_t epoch, std::size_t most) const;  // oldest first

 private:
  struct Entry;

  // A gradient packet of a job, and whose values it holds.
  struct Gradient {
    wire::atp::GradientPacket packet;
    Ranks ranks;
    std::uint32_t rank = 0;      // the first of them
    std::uint32_t position = 0;  // among those that are next to this server
    bool single = false;         // one rank's values
    bool by_itself = false;      // from that rank, past the switches
  };
  void on_gradient(const RxView& packet, const wire::atp::Common& common, bool congested, Time now, Sink& sink);
  [[nodiscard]] static std::optional<Gradient> believe(Job& job, const RxView& packet, const wire::atp::Common& common);
  static void learn_path(Job& job, const Gradient& gradient, Sink& sink);
  // The entry of its sequence number; null: it was answered, or dropped.
  [[nodiscard]] Entry* place(Job& job, const RxView& packet, const Gradient& gradient, Sink& sink);
  void add(Job& job, Entry& entry, const RxView& packet, const Gradient& gradient, Time now, Sink& sink);
  void on_unknown_job(const RxView& packet, const wire::atp::Common& common, Time now, Sink& sink);
  void open(Job& job, Entry& entry, const wire::atp::Common& common, Sink& sink);
  void complete(Job& job, Entry& entry, Sink& sink);
  void on_floats(Job& job, Entry& entry, const RxView& packet, const wire::atp::GradientPacket& gradient, std::uint32_t rank,
                 Time now, Sink& sink);
  void begin_floats(Job& job, Entry& entry, Sink& sink);
  void send_parameter(Job& job, Entry& entry, bool floats, Sink& sink);
  void answer_repeat(Job& job, Entry& entry, const Ranks& ranks, std::size_t elements, const Endpoint& root, Time now,
                     Sink& sink);
  void answer_mismatch(Job& job, Entry& entry, const RxView& packet, std::uint32_t rank, std::uint32_t signature, Time now,
                       Sink& sink);
  void ask(Job& job, Entry& entry, const Ranks& ranks, bool floats, Time now, Sink& sink);
  void to_everybody(Job& job, std::span<const std::byte> packet, Sink& sink);
  [[nodiscard]] static bool may_tell(Entry& entry, std::uint32_t rank, Time now);
  [[nodiscard]] Job* find(std::uint64_t epoch);

  std::unordered_map<std::uint64_t, JobState> jobs_;
  Job* last_ = nullptr;
  ServerCounters counters_;
  std::uint64_t batch_ = 0;
  std::uint64_t long_queue_ = 0;
  Time batch_at_{};
  ReplyBudget unknown_job_budget_;
};

}  // namespace netsum::atp
