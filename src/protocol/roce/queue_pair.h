// One end of a RoCEv2 reliable connection: requester of RDMA WRITE with immediate, and responder to it (InfiniBand
// Architecture Specification, chapter 9). Go-back-N; one path MTU; messages in order.
//
// One object is both requester and responder: it sends what is posted and repeats it until it is acknowledged, and writes
// received messages into its memory and acknowledges them. No I/O, no clock, no allocation per packet.
//
// Where the specification leaves a choice, or we depart from what NICs do:
//  - A time-out repeats only the oldest unacknowledged packet: silence is a straggler behind an aggregating device more
//  often
//    than a loss. The rest follows when the peer has answered that packet: when the ACK names it, or a packet that had not
//    requested an ACK (so the peer answers a duplicate, and has nothing behind it). An ACK of a later packet that had
//    requested it shows that nothing was lost (as F-RTO does for TCP, RFC 5682): then only the timer restarts.
//  - One go-back per PSN: a responder does not repeat a sequence NAK before it receives the packet, so a second one is the
//    network's duplicate and counts as stale. If the repeat is lost too, the time-out detects it, and NAKs count again.
//  - A receiver-not-ready (RNR) NAK is obeyed however often it comes: the peer is alive.
//  - The responder's ACK names the newest packet that requested one; a duplicate is answered with the newest of all.
//  - A write without immediate is accepted, as specified: the owner is not told. A write of no bytes needs no key.
//  - With `selective`, a responder keeps packets behind a gap. It asks for the missing ones with a repeat request in place
//    of a NAK, and again after the time that such requests take. A requester repeats what anyone on the path asks for. Its
//    own time-outs find what was lost at the end of its packets.
//  - A notification (CNP) goes back for the first marked packet in each notification_interval (dcqcn.h); the rate holds back
//    new packets, and those that go back. Single repeats and answers leave at once.
//  - After refusing a request, the responder accepts the same PSN if the request is then valid; NICs close the connection.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/counter_list.h"
#include "base/packet_io.h"
#include "base/time.h"
#include "wire/roce.h"

namespace netsum::roce {

// Output of a queue pair: each packet is written as bytes from the IP header to the ICRC.
class PacketSink {
 public:
  // Space for one packet, to be filled before the next call.
  virtual std::span<std::byte> packet(std::size_t bytes) = 0;
  // The same around a payload, as Sink::around().
  virtual Sink::Around around(std::size_t head, std::span<const std::byte> payload, std::size_t tail) {
    const std::span<std::byte> whole = packet(head + payload.size() + tail);
    std::copy(payload.begin(), payload.end(), whole.subspan(head).begin());
    return {whole.first(head), whole.last(tail)};
  }

 protected:
  ~PacketSink() = default;
};

struct QueuePairConfig {
  std::array<std::uint8_t, 16> local{}, remote{};  // addresses, in Endpoint's format
  std::uint16_t source_port = 0xc000;              // UDP
  std::uint32_t local_qp = 0, remote_qp = 0;       // 24 bits
  std::uint32_t send_psn = 0, receive_psn = 0;     // of the first packet, 24 bits
  std::uint32_t mtu = 1024;                        // path MTU: payload of a packet
  std::uint32_t max_packets = 4096;                // sent and not acknowledged
  std::uint32_t max_messages = 64;                 // posted and not completed
  std::uint32_t lead = 0;                          // packets beyond follow() that may be sent; 0: as many as there are
  std::uint32_t ack_interval = 32;                 // packets between two requests for an ACK inside a message
  bool selective = false;                          // both ends know repeat requests (wire/roce.h)
  // Packets are ECT(0), marked ones are answered with notifications, and those limit the rate (dcqcn.h).
  bool congestion_control = true;
  std::uint32_t flows = 1;           // of one job, over the same path
  std::span<std::byte> memory;       // memory that the peer may write to
  std::uint64_t memory_address = 0;  // of its first byte, as known to the peer
  std::uint32_t memory_key = 0;      // that the peer must present (R_Key)
  bool singles_in_packets = false;   // messages of one packet are not written to the memory: Received::content
  Duration initial_timeout = std::chrono::milliseconds(20);
  Duration min_timeout = std::chrono::milliseconds(1);
  Duration max_timeout = std::chrono::milliseconds(250);
  // Consecutive time-outs of the same packet that are answered with a repeat; the next one fails the queue pair. None:
  // unlimited (the owner has a deadline).
  std::optional<std::uint32_t> retries;
};

struct QueuePairCounters {
  std::uint64_t packets_sent = 0, retransmissions = 0;  // requests; repeats are in both
  std::uint64_t packets_received = 0;                   // requests, in order, once each
  std::uint64_t messages_sent = 0;                      // complete, first transmissions
  std::uint64_t messages_received = 0;                  // including those without immediate
  std::uint64_t acks_sent = 0, acks_received = 0, naks_sent = 0, naks_received = 0, timeouts = 0;
  std::uint64_t repeat_requests_sent = 0, repeat_requests_received = 0;
  std::uint64_t marked = 0;  // requests that met a long queue
  std::uint64_t notifications_sent = 0, notifications_received = 0;
  std::uint64_t duplicates = 0;    // requests received before
  std::uint64_t out_of_order = 0;  // requests behind a gap, dropped; with `selective` they are kept, and count when taken
  std::uint64_t stale_acks = 0;    // ACKs and NAKs of packets already acknowledged or never sent; repeated NAKs
  std::uint64_t refused = 0;       // requests answered with a NAK other than a sequence NAK
  std::uint64_t foreign = 0;       // not from the peer, not for this queue pair, or not a supported RC packet

