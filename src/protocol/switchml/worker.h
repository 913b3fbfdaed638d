// The worker: SwitchML Algorithm 4 over continuous streams of operations (Appendix B), with exponent look-ahead (§4.6).
//
// One object serves one lane: the slots of one aggregator thread. Tensors are read when a chunk is sent and written when
// its result arrives. No I/O, no clock, no allocation per packet.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bitmap.h"
#include "base/counter_list.h"
#include "base/packet_io.h"
#include "base/time.h"
#include "protocol/switchml/hop_keys.h"
#include "protocol/switchml/stripes.h"
#include "seal/private_sums.h"
#include "stream/operation.h"
#include "stream/underflow.h"
#include "wire/epochs.h"
#include "wire/switchml.h"
#include "wire/switchml_chip.h"

namespace netsum::switchml {

struct WorkerConfig {
  std::uint64_t job_epoch = 0;
  std::uint32_t rank = 0, world_size = 1;
  std::uint32_t rank_epoch = 0;
  std::uint32_t folded_epochs = 0;  // wire::fold_epochs of all ranks
  std::uint32_t packet_elements = 256;
  std::uint32_t slots = 64;                     // of each window (windows.h)
  std::uint32_t group = 0;                      // most chunks that begin together, in tests; 0: as many as suit the window
  std::uint32_t lane = 0, lanes = 1;            // this lane's share of the runs of stripes
  std::uint32_t run_bytes = default_run_bytes;  // of stripes that follow each other on a lane; the same at all ranks
  Endpoint aggregator;
  bool in_tree = false;                              // the aggregator is a switch with a parent
  bool checksums = true;                             // false: the aggregator is on this host; packets never leave its memory
  bool chip = false;                                 // the aggregator has the chip profile (docs/protocol-switchml-chip.md)
  std::uint32_t member = 0;                          // there and over UC: this rank's number among its switch's members
  std::uint32_t last_round = wire::chip::max_round;  // of a slot version, there and over UC; fewer in tests
  // Over UC queue pairs (docs/protocol-switchml-rdma.md): from this host's address. A slot is a queue pair, and
  // `packet_elements` are a longest message's.
  std::optional<std::array<std::uint8_t, 16>> rdma{};
  // Of a job whose packets are sealed: `results` of all ranks, `keys` of this one; none: the aggregator is on this host.
  PacketSecurity security = PacketSecurity::none;
  seal::PacketKey results{};
  HopKeys keys{};
  std::optional<seal::PadKeys> pads{};           // of a job whose aggregators cannot read its values
  std::optional<std::uint8_t> fixed_exponent{};  // of all blocks, so that ranks show none; not in the chip profile
  Duration initial_timeout = std::chrono::milliseconds(20);
  Duration min_timeout = std::chrono::milliseconds(1);  // SwitchML §6.3
  Duration max_timeout = std::chrono::milliseconds(250);
  Duration held_timeout = std::chrono::seconds(1);  // after "have yours": the switch waits for other ranks
  std::size_t operations = 256;                     // pending at once

  // The switch tells rounds by their numbers, and adds nothing but integers.
  [[nodiscard]] bool numbered() const { return chip || rdma.has_value(); }
};

struct WorkerCounters {
  std::uint64_t contributions = 0, retransmissions = 0, exponent_rounds = 0;
  std::uint64_t runs_sent = 0;  // of `contributions` without values, several in one packet: packets
  std::uint64_t results = 0;
  std::uint64_t in_runs = 0;          // of several chunks' answers in a packet, all but one
  std::uint64_t message_packets = 0;  // of results' messages, all but the last
  std::uint64_t gaps = 0;             // of messages with a packet before them missing
  std::uint64_t waiting = 0;          // "have yours"
  std::uint64_t losses = 0;           // "yours is missing"
  std::uint64_t stale = 0;            // of any type; no slot waits for it any more
  std::uint64_t mismatch = 0, unknown_job = 0;
  std::uint64_t malformed[wire::parse_error_kinds] = {};
  std::uint64_t foreign = 0;     // other source, job or membership
  std::uint64_t unbelieved = 0;  // no seal, one that is not the aggregator's, or a repeat of what counts once

  static constexpr auto fields() {
    using enum CounterKind;
    using C = WorkerCounters;
    return std::to_array<CounterField<C>>({
        {"contributions", &C::contributions, other},
        {"retransmissions", &C::retransmissions, other},
        {"exponent_rounds", &C::exponent_rounds, other},
        {"runs_sent", &C::runs_sent, other},
        {"results", &C::results, outcome},
        {"in_runs", &C::in_runs, more},
        {"message_packets", &C::message_packets, outcome},
        {"gaps", &C::gaps, outcome},
        {"waiting", &C::waiting, outcome},
        {"losses", &C::losses, outcome},
        {"stale", &C::stale, outcome},
        {"mismatch", &C::mismatch, outcome},
        {"unknown_job", &C::unknown_job, outcome},
        {"foreign", &C::foreign, outcome},
        {"unbelieved", &C::unbelieved, outcome},
    });
  }
};

// Why a lane has failed.
struct WorkerFailure {
  enum class Kind : std::uint8_t { mismatch, unknown_job, rounds_used_up, changed_sum } kind;
  std::uint64_t operation = 0;
  std::uint32_t first_rank = 0, second_rank = 0;  // mismatch
};

struct WorkerStall {
  std::uint64_t operation;
  std::uint32_t chunk;
  wire::switchml::Ranks missing;  // as the switch last reported; empty if it has not answered
  Time told{};                    // when it was reported
};

struct Slot;

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

  // For tests and benchmarks: the fast path does what the other one does (software_profile.h).
  void use_fast_path(bool use);
  [[nodiscard]] std::uint64_t fast_results() const;  // that it read

  // All state that determines what it sends and accepts, for comparing and hashing: no times, retransmissions or counters.
  void append_state(std::vector<std::byte>& out) const;
  [[nodiscard]] const Slot& slot(std::size_t number) const;  // for tests (in_flight.h)

  // Takes the next operation, in order of number, and sends what the window allows. False: too many are pending.
  [[nodiscard]] bool submit(const stream::Operation& operation, Time now, Sink& sink);

  void on_packets(std::span<const RxView> packets, Time now, Sink& sink);
  void on_timer(Time now, Sink& sink);
  [[nodiscard]] Time next_timeout() const;  // `never` if nothing is in flight

  // Numbers of the operations whose share of this lane has completed since the last call, in order of completion.
  [[nodiscard]] std::vector<std::uint64_t> take_completed();
  [[nodiscard]] bool idle() const;  // no operation pending on this lane
  [[nodiscard]] const std::optional<WorkerFailure>& failure() const;
  [[nodiscard]] std::optional<WorkerStall> oldest_stall() const;  // of the oldest chunk in flight
  [[nodiscard]] const WorkerCounters& counters() const;
  [[nodiscard]] const stream::Underflow& underflow() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::switchml
