// One end of a RoCEv2 reliable connection: requester of RDMA WRITE with immediate, and responder to it (InfiniBand
// Architecture Specification, chapter 9). Go-back-N; one path MTU; messages in order.
//
// The same object is both ends' business: what it posts, it sends and repeats until it is acknowledged; what it is sent, it
// writes into its memory and acknowledges. No I/O, no clock, no allocation per packet.
//
// Where the specification leaves a choice, or we depart from what NICs do:
//  - A time-out sends the oldest unacknowledged packet again and nothing else: silence is a straggler behind an aggregating
//    device more often than a loss. The rest follows when the peer has answered that packet: when the ACK names it, or one
//    that had not asked for an ACK (so the peer answers a duplicate, and has nothing behind it). An ACK of a later packet
//    that had asked for it shows that nothing was lost (as F-RTO does for TCP, RFC 5682): then only the timer starts anew.
//  - One go-back per PSN: a responder does not repeat a sequence NAK before it got what it asks for, so a second one is the
//    network's duplicate and counts as stale. If the repeat is lost too, the time-out finds out, and NAKs count again.
//  - A NAK for not being ready (RNR) is obeyed however often it comes: the peer is there.
//  - The responder's ACK names the newest packet that asked for one; a duplicate is answered with the newest of all.
//  - A write without immediate is taken, as the specification has it: the owner is not told. One of no bytes needs no key.
//  - After it has refused a request, it takes the same PSN again if it is right this time; NICs give up the connection.
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
  // Time-outs in a row, of the same packet, that are answered with a repeat; the next one gives up. None: never (whoever
  // owns it has a deadline of its own).
  std::optional<std::uint32_t> retries;
};

// Every packet that arrives counts in exactly one of packets_received, acks_received, naks_received and the last five.
struct QueuePairCounters {
  std::uint64_t packets_sent = 0, retransmissions = 0;  // requests; repeats are in both
  std::uint64_t packets_received = 0;                   // requests, in order, once each
  std::uint64_t messages_sent = 0;                      // wholly, for the first time
  std::uint64_t messages_received = 0;                  // those without immediate too
  std::uint64_t acks_sent = 0, acks_received = 0, naks_sent = 0, naks_received = 0, timeouts = 0;
  std::uint64_t duplicates = 0;    // requests that were there before
  std::uint64_t out_of_order = 0;  // requests behind a gap
  std::uint64_t stale_acks = 0;    // ACKs and NAKs of what was acknowledged before, or never sent; NAKs that repeat one
  std::uint64_t refused = 0;       // requests that were answered with another NAK
  std::uint64_t foreign = 0;       // not from the peer, not for this queue pair, or no RC packet that it knows
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
  // State is a value. A copy refers to the same memory and messages until these name others with the same content.
  QueuePair(const QueuePair& other);
  QueuePair& operator=(const QueuePair& other);
  void move_memory(std::span<std::byte> memory);
  void move_message(std::uint64_t number, std::span<const std::byte> message);  // in order of posts; not completed yet

  // All that decides what it sends and takes, for comparing and hashing: not times, IP identifications and counters.
  void append_state(std::vector<std::byte>& out) const;

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
  // Whole messages with immediate that the peer has written, in order, since the last call; valid until the next one. The
  // memory is not guarded: the peer may write to it again.
  [[nodiscard]] std::span<const Received> take_received();

  [[nodiscard]] QueuePairError error() const;
  [[nodiscard]] const QueuePairConfig& config() const;
  [[nodiscard]] const QueuePairCounters& counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::roce