  static constexpr auto fields() {
    using enum CounterKind;
    using C = QueuePairCounters;
    return std::to_array<CounterField<C>>({
        {"packets_sent", &C::packets_sent, other},
        {"retransmissions", &C::retransmissions, other},
        {"packets_received", &C::packets_received, outcome},
        {"messages_sent", &C::messages_sent, other},
        {"messages_received", &C::messages_received, other},
        {"acks_sent", &C::acks_sent, other},
        {"acks_received", &C::acks_received, outcome},
        {"naks_sent", &C::naks_sent, other},
        {"naks_received", &C::naks_received, outcome},
        {"timeouts", &C::timeouts, other},
        {"repeat_requests_sent", &C::repeat_requests_sent, other},
        {"repeat_requests_received", &C::repeat_requests_received, outcome},
        {"marked", &C::marked, other},
        {"notifications_sent", &C::notifications_sent, other},
        {"notifications_received", &C::notifications_received, outcome},
        {"duplicates", &C::duplicates, outcome},
        {"out_of_order", &C::out_of_order, outcome},
        {"stale_acks", &C::stale_acks, outcome},
        {"refused", &C::refused, outcome},
        {"foreign_to_pair", &C::foreign, outcome},
    });
  }
};

struct Received {
  std::uint64_t offset = 0;  // in the memory
  std::uint32_t bytes = 0;
  std::uint32_t immediate = 0;
  std::span<const std::byte> content{};  // not in the memory, but here until the packet that brought it is gone
};

// Why a queue pair has failed.
enum class QueuePairError : std::uint8_t {
  none,
  retries_exceeded,  // the peer does not answer
  remote_access,     // the peer refused the address, the key or the length
  remote_invalid,    // the peer does not accept the request type
  remote_operation,  // the peer failed
};
[[nodiscard]] const char* to_string(QueuePairError error);

class QueuePair {
 public:
  explicit QueuePair(const QueuePairConfig& config);
  ~QueuePair();
  QueuePair(QueuePair&&) noexcept;
  QueuePair& operator=(QueuePair&&) noexcept;
  // State is a value. A copy refers to the same memory and messages until move_memory() and move_message() name others with
  // the same content.
  QueuePair(const QueuePair& other);
  QueuePair& operator=(const QueuePair& other);
  void move_memory(std::span<std::byte> memory);
  void move_message(std::uint64_t number, std::span<const std::byte> message);  // by order of posts; not yet completed

  // All state that determines what it sends and accepts, for comparing and hashing: no times, IP identifications or
  // counters.
  void append_state(std::vector<std::byte>& out) const;

  // RDMA WRITE with immediate of `message` (not empty, at most 2^31 bytes) to `address` in the peer's memory. `message` must
  // not change until it is completed. False: max_messages are in flight, or an error.
  [[nodiscard]] bool post_write(std::span<const std::byte> message, std::uint64_t address, std::uint32_t key,
                                std::uint32_t immediate);

  // With `lead`: so many packets of the stream that clocks this one have come.
  void follow(std::uint64_t packets);
  [[nodiscard]] std::uint64_t heard() const;  // packets of the peer up to the newest that came

  // Sends all that may be sent now: new packets, repeats, ACKs. To be called once per batch of posts and packets.
  void send(Time now, PacketSink& sink);

  // A packet for this queue pair with a correct ICRC. Any response is sent by send().
  void on_packet(const wire::roce::Packet& packet, Time now);
  void on_timer(Time now);
  // `never` if nothing is unacknowledged or missing, or waits for the rate.
  [[nodiscard]] Time next_timeout() const;

  [[nodiscard]] std::uint64_t completed() const;  // own messages that the peer has acknowledged, since the beginning
  // Complete messages with immediate that the peer has written since the last call, in order; valid until the next call. The
  // memory is not protected: the peer may overwrite it.
  [[nodiscard]] std::span<const Received> take_received();

  [[nodiscard]] QueuePairError error() const;
  [[nodiscard]] const QueuePairConfig& config() const;
  [[nodiscard]] const QueuePairCounters& counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::roce
