// The switch's end of UC queue pairs (docs/protocol-switchml-rdma.md), for any number of jobs: each packet of a message goes
// through the rule of chip_slots.h, and each rank gets its results as messages. Its interface is Switch's, but for trees,
// seals and groups, which its jobs do not have.
//
// Packets are RoCEv2's, from the IP header to the ICRC. One object serves one thread's share of the slots. No I/O, no clock,
// no allocation per packet.
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

namespace netsum::wire::roce {
struct Packet;
struct Shape;
}  // namespace netsum::wire::roce

namespace netsum::switchml {

class RdmaSwitch {
 public:
  // `packet_elements` and `slots` of a job are a longest message's elements, and its messages in flight.
  // Bytes of memory for sums that a job needs on this lane.
  [[nodiscard]] static std::size_t memory_bytes(std::uint32_t packet_elements, std::uint32_t slots);
  [[nodiscard]] static std::size_t memory_bytes(const SwitchJobConfig& config) {
    return memory_bytes(config.packet_elements, config.slots);
  }
  // Including the slots' registers and the queue pairs.
  [[nodiscard]] static std::size_t total_bytes(std::uint32_t packet_elements, std::uint32_t slots, std::size_t members);

  RdmaSwitch();
  ~RdmaSwitch();
  RdmaSwitch(RdmaSwitch&&) noexcept;
  RdmaSwitch& operator=(RdmaSwitch&&) noexcept;

  // As Switch's.
  struct Job;
  struct Destroy {
    void operator()(Job* job) const;
  };
  using JobState = std::unique_ptr<Job, Destroy>;
  // Null: too little memory, too many members, or messages of a length that there is not.
  [[nodiscard]] static JobState make_job(const SwitchJobConfig& config, std::span<std::byte> memory);
  // False: the epoch or one of the queue pairs is in use.
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
  // Packets name no operation: it is the round's number that stands for it, and the slot for the chunk.
  [[nodiscard]] std::vector<StalledChunk> stalled(std::uint64_t epoch, std::size_t most) const;

 private:
  struct End;  // of a queue pair

  void on_packet(const RxView& packet, Sink& sink);
  // The message that begins. False: it makes no sense, and is counted.
  [[nodiscard]] static bool begin(Job& job, End& end, const RxView& from, const wire::roce::Packet& packet, bool only);
  void contribute(Job& job, End& end, const RxView& from, const wire::roce::Packet& packet, Sink& sink);
  void send_results(Job& job, End& end, Sink& sink) const;

  std::unordered_map<std::uint64_t, JobState> jobs_;
  std::unordered_map<std::uint32_t, Job*> job_of_pair_;
  SwitchCounters counters_;
  std::uint64_t batch_ = 0;
};

}  // namespace netsum::switchml
