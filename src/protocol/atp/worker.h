// The worker: ATP §3.6 and §3.7 over a continuous stream of operations.
//
// One object serves one lane: one parameter server's thread and the switches before it. Tensors are read when a chunk is
// sent and written when its parameter packet arrives. No I/O, no clock, no allocation per packet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/counter_list.h"
#include "base/packet_io.h"
#include "base/time.h"
#include "protocol/atp/congestion_control.h"
#include "protocol/atp/index.h"
#include "protocol/atp/numbers.h"
#include "stream/operation.h"
#include "stream/underflow.h"
#include "wire/atp.h"

namespace netsum::atp {

struct WorkerConfig {
  std::uint64_t job_epoch = 0;
  std::uint32_t rank = 0, world_size = 1;
  std::uint32_t rank_epoch = 0, folded_epochs = 0;
  std::uint32_t packet_elements = 256;
  std::uint32_t window = 256;         // the most chunks in flight
  std::uint32_t lane = 0, lanes = 1;  // counted over all parameter servers
  Endpoint first_hop;                 // the rank's switch, or the server if there is none
  Endpoint server;
  wire::atp::Directions path;
  Indexing indexing = Indexing::rehash;
  Scaling scaling = Scaling::fixed;
  Rules rules = Rules::netsum;
  std::uint32_t switch_slots = 1024;                       // the smallest number at any switch of the job
  std::uint32_t partition_first = 0, partition_count = 0;  // Indexing::partition
  bool congestion_control = true;                          // false: always the whole window
  MakeCongestionControl control = nullptr;                 // in place of AIMD
  bool checksums = true;  // false: switch and server are on this host; packets never leave its memory
  Duration initial_timeout = std::chrono::milliseconds(20);
  Duration min_timeout = std::chrono::milliseconds(1);  // §5.2.3
  Duration max_timeout = std::chrono::milliseconds(250);
  Duration held_timeout = std::chrono::seconds(1);   // after "have yours"
  Duration bypass = std::chrono::milliseconds(200);  // first bypass of switches that are silent
  Duration longest_bypass = std::chrono::milliseconds(400);
  std::size_t operations = 256;  // pending at once
};

struct WorkerCounters {
  std::uint64_t gradients = 0;        // first transmissions
  std::uint64_t retransmissions = 0;  // of any kind
  std::uint64_t resends = 0;          // of `retransmissions`: with the resend flag
  std::uint64_t fast_resends = 0;     // of `retransmissions`: after three parameter packets out of order
  std::uint64_t losses = 0;           // gradient packets that the switch missed
  std::uint64_t floats_sent = 0;
  std::uint64_t bypasses = 0;  // times that the switches were bypassed
  std::uint64_t remapped = 0;  // indices
  std::uint64_t rescaled = 0;  // first transmissions at another scale than 10^8

  std::uint64_t parameters = 0;
  std::uint64_t asks = 0, waiting = 0;
  std::uint64_t stale = 0;  // of any type; no longer waited for
  std::uint64_t mismatch = 0, unknown_job = 0;
  std::uint64_t malformed[wire::parse_error_kinds] = {};
  std::uint64_t foreign = 0;     // other source, job or membership
  std::uint64_t unbelieved = 0;  // of a job with keys, without a neighbour's seal

  std::uint64_t marked = 0;  // parameters with ECN

  static constexpr auto fields() {
    using enum CounterKind;
    using C = WorkerCounters;
    return std::to_array<CounterField<C>>({
        {"gradients", &C::gradients, other},
        {"retransmissions", &C::retransmissions, other},
        {"resends", &C::resends, other},
        {"fast_resends", &C::fast_resends, other},
        {"losses", &C::losses, outcome},
        {"floats_sent", &C::floats_sent, other},
        {"bypasses", &C::bypasses, other},
        {"remapped", &C::remapped, other},
        {"rescaled", &C::rescaled, other},
        {"parameters", &C::parameters, outcome},
        {"asks", &C::asks, outcome},
        {"waiting", &C::waiting, outcome},
        {"stale", &C::stale, outcome},
        {"mismatch", &C::mismatch, outcome},
        {"unknown_job", &C::unknown_job, outcome},
        {"foreign", &C::foreign, outcome},
        {"unbelieved", &C::unbelieved, outcome},
        {"marked", &C::marked, other},
    });
  }
};

// Why a lane has failed.
struct WorkerFailure {
  enum class Kind : std::uint8_t { mismatch, unknown_job } kind;
  std::uint64_t operation = 0;
  std::uint32_t first_rank = 0, second_rank = 0;  // mismatch
};

struct WorkerStall {
  std::uint64_t operation;
  std::uint32_t chunk;       // of the operation
  wire::atp::Ranks missing;  // as last reported; empty if there was no answer
  Time told{};
};

class Worker {
 public:
  explicit Worker(const WorkerConfig& config);
  ~Worker();
  Worker(Worker&&) noexcept;
  Worker& operator=(Worker&&) noexcept;
  // State is a value. A copy refers to the same tensors until move_tensor() names others with the same content.
  Worker(const Worker& other);
  Worker& operator=(const Worker& other);
  void move_tensor(std::uint64_t operation, void* data);  // of a pending operation
  // All state that determines what it sends and accepts, for comparing and hashing: no times, transmissions or counters.
  void append_state(std::vector<std::byte>& out) const;

  // Takes the next operation, in order of number, and sends what the window allows. False: too many are pending.
  [[nodiscard]] bool submit(const stream::Operation& operation, Time now, Sink& sink);

  void on_packets(std::span<const RxView> packets, Time now, Sink& sink);
  void count_unbelieved(std::uint64_t packets);  // that came, and were kept from it (seal/hops.h)
  void on_timer(Time now, Sink& sink);
  [[nodiscard]] Time next_timeout() const;  // `never` if nothing is in flight

  // Numbers of the operations whose share of this lane has completed since the last call, in order of completion.
  [[nodiscard]] std::vector<std::uint64_t> take_completed();
  [[nodiscard]] bool idle() const;  // no operation pending on this lane
  [[nodiscard]] const std::optional<WorkerFailure>& failure() const;
  [[nodiscard]] std::optional<WorkerStall> oldest_stall() const;
  [[nodiscard]] std::uint32_t congestion_window() const;  // packets
  [[nodiscard]] const WorkerCounters& counters() const;
  [[nodiscard]] const stream::Underflow& underflow() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::atp
