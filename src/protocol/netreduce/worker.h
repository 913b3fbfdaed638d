// The worker: NetReduce's message-level flow control (§3.2). Tensors become messages of one length, of which a window is in
// flight at once. Results return as messages, in the same order; a result is accepted only if all of its packets are sealed.
//
// One object serves one ring, over any transport of messages: RDMA hardware or a software endpoint. No I/O, no clock, no
// allocation per message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "seal/private_sums.h"
#include "stream/operation.h"
#include "wire/netreduce.h"

namespace netsum::netreduce {

struct WorkerConfig {
  std::uint64_t incarnation = 0;  // of the ring at the accelerator
  std::uint32_t ring = 0;
  std::uint32_t rank = 0, world_size = 1;
  std::uint32_t lane = 0, lanes = 1;    // this ring's share of the messages
  std::uint32_t window = 2;             // N
  std::uint32_t ahead = 0;              // messages sent without a result; 0: N
  std::uint32_t unacknowledged = 0;     // messages sent and not acknowledged; 0: N
  std::uint32_t message_packets = 170;  // of a whole message
  std::uint32_t mtu = 1024;             // path MTU: payload of a packet
  // For the own messages that are not acknowledged, and for 2N from the predecessor, m at m % 2N.
  std::span<std::byte> send_memory, receive_memory;
  std::optional<seal::PadKeys> pads{};  // of a job whose aggregators cannot read its values: they are int32
  std::size_t operations = 256;         // pending at once
};

struct WorkerCounters {
  std::uint64_t messages_sent = 0, messages_received = 0;
};

// Why a lane has failed.
struct WorkerFailure {
  enum class Kind : std::uint8_t {
    unsealed,    // a packet arrived unsummed: it bypassed the accelerator, or passed one that restarted
    wrong_seal,  // a packet holds another sum
    unexpected,  // a message that does not belong to the ring's stream
  } kind{};
  std::uint64_t operation = 0;
  std::uint64_t message = 0;
  std::uint32_t packet = 0;
};

[[nodiscard]] std::string to_string(const WorkerFailure& failure);

struct WorkerStall {
  std::uint64_t operation = 0;
  std::uint32_t chunk = 0;  // message number in the operation
};

// Transport of messages to the successor.
class MessageSink {
 public:
  // RDMA WRITE with immediate to the successor's memory; `message` must not change until it is acknowledged. False: try
  // later.
  [[nodiscard]] virtual bool post(std::span<const std::byte> message, std::uint64_t offset, std::uint32_t immediate) = 0;
  virtual std::uint64_t acknowledged() const = 0;  // messages acknowledged by the successor, since the beginning

 protected:
  ~MessageSink() = default;
};

class Worker {
 public:
  [[nodiscard]] static std::size_t message_bytes(const WorkerConfig& config);  // of a full message
  [[nodiscard]] static std::size_t send_bytes(const WorkerConfig& config);     // of the two memories
  [[nodiscard]] static std::size_t receive_bytes(const WorkerConfig& config);

  explicit Worker(const WorkerConfig& config);
  ~Worker();
  Worker(Worker&&) noexcept;
  Worker& operator=(Worker&&) noexcept;
  // State is a value. A copy refers to the same memories and tensors until these name others with the same content.
  Worker(const Worker& other);
  void move_memory(std::span<std::byte> send_memory, std::span<std::byte> receive_memory);
  void move_tensor(std::uint64_t operation, void* data);  // of a pending operation, by number

  // All state that determines what it sends and accepts, for comparing and hashing: no counters, and not what the memories
  // and tensors contain.
  void append_state(std::vector<std::byte>& out) const;

  // Takes the next operation, in order of number. False: too many are pending.
  [[nodiscard]] bool submit(const stream::Operation& operation);
  // Sends what the window allows; to be called after submit() and after every arrival.
  void send(MessageSink& sink);
  // The next message from the predecessor, as its queue pair delivered it; `content` empty: it is in the receive memory.
  void on_message(std::uint64_t offset, std::uint32_t bytes, std::uint32_t immediate,
                  std::span<const std::byte> content = {});

  // Numbers of the operations whose share of this ring has completed since the last call, in order of completion.
  [[nodiscard]] std::vector<std::uint64_t> take_completed();
  [[nodiscard]] bool idle() const;  // no operation pending
  [[nodiscard]] const std::optional<WorkerFailure>& failure() const;
  [[nodiscard]] std::optional<WorkerStall> oldest_stall() const;
  [[nodiscard]] std::uint64_t messages_sent() const { return counters().messages_sent; }
  [[nodiscard]] const WorkerCounters& counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::netreduce
