#include "bindings/nccl/tcp.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "runtime/thread.h"
#include "transport/addresses/addresses.h"
#include "transport/system/random.h"

namespace netsum::nccl {
namespace {

using transport::Descriptor;
using transport::errno_text;

constexpr std::array<char, 8> magic = {'n', 'e', 't', 's', 'u', 'm', 'T', '1'};
constexpr std::size_t most_strangers = 64;
constexpr Duration patience_with_strangers = std::chrono::seconds(10);

std::unique_ptr<Descriptor> new_socket(bool ipv6) {
  auto socket =
      std::make_unique<Descriptor>(::socket(ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket->number() < 0) throw Error(ErrorCode::internal, "cannot open a TCP socket: " + errno_text());
  return socket;
}

// A host that vanishes is noticed although nothing is sent to it.
void prepare(int socket) {
  transport::set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  transport::set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  transport::set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  transport::set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 2);
  transport::set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 5);
}

bool would_block() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

std::string seconds(Duration duration) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(duration).count()) + " s";
}

// A connection on its way to a listener.
class Attempt {
 public:
  Attempt(const Device& device, const TcpHandle& handle, Patience patience)
      : patience_(patience), until_(after(runtime::now(), patience.connecting)), secret_(handle.secret) {
    Endpoint to;
    std::memcpy(to.address.data(), handle.address.data(), to.address.size());
    to.port = handle.port;
    const bool ipv6 = !transport::is_ipv4(to);
    if (device.address.scope != 0) to.scope = device.address.scope;  // link-local addresses: by this host's interface
    peer_ = transport::to_string(to) + " from " + device.name;
    socket_ = new_socket(ipv6);
    prepare(socket_->number());
    sockaddr_storage storage{};
    const socklen_t size = transport::to_sockaddr(to, ipv6, storage);
    if (::connect(socket_->number(), reinterpret_cast<const sockaddr*>(&storage), size) != 0 && errno != EINPROGRESS) {
      fail(errno);
    }
  }

  [[nodiscard]] Time until() const { return until_; }

  std::unique_ptr<Sender> progress() {
    if (runtime::now() >= until_) fail(ETIMEDOUT);
    pollfd wanted{socket_->number(), POLLOUT, 0};
    if (::poll(&wanted, 1, 0) <= 0) return nullptr;
    if (const int error = transport::get_option(socket_->number(), SOL_SOCKET, SO_ERROR); error != 0) fail(error);
    const ssize_t bytes = ::send(socket_->number(), secret_.data() + sent_, secret_.size() - sent_, MSG_NOSIGNAL);
    if (bytes < 0 && !would_block()) fail(errno);
    if (bytes > 0) sent_ += static_cast<std::size_t>(bytes);
    if (sent_ < secret_.size()) return nullptr;
    return std::make_unique<Sender>(std::move(socket_), peer_, patience_);
  }

 private:
  [[noreturn]] void fail(int error) const {
    errno = error;
    throw Error(ErrorCode::unreachable, "cannot connect to " + peer_ + ": " + errno_text());
  }

  const Patience patience_;
  const Time until_;
  const std::array<std::byte, sizeof(TcpHandle::secret)> secret_;
  std::size_t sent_ = 0;
  std::string peer_;
  std::unique_ptr<Descriptor> socket_;
};

// The attempts of this process. NCCL may drop one without a word; it then goes when its time is over.
class Attempts {
 public:
  std::uint64_t add(std::unique_ptr<Attempt> attempt) {
    const std::lock_guard lock(mutex_);
    std::erase_if(attempts_, [now = runtime::now()](const auto& each) { return now >= each.second->until(); });
    attempts_[++last_] = std::move(attempt);
    return last_;
  }
  // Out of the table while it is used; null if it is not there.
  std::unique_ptr<Attempt> take(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = attempts_.find(number);
    if (found == attempts_.end()) return nullptr;
    return std::move(attempts_.extract(found).mapped());
  }
  void put_back(std::uint64_t number, std::unique_ptr<Attempt> attempt) {
    const std::lock_guard lock(mutex_);
    attempts_[number] = std::move(attempt);
  }

