// A switch as a chip would be one (docs/protocol-switchml-chip.md), for any number of jobs: chip_slots.h with packets around
// it. Its interface is Switch's.
//
// It tells ranks nothing but results: no losses, stragglers, mismatches or unknown jobs. One object serves one thread's
// share of the slots. No I/O, no clock, no allocation per packet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/packet_io.h"
#include "base/time.h"
#include "protocol/switchml/switch.h"
#include "wire/switchml_chip.h"

namespace netsum::switchml {

enum class ChipPass : std::uint8_t;
struct ChipRound;

class ChipSwitch {
 public:
  // Bytes of memory for results that a job needs on this lane.
  [[nodiscard]] static std::size_t memory_bytes(std::uint32_t packet_elements, std::uint32_t slots);
  [[nodiscard]] static std::size_t memory_bytes(const SwitchJobConfig& config) {
    return memory_bytes(config.packet_elements, config.slots);
  }
  // Including the slots' registers.
  [[nodiscard]] static std::size_t total_bytes(std::uint32_t packet_elements, std::uint32_t slots);

  ChipSwitch();
  ~ChipSwitch();
  ChipSwitch(ChipSwitch&&) noexcept;
  ChipSwitch& operator=(ChipSwitch&&) noexcept;
  // As Switch's.
  ChipSwitch(const ChipSwitch& other);
  ChipSwitch& operator=(const ChipSwitch& other);
  void move_memory(std::uint64_t epoch, std::span<std::byte> memory);
  void append_state(std::vector<std::byte>& out) const;

  // As Switch's. A chip's multicast needs no group: results go to each member.
  struct Job;
  struct Destroy {
    void operator()(Job* job) const;
  };
  using JobState = std::unique_ptr<Job, Destroy>;
  // Null: too little memory, too many members, or packets of a length that chips do not take.
  [[nodiscard]] static JobState make_job(const SwitchJobConfig& config, std::span<std::byte> memory);
  [[nodiscard]] bool add_job(JobState&& job);
  [[nodiscard]] bool add_job(const SwitchJobConfig& config, std::span<std::byte> memory) {
    JobState job = make_job(config, memory);
    return job && add_job(std::move(job));
  }
  JobState remove_job(std::uint64_t epoch);

  void on_packets(std::span<const RxView> packets, Time now, Sink& sink);

  [[nodiscard]] const JobCounters* job_counters(std::uint64_t epoch) const;
  [[nodiscard]] const DropSources<JobCounters>* drop_sources(std::uint64_t epoch) const;
  [[nodiscard]] const SwitchCounters& counters() const { return counters_; }
  [[nodiscard]] std::uint32_t slots_in_use(std::uint64_t epoch) const;
  // Operation and chunk are those of the packet that opened the round; a chip could not say.
  [[nodiscard]] std::vector<StalledChunk> stalled(std::uint64_t epoch, std::size_t most) const;

 private:
  void on_packet(const RxView& packet, Sink& sink);
  void on_result(Job& job, const RxView& packet, const wire::chip::Packet& parsed, Sink& sink);
  void second_pass(Job& job, const RxView& packet, wire::chip::Header header, ChipPass pass, bool repeats, Sink& sink);
  void send_to_all(Job& job, const ChipRound& of, std::span<const std::byte> result, Sink& sink);
  [[nodiscard]] Job* find(std::uint64_t epoch);

  std::unordered_map<std::uint64_t, JobState> jobs_;
  Job* last_ = nullptr;  // the job of the previous packet: packets of one job come in trains
  SwitchCounters counters_;
  std::uint64_t batch_ = 0;
};

}  // namespace netsum::switchml
