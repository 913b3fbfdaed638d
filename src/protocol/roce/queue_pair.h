// One end of a RoCEv2 reliable connection: requester of RDMA WRITE with immediate, and responder to it (InfiniBand
// Architecture Specification, chapter 9). Go-back-N; one path MTU; messages in order.
//
// The same object is both ends' business: what it posts, it sends and repeats until it is acknowledged; what it is sent, it
// writes into its memory and acknowledges. No I/O, no clock, no allocation per packet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/time.h"
#include "wire/roce.h"

namespace netsum::roce {

// Where a queue pair's packets go: each is handed over as bytes from the IP header to the ICRC.
class PacketSink {
 public:
  // A place for one packet, to be filled before the next call.
  virtual std::span<std::byte> packet(std::size_t bytes) = 0;

 protected:
  ~PacketSink() = default;
};

struct QueuePairConfig {
  std::array<std::uint8_t, 16> local{}, remote{};  // addresses, as Endpoint has them
  std::uint16_t source_port = 0xc000;              // UDP
  std::uint32_t local_qp = 0, remote_qp = 0;       // 24 bits
  std::uint32_t send_psn = 0, receive_psn = 0;     // of the first packet, 24 bits
  std::uint32_t mtu = 1024;                        // path MTU: payload of a packet
  std::uint32_t max_packets = 4096;                // sent and not acknowledged
  std::uint32_t max_messages = 64;                 // posted and not completed
  std::uint32_t ack_interval = 32;                 // packets between two requests for an ACK inside a message
  std::span<std::byte> memory;                     // that the peer may write to
  std::uint64_t memory_address = 0;                // by which the peer knows its first byte
  std::uint32_t memory_key = 0;                    // that the peer must show (R_Key)
  Duration initial_timeout = std::chrono::milliseconds(20);
  Duration min_timeout = std::chrono::milliseconds(1);
  Duration max_timeout = std::chrono::milliseconds(250);
  // Time-outs in a row, of the same packet, until it gives up; none: never (whoever owns it has a deadline of its own).
  std::optional<std::uint32_t> retries;
};

struct QueuePairCounters {
  std::uint64_t packets_sent = 0, retransmissions = 0, packets_received = 0, messages_sent = 0, messages_received = 0;
  std::uint64_t acks_sent = 0, acks_received = 0, naks_sent = 0, naks_received = 0, timeouts = 0;
  std::uint64_t duplicates = 0;    // requests that were there before
  std::uint64_t out_of_order = 0;  // requests behind a gap
  std::uint64_t stale_acks = 0;    // of what was acknowledged before, or never sent
  std::uint64_t refused = 0;       // requests that were answered with another NAK
  std::uint64_t foreign = 0;       // not from the peer, not for this queue pair, or no RC packet that it takes
};

struct Received {
  std::uint64_t offset = 0;  // in the memory
  std::uint32_t bytes = 0;
  std::uint32_t immediate = 0;
};

// Why a queue pair cannot go on.
enum class QueuePairError : std::uint8_t {
  none,
  retries_exceeded,  // the peer does not answer
  remote_access,     // the peer refused the address, the key or the length
  remote_invalid,    // the peer does not take such requests
  remote_operation,  // the peer failed
};
[[nodiscard]] const char* to_string(QueuePairError error);

class QueuePair {
 public:
  explicit QueuePair(const QueuePairConfig& config);
  ~QueuePair();
  QueuePair(QueuePair&&) noexcept;
  QueuePair& operator=(QueuePair&&) noexcept;

  // RDMA WRITE of `message` (not empty, at most 2^31 bytes) to `address` of the peer's memory, with an immediate. `message`
  // must not change until it is completed. False: max_messages are under way, or an error.
  [[nodiscard]] bool post_write(std::span<const std::byte> message, std::uint64_t address, std::uint32_t key,
                                std::uint32_t immediate);

  // Sends what may be sent now: new packets, repeats, ACKs. To be called after posts and packets, once a batch.
  void send(Time now, PacketSink& sink);

  // A packet for this queue pair whose ICRC was found right. What it asks to be sent, send() sends.
  void on_packet(const wire::roce::Packet& packet, Time now);
  void on_timer(Time now);
  [[nodiscard]] Time next_timeout() const;  // `never` if nothing is unacknowledged

  [[nodiscard]] std::uint64_t completed() const;  // messages of ours that the peer has acknowledged, since the beginning
  // Whole messages that the peer has written, in order, since the last call; valid until the next one. The memory is not
  // guarded: the peer may write to it again.
  [[nodiscard]] std::span<const Received> take_received();

  [[nodiscard]] QueuePairError error() const;
  [[nodiscard]] const QueuePairConfig& config() const;
  [[nodiscard]] const QueuePairCounters& counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::roce