 private:
  std::mutex mutex_;
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, std::unique_ptr<Attempt>> attempts_;
};

Attempts& attempts() {
  static Attempts all;
  return all;
}

}  // namespace

Connection::Connection(std::unique_ptr<Descriptor> socket, std::string peer, Patience patience)
    : socket_(std::move(socket)), peer_(std::move(peer)), patience_(patience), last_moved_(runtime::now()) {
  under_way_.reserve(most_requests);
}

Message* Connection::begin(void* data, std::size_t bytes, int tag) {
  if (failure_) throw Error(*failure_);
  const auto free = std::find_if(messages_.begin(), messages_.end(), [](const Message& each) { return !each.used; });
  if (free == messages_.end()) return nullptr;
  *free = {this, static_cast<std::byte*>(data), bytes, 0, static_cast<std::uint32_t>(tag), true, false};
  if (under_way_.empty()) last_moved_ = runtime::now();
  under_way_.push_back(&*free);
  progress();
  return &*free;
}

bool Connection::test(Message& message) {
  if (!message.done) {
    if (failure_) throw Error(*failure_);
    progress();
  }
  if (message.done) {
    message.used = false;
    return true;
  }
  if (runtime::now() >= after(last_moved_, patience_.operation)) {
    fail(ErrorCode::deadline, "nothing was transferred for " + seconds(patience_.operation) + " (NETSUM_OPERATION_SECONDS)");
  }
  return false;
}

void Connection::has_moved() {
  last_moved_ = runtime::now();
}

void Connection::complete(Message& message) {
  message.done = true;
  std::erase(under_way_, &message);
}

void Connection::fail(ErrorCode code, const std::string& what) {
  failure_.emplace(code, "TCP with " + peer_ + ", " + std::to_string(under_way_.size()) + " messages in flight: " + what);
  throw Error(*failure_);
}

void Connection::fail_by_errno() {
  fail(ErrorCode::worker_lost, errno_text());
}

void Sender::progress() {
  while (!under_way().empty()) {
    Message& message = *under_way().front();
    MessageHeader header{message.bytes, message.tag, 0};
    const std::size_t header_left = sizeof header - std::min(message.moved, sizeof header);
    const std::size_t from = message.moved - (sizeof header - header_left);
    const std::array<iovec, 2> parts = {{{reinterpret_cast<std::byte*>(&header) + sizeof header - header_left, header_left},
                                         {message.data + from, message.bytes - from}}};
    msghdr out{};
    out.msg_iov = const_cast<iovec*>(parts.data());
    out.msg_iovlen = parts.size();
    const ssize_t bytes = ::sendmsg(socket(), &out, MSG_NOSIGNAL);
    if (bytes < 0) {
      if (would_block()) return;
      fail_by_errno();
    }
    has_moved();
    message.moved += static_cast<std::size_t>(bytes);
    if (message.moved == sizeof header + message.bytes) complete(message);
  }
}

bool Receiver::receive(std::byte* to, std::size_t bytes, std::size_t& moved) {
  while (moved < bytes) {
    const ssize_t got = ::recv(socket(), to + moved, bytes - moved, 0);
    if (got == 0) fail(ErrorCode::worker_lost, "the peer closed the connection");
    if (got < 0) {
      if (would_block()) return false;
      fail_by_errno();
    }
    has_moved();
    moved += static_cast<std::size_t>(got);
  }
  return true;
}

