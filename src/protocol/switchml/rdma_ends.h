// The two ends of each queue pair of a job over RoCEv2 UC, which both sides know from the job's epoch alone: it is random,
// and never issued again.
#pragma once

#include <cstdint>

#include "base/mix.h"
#include "wire/roce.h"

namespace netsum::switchml {

// Of one member's memory, and its first queue pair at both ends; the others follow.
struct RdmaEnds {
  std::uint32_t switch_qp = 0, rank_qp = 0;
  std::uint64_t memory_address = 0;
  std::uint32_t memory_key = 0;
};

// `queues`: of each member, one for each message in flight.
[[nodiscard]] inline RdmaEnds rdma_ends(std::uint64_t job_epoch, std::uint32_t members, std::uint32_t member,
                                        std::uint32_t queues) {
  constexpr std::uint32_t reserved = 2;  // queue pairs of InfiniBand's own management
  const auto first_of = [&](std::uint64_t random, std::uint32_t count) {
    return reserved + static_cast<std::uint32_t>(random % (wire::roce::qp_mask + 1 - reserved - count));
  };
  const std::uint64_t own = mix(job_epoch ^ mix(member + 1));
  RdmaEnds ends;
  ends.switch_qp = first_of(mix(job_epoch), members * queues) + member * queues;
  ends.rank_qp = first_of(own, queues);
  ends.memory_address = mix(own + 1) >> 17 << 12;  // of a page, as a process has it
  ends.memory_key = static_cast<std::uint32_t>(mix(own + 2));
  return ends;
}

// The first PSN of a queue pair, towards its end with this number.
[[nodiscard]] inline std::uint32_t rdma_psn(std::uint64_t job_epoch, std::uint32_t queue_pair) {
  return static_cast<std::uint32_t>(mix(job_epoch + queue_pair)) & wire::roce::psn_mask;
}

}  // namespace netsum::switchml
