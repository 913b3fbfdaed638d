// A rank's place in a ring of RDMA hardware (libibverbs), with one reliable connection to the successor, whose memory this
// rank writes messages to, and one from the predecessor, which writes to this rank's memory. The device does the rest:
// packets, acknowledgements, retransmissions. If it gives up because nobody answers, the connection begins again with the
// oldest message that is not acknowledged: a rank that is late looks like a dead path (docs/protocol-netreduce.md).
//
// Belongs to one thread, as any transport. Nothing is received as datagrams: receive() returns a view without bytes when
// take_events() has something.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/time.h"
#include "netsum/types.h"
#include "transport/datagram/transport.h"

namespace netsum::transport {

// A rank's two queue pairs, as its neighbours need them.
struct VerbsMember {
  std::array<std::uint8_t, 16> address{};   // its GID: an IPv4-mapped IPv6 address, or an IPv6 one
  std::uint32_t send_qp = 0, send_psn = 0;  // towards the successor
  std::uint32_t receive_qp = 0;             // from the predecessor, which may write to
  std::uint64_t memory_address = 0;         // this memory,
  std::uint32_t memory_key = 0;             // with this key
};

struct VerbsOptions {
  std::string device;  // as `rdma link` and ibv_devices name it
  VerbsSettings settings{};
  std::uint32_t mtu = 1024;                // path MTU
  std::uint32_t messages = 8;              // of this rank in flight at once
  std::size_t send_bytes = 0;              // of the memory for messages to send
  std::size_t receive_bytes = 0;           // of the memory that the predecessor writes to
  std::optional<std::uint32_t> first_psn;  // 24 bits; none: random
};

struct VerbsEvents {
  std::uint64_t completed = 0;  // messages of this rank that the successor has, since the beginning
  struct Received {
    std::uint32_t bytes = 0, immediate = 0;
  };
  std::span<const Received> received;  // messages of the predecessor, in order; valid until the next call
};

class VerbsRing : public Transport {
 public:
  [[nodiscard]] virtual const VerbsMember& own() const = 0;
  [[nodiscard]] virtual std::span<std::byte> send_memory() = 0;
  [[nodiscard]] virtual std::span<std::byte> receive_memory() = 0;

  // Call once. Throws Error: refused.
  virtual void connect(const VerbsMember& successor, const VerbsMember& predecessor) = 0;

  // RDMA WRITE with immediate, from a part of send_memory() to `offset` in the successor's memory. False: not now.
  [[nodiscard]] virtual bool post(std::span<const std::byte> message, std::uint64_t offset, std::uint32_t immediate) = 0;
  [[nodiscard]] virtual VerbsEvents take_events() = 0;
  [[nodiscard]] virtual std::string failure() const = 0;  // why the ring cannot go on, in words; empty: it can
  // What may pass, in words: the port is down. Empty: nothing. The owner ends the ring if it lasts longer than patience(),
  // which is as long as the device retransmits before it gives up.
  [[nodiscard]] virtual const std::string& trouble() const = 0;
  [[nodiscard]] virtual Duration patience() const = 0;
};

// Throws Error: bad_argument (no such device, or none at all), refused (the device cannot do that, or built without
// libibverbs).
[[nodiscard]] std::unique_ptr<VerbsRing> open_verbs_ring(const VerbsOptions& options);
struct VerbsPort {
  std::uint32_t mtu = 0;              // the longest path MTU
  std::uint64_t bits_per_second = 0;  // 0: unknown
};
// As it is now; throws as open_verbs_ring().
[[nodiscard]] VerbsPort verbs_port(const std::string& device, std::uint8_t port);

}  // namespace netsum::transport