void Receiver::progress() {
  while (!under_way().empty()) {
    if (current_ == nullptr) {
      if (!receive(header_.data(), header_.size(), header_bytes_)) return;
      MessageHeader header{};
      std::memcpy(&header, header_.data(), sizeof header);
      const auto wanted =
          std::find_if(under_way().begin(), under_way().end(), [&](const Message* each) { return each->tag == header.tag; });
      if (wanted == under_way().end()) return;
      if (header.bytes > (*wanted)->bytes) {
        fail(ErrorCode::mismatch, "a message of " + std::to_string(header.bytes) + " bytes arrived for a receive of " +
                                      std::to_string((*wanted)->bytes) + ", tag " + std::to_string(header.tag));
      }
      current_ = *wanted;
      current_->bytes = static_cast<std::size_t>(header.bytes);
      header_bytes_ = 0;
    }
    if (!receive(current_->data, current_->bytes, current_->moved)) return;
    complete(*std::exchange(current_, nullptr));
  }
}

TcpListener::TcpListener(const Device& device, Patience patience) : patience_(patience) {
  const bool ipv6 = !transport::is_ipv4(device.address);
  socket_ = new_socket(ipv6);
  sockaddr_storage storage{};
  socklen_t size = transport::to_sockaddr(device.address, ipv6, storage);
  if (::bind(socket_->number(), reinterpret_cast<const sockaddr*>(&storage), size) != 0 ||
      ::listen(socket_->number(), SOMAXCONN) != 0 ||
      ::getsockname(socket_->number(), reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
    throw Error(ErrorCode::refused, "cannot listen on " + device.name + ": " + errno_text());
  }
  handle_.magic = magic;
  transport::random_bytes(handle_.secret);
  std::memcpy(handle_.address.data(), device.address.address.data(), handle_.address.size());
  handle_.port = transport::endpoint_of(storage).port;
}

std::unique_ptr<Receiver> TcpListener::accept() {
  const Time now = runtime::now();
  if (!until_) until_ = after(now, patience_.operation);
  if (now >= *until_) {
    throw Error(ErrorCode::deadline,
                "no rank connected within " + seconds(patience_.operation) + " (NETSUM_OPERATION_SECONDS)");
  }
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  const int accepted =
      ::accept4(socket_->number(), reinterpret_cast<sockaddr*>(&storage), &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (accepted >= 0) {
    prepare(accepted);
    if (strangers_.size() == most_strangers) strangers_.pop_front();  // a rank shows the secret as soon as it is connected
    strangers_.push_back({std::make_unique<Descriptor>(accepted),
                          transport::to_string(transport::endpoint_of(storage)),
                          {},
                          0,
                          after(now, patience_with_strangers)});
  }
  for (auto each = strangers_.begin(); each != strangers_.end();) {
    const ssize_t bytes =
        ::recv(each->socket->number(), each->shown.data() + each->bytes, each->shown.size() - each->bytes, 0);
    const bool gone = bytes == 0 || (bytes < 0 && !would_block()) || now >= each->until;
    if (bytes > 0) each->bytes += static_cast<std::size_t>(bytes);
    if (each->bytes == each->shown.size() && each->shown == handle_.secret) {
      auto receiver = std::make_unique<Receiver>(std::move(each->socket), each->address, patience_);
      strangers_.erase(each);
      until_.reset();
      return receiver;
    }
    each = gone || each->bytes == each->shown.size() ? strangers_.erase(each) : std::next(each);
  }
  return nullptr;
}

void begin_connecting(const Device& device, TcpHandle& handle, Patience patience) {
  if (handle.magic != magic) throw Error(ErrorCode::bad_argument, "the handle does not come from this plugin's listen()");
  handle.attempt = attempts().add(std::make_unique<Attempt>(device, handle, patience));
}

std::unique_ptr<Sender> go_on_connecting(TcpHandle& handle) {
  std::unique_ptr<Attempt> attempt = attempts().take(handle.attempt);
  if (!attempt) throw Error(ErrorCode::bad_argument, "the attempt to connect has ended");
  std::unique_ptr<Sender> sender = attempt->progress();
  if (sender) {
    handle.attempt = 0;
  } else {
    attempts().put_back(handle.attempt, std::move(attempt));
  }
  return sender;
}

}  // namespace netsum::nccl
