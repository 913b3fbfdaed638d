// The net half of the plugin: messages between two ranks over TCP. NCCL calls test() again and again, and each call moves
// what the socket takes or has; no call waits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"
#include "bindings/nccl/abi.h"
#include "bindings/nccl/devices.h"
#include "netsum/error.h"
#include "transport/system/socket.h"

namespace netsum::nccl {

// How long TCP waits.
struct Patience {
  Duration connecting;
  Duration operation;  // without a byte moved; and for a connection to accept
};

// What listen() gives to the rank that connects.
struct TcpHandle {
  std::array<char, 8> magic;
  std::array<std::byte, 16> secret;   // whoever connects must know it
  std::array<std::byte, 16> address;  // as in Endpoint
  std::uint16_t port;
  std::array<std::byte, 6> unused;
  std::uint64_t attempt;  // of the process that connects; 0: none yet
};
static_assert(sizeof(TcpHandle) <= handle_bytes);

class Connection;

struct Message {
  Connection* connection = nullptr;
  std::byte* data = nullptr;
  std::size_t bytes = 0;  // of a receive: room, then what came
  std::size_t moved = 0;  // of a send with its header
  std::uint32_t tag = 0;
  bool used = false, done = false;
};

// A connected socket with the messages under way on it. After a failure every call throws it again.
class Connection {
 public:
  Connection(std::unique_ptr<transport::Descriptor> socket, std::string peer, Patience patience);
  virtual ~Connection() = default;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Moves what can be moved at once. Null: as many as may be under way, are.
  [[nodiscard]] Message* begin(void* data, std::size_t bytes, int tag);
  // Whether the message has been moved; it may then not be named again.
  [[nodiscard]] bool test(Message& message);

  bool has_told = false;  // of its failure

 protected:
  virtual void progress() = 0;  // moves what can be moved at once

  [[nodiscard]] int socket() const { return socket_->number(); }
  [[nodiscard]] std::vector<Message*>& under_way() { return under_way_; }
  void has_moved();
  void complete(Message& message);
  [[noreturn]] void fail(ErrorCode code, const std::string& what);
  [[noreturn]] void fail_by_errno();

 private:
  const std::unique_ptr<transport::Descriptor> socket_;
  const std::string peer_;
  const Patience patience_;
  Time last_moved_;
  std::array<Message, most_requests> messages_{};
  std::vector<Message*> under_way_;  // in the order of their calls
  std::optional<Error> failure_;
};

// Before each message's bytes.
struct MessageHeader {
  std::uint64_t bytes;
  std::uint32_t tag;
  std::uint32_t unused;
};

class Sender final : public Connection {
 public:
  using Connection::Connection;

 private:
  void progress() override;
};

// Messages arrive in the order in which they were sent; each goes to the first receive with its tag. Where there is none
// yet, it stays in the socket.
class Receiver final : public Connection {
 public:
  using Connection::Connection;

 private:
  void progress() override;
  // Whether all bytes are there.
  bool receive(std::byte* to, std::size_t bytes, std::size_t& moved);

  std::array<std::byte, sizeof(MessageHeader)> header_{};
  std::size_t header_bytes_ = 0;
  Message* current_ = nullptr;
};

class TcpListener {
 public:
  TcpListener(const Device& device, Patience patience);
  [[nodiscard]] const TcpHandle& handle() const { return handle_; }
  // Null: nobody has connected yet.
  [[nodiscard]] std::unique_ptr<Receiver> accept();

 private:
  // A connection that has yet to show the handle's secret.
  struct Stranger {
    std::unique_ptr<transport::Descriptor> socket;
    std::string address;
    std::array<std::byte, sizeof(TcpHandle::secret)> shown{};
    std::size_t bytes = 0;
    Time until;
  };

  const Patience patience_;
  std::unique_ptr<transport::Descriptor> socket_;
  TcpHandle handle_{};
  std::optional<Time> until_;  // since the first call of accept()
  std::list<Stranger> strangers_;
};

// Connecting takes several calls with the same handle, whose `attempt` they set and read.
void begin_connecting(const Device& device, TcpHandle& handle, Patience patience);
[[nodiscard]] std::unique_ptr<Sender> go_on_connecting(TcpHandle& handle);  // null: not connected yet

}  // namespace netsum::nccl
