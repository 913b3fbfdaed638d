// The net half of the plugin: messages between two ranks over TCP. NCCL calls test() again and again, and each call moves
// what the first socket takes or has; no call waits. Threads move the stripes of long messages on the other sockets
// (stripes.h).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/time.h"
#include "bindings/nccl/abi.h"
#include "bindings/nccl/devices.h"
#include "bindings/nccl/stripes.h"
#include "netsum/error.h"
#include "transport/system/socket.h"

namespace netsum::nccl {

inline constexpr std::uint32_t most_stripe_sockets = 64;  // of a connection

struct TcpSettings {
  Duration connecting;                                // how long TCP waits
  Duration operation;                                 // without a byte moved; and for a connection to accept
  std::uint32_t threads = 0, sockets_per_thread = 2;  // for stripes; no thread: no stripes
  std::size_t stripe_bytes = std::size_t{64} << 10;   // at least

  [[nodiscard]] std::uint32_t stripe_sockets() const { return threads * sockets_per_thread; }
};

// What listen() gives to the rank that connects.
struct TcpHandle {
  std::array<char, 8> magic;
  std::array<std::byte, 16> secret;   // whoever connects must know it
  std::array<std::byte, 16> address;  // as in Endpoint
  std::uint16_t port;
  std::uint8_t stripe_sockets;  // of a connection, beside its first
  std::array<std::byte, 5> unused;
  std::uint64_t attempt;  // of the process that connects; 0: none yet
};
static_assert(sizeof(TcpHandle) <= handle_bytes);

// What the rank that connects says first on each socket.
struct TcpHello {
  std::array<std::byte, 16> secret;
  std::uint64_t connection;  // drawn by the rank that connects
  std::uint8_t socket;       // 0: the first; the others carry stripes
  std::array<std::byte, 7> unused;
};
static_assert(sizeof(TcpHello) == 32);

// Those of one connection, the first in front.
using Sockets = std::vector<std::unique_ptr<transport::Descriptor>>;

class Connection;

struct Message {
  Connection* connection = nullptr;
  std::byte* data = nullptr;
  std::size_t bytes = 0;  // of a receive: room, then what came
  std::size_t moved = 0;  // on the first socket; of a send with its header
  std::uint32_t tag = 0;
  bool used = false, striped = false, done = false;  // striped: what is left are its stripes
};

// Before each message's bytes, on the first socket.
struct MessageHeader {
  std::uint64_t bytes;
  std::uint32_t tag;
  std::uint16_t stripes;       // 0: all bytes follow
  std::uint16_t first_socket;  // of the first stripe; the next one's is the next
};

// Connected sockets with the messages under way on them. After a failure every call throws it again.
class Connection {
 public:
  Connection(Direction direction, Sockets sockets, std::string peer, const TcpSettings& settings);
  virtual ~Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Moves what can be moved at once. Null: as many as may be under way, are.
  [[nodiscard]] Message* begin(void* data, std::size_t bytes, int tag);
  // Whether the message has been moved; it may then not be named again.
  [[nodiscard]] bool test(Message& message);

  bool has_told = false;  // of its failure

 protected:
  virtual void progress() = 0;  // moves what can be moved at once on the first socket

  [[nodiscard]] int socket() const { return first_->number(); }
  [[nodiscard]] std::size_t stripe_sockets() const { return stripe_sockets_; }
  [[nodiscard]] const TcpSettings& settings() const { return settings_; }
  [[nodiscard]] std::vector<Message*>& waiting() { return waiting_; }
  [[nodiscard]] bool has_stripes() const;  // under way
  void has_moved();
  void complete(Message& message);
  void stripe(Message& message, std::size_t stripes, std::size_t first_socket);
  [[noreturn]] void fail(ErrorCode code, const std::string& what);
  [[noreturn]] void fail_by(int error);

 private:
  [[nodiscard]] std::atomic<std::uint32_t>& stripes_of(const Message& message);
  void check();  // throws what has failed

  const std::unique_ptr<transport::Descriptor> first_;
  const std::string peer_;
  const TcpSettings settings_;
  const std::size_t stripe_sockets_;
  std::atomic<Time> last_moved_;
  std::array<Message, most_requests> messages_{};
  std::array<std::atomic<std::uint32_t>, most_requests> stripes_under_way_{};  // of each message
  std::vector<Message*> waiting_;  // for the first socket, in the order of their calls
  std::optional<Error> failure_;
  std::vector<std::unique_ptr<StripeSockets>> stripes_;  // each thread's. Last: what they touch outlives them
};

class Sender final : public Connection {
 public:
  Sender(Sockets sockets, std::string peer, const TcpSettings& settings)
      : Connection(Direction::send, std::move(sockets), std::move(peer), settings) {}

 private:
  void progress() override;
  // How many stripes a message has.
  [[nodiscard]] std::size_t stripes(std::size_t bytes) const;

  std::size_t next_socket_ = 0;
};

// Messages arrive in the order in which they were sent; each goes to the first receive with its tag. Where there is none
// yet, it stays in the socket.
class Receiver final : public Connection {
 public:
  Receiver(Sockets sockets, std::string peer, const TcpSettings& settings)
      : Connection(Direction::receive, std::move(sockets), std::move(peer), settings) {}

 private:
  void progress() override;
  // Whether all bytes are there.
  bool receive(std::byte* to, std::size_t bytes, std::size_t& moved);
  // Whether a receive waits for the message that begins.
  bool find_receive(const MessageHeader& header);

  std::array<std::byte, sizeof(MessageHeader)> header_{};
  std::size_t header_bytes_ = 0;
  Message* current_ = nullptr;
};

class TcpListener {
 public:
  TcpListener(const Device& device, const TcpSettings& settings);
  [[nodiscard]] const TcpHandle& handle() const { return handle_; }
  // Null: nobody has connected yet.
  [[nodiscard]] std::unique_ptr<Receiver> accept();

 private:
  // A socket that has yet to show the handle's secret.
  struct Stranger {
    std::unique_ptr<transport::Descriptor> socket;
    std::string address;
    std::array<std::byte, sizeof(TcpHello)> shown{};
    std::size_t bytes = 0;
    Time until;
  };
  // A connection of which some sockets are there.
  struct Arrival {
    std::uint64_t connection = 0;
    std::string address;
    Sockets sockets;
    Time until;
  };

  void take_strangers(Time now);
  void hear_strangers(Time now);
  void welcome(Stranger& stranger, const TcpHello& hello, Time now);

  const TcpSettings settings_;
  std::unique_ptr<transport::Descriptor> socket_;
  TcpHandle handle_{};
  std::optional<Time> until_;  // since the first call of accept()
  std::list<Stranger> strangers_;
  std::list<Arrival> arrivals_;
};

// Connecting takes several calls with the same handle, whose `attempt` they set and read.
void begin_connecting(const Device& device, TcpHandle& handle, const TcpSettings& settings);
[[nodiscard]] std::unique_ptr<Sender> go_on_connecting(TcpHandle& handle);  // null: not connected yet

}  // namespace netsum::nccl
