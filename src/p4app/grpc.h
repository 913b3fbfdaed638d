// gRPC's calls of one message each way over a connection of HTTP/2 without TLS, by nghttp2. Both ends are bytes in and bytes
// out; who has the sockets moves them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "p4app/grpc_status.h"

struct nghttp2_session;

namespace netsum::p4app {

inline constexpr std::size_t longest_grpc_message = 4096;

// What both ends have in common.
class GrpcEnd {
 public:
  virtual ~GrpcEnd();
  GrpcEnd(const GrpcEnd&) = delete;
  GrpcEnd& operator=(const GrpcEnd&) = delete;

  // False: this is no HTTP/2, or its end; the connection is to be closed.
  [[nodiscard]] bool receive(std::string_view bytes);
  [[nodiscard]] std::string take_output();

 protected:
  // A call, as far as it has come.
  struct Stream {
    std::string path, received;
    std::string status, error;  // of a response
    std::string out;            // to send, and how much of it was sent
    std::size_t sent = 0;
    bool refused = false;
  };
  // What nghttp2 calls.
  struct Calls;
  friend struct Calls;

  explicit GrpcEnd(bool server);
  virtual void on_complete(std::int32_t /*stream*/, Stream& /*of*/) {}  // all that the other end sends is there
  virtual void on_closed(std::int32_t /*stream*/, Stream& /*of*/) {}
  // The message of a call, of either end. None: it is none.
  [[nodiscard]] static std::optional<std::string> message_of(const std::string& received);
  [[nodiscard]] static std::string framed(std::string_view message);

  const bool server_;
  nghttp2_session* session_ = nullptr;
  std::map<std::int32_t, Stream> streams_;
};

class GrpcServerEnd final : public GrpcEnd {
 public:
  GrpcServerEnd() : GrpcEnd(true) {}

  struct Call {
    std::int32_t stream = 0;
    std::string path, payload;
  };
  [[nodiscard]] std::vector<Call> take_calls();
  [[nodiscard]] std::vector<std::int32_t> take_gone();   // calls that whoever made them has given up, or that are answered
  [[nodiscard]] std::vector<std::int32_t> open() const;  // calls that are neither
  // `bytes`: the message, or the text of an error in ASCII. A call that is gone gets nothing.
  void answer(std::int32_t stream, GrpcStatus status, const std::string& bytes);

 private:
  void on_complete(std::int32_t stream, Stream& of) override;
  void on_closed(std::int32_t stream, Stream& of) override;

  std::vector<Call> calls_;
  std::vector<std::int32_t> gone_;
};

// One call at a time.
class GrpcClientEnd final : public GrpcEnd {
 public:
  explicit GrpcClientEnd(std::string authority) : GrpcEnd(false), authority_(std::move(authority)) {}

  struct Result {
    bool ok = false;
    std::string bytes;  // of the message; of an error its text
  };
  void call(std::string_view path, std::string_view message);
  [[nodiscard]] std::optional<Result> take_result();

 private:
  void on_closed(std::int32_t stream, Stream& of) override;

  const std::string authority_;
  std::optional<Result> result_;
};

}  // namespace netsum::p4app
