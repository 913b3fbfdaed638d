// The parameters of a rank's two queue pairs in a ring, as announced to the other ranks and the accelerator.
#pragma once

#include <array>
#include <cstdint>

#include "protocol/netreduce/connection.h"

namespace netsum::netreduce {

struct Member {
  std::array<std::uint8_t, 16> address{};   // of the host, in Endpoint's format
  std::uint32_t send_qp = 0, send_psn = 0;  // towards the successor
  std::uint32_t receive_qp = 0;             // from the predecessor, which may write to
  std::uint64_t memory_address = 0;         // this memory, for 2N messages,
  std::uint32_t memory_key = 0;             // with this key
  bool operator==(const Member&) const = default;
};

// Carries gradients from a member to its successor.
[[nodiscard]] inline Connection data_connection(const Member& from, const Member& to) {
  return {from.address, to.address, to.receive_qp};
}
// Carries the successor's answers.
[[nodiscard]] inline Connection answer_connection(const Member& from, const Member& to) {
  return {to.address, from.address, from.send_qp};
}

}  // namespace netsum::netreduce
