// A rank's place in a ring of RDMA hardware (libibverbs): one reliable connection to the successor, to whose memory it
// writes messages, and one from the predecessor, who writes to its own. The device does all the rest: packets,
// acknowledgements, repeats.
//
// Belongs to one thread, as any transport. Nothing is received as datagrams: receive() has a view without bytes where
// take_events() has something.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "transport/transport.h"

namespace netsum::transport {

// What a rank's neighbours must know of its two queue pairs.
struct VerbsMember {
  std::array<std::uint8_t, 16> address{};   // its GID: an IPv4-mapped IPv6 address, or an IPv6 one
  std::uint32_t send_qp = 0, send_psn = 0;  // towards the successor
  std::uint32_t receive_qp = 0;             // from the predecessor, who may write to
  std::uint64_t memory_address = 0;         // this memory,
  std::uint32_t memory_key = 0;             // with this key
};

struct VerbsOptions {
  std::string device;                      // as `rdma link` and ibv_devices name it
  std::uint32_t mtu = 1024;                // path MTU
  std::uint32_t messages = 8;              // ours under way at once
  std::size_t send_bytes = 0;              // of the memory that messages are sent from
  std::size_t receive_bytes = 0;           // of the one that the predecessor writes to
  std::optional<std::uint32_t> first_psn;  // 24 bits; none: random
  std::uint8_t ack_timeout = 20;           // 4.096 us * 2^it, as long as a device waits for an acknowledgement
};

struct VerbsEvents {
  std::uint64_t completed = 0;  // messages of ours that the successor has, since the beginning
  struct Received {
    std::uint32_t bytes = 0, immediate = 0;
  };
  std::span<const Received> received;  // messages of the predecessor, in order; valid until the next call
};

class VerbsRing : public Transport {
 public:
  // How often a device repeats before it gives up: 7 times would mean for ever to some, and no dead accelerator would ever
  // be noticed.
  static constexpr std::uint8_t retries = 6;

  [[nodiscard]] virtual const VerbsMember& own() const = 0;
  [[nodiscard]] virtual std::span<std::byte> send_memory() = 0;
  [[nodiscard]] virtual std::span<std::byte> receive_memory() = 0;

  // Once. Throws Error: refused.
  virtual void connect(const VerbsMember& successor, const VerbsMember& predecessor) = 0;

  // RDMA WRITE with immediate of a part of send_memory() to `offset` of the successor's memory. False: not now.
  [[nodiscard]] virtual bool post(std::span<const std::byte> message, std::uint64_t offset, std::uint32_t immediate) = 0;
  [[nodiscard]] virtual VerbsEvents take_events() = 0;
  [[nodiscard]] virtual std::string failure() const = 0;  // why it cannot go on, in words; empty: it can
};

// Throws Error: bad_argument (no such device, or none at all), refused (the device cannot do that, or libibverbs was not
// there when this was built).
[[nodiscard]] std::unique_ptr<VerbsRing> open_verbs_ring(const VerbsOptions& options);
[[nodiscard]] std::uint32_t verbs_path_mtu(const std::string& device);  // the most that its port takes; throws as that does

}  // namespace netsum::transport
