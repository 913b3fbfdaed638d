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

constexpr std::array<char, 8> magic = {'n', 'e', 't', 's', 'u', 'm', 'T', '2'};
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
  Attempt(const Device& device, const TcpHandle& handle, const TcpSettings& settings)
      : settings_(settings), until_(after(runtime::now(), settings.connecting)), peer_(peer_of(device, handle)) {
    std::uint64_t connection = 0;
    transport::random_bytes(std::as_writable_bytes(std::span(&connection, 1)));
    for (std::size_t i = 0; i <= handle.stripe_sockets; ++i) {
      ways_.push_back({open(device, handle), {handle.secret, connection, static_cast<std::uint8_t>(i), {}}, 0});
    }
  }

  [[nodiscard]] Time until() const { return until_; }

  std::unique_ptr<Sender> progress() {
    if (runtime::now() >= until_) fail(ETIMEDOUT);
    bool ready = true;
    for (Way& each : ways_) ready = progress(each) && ready;
    if (!ready) return nullptr;
    Sockets sockets;
    for (Way& each : ways_) sockets.push_back(std::move(each.socket));
    return std::make_unique<Sender>(std::move(sockets), peer_, settings_);
  }

 private:
  struct Way {
    std::unique_ptr<Descriptor> socket;
    TcpHello hello;
    std::size_t sent;
  };

  static Endpoint endpoint_of(const Device& device, const TcpHandle& handle) {
    Endpoint to;
    std::memcpy(to.address.data(), handle.address.data(), to.address.size());
    to.port = handle.port;
    if (device.address.scope != 0) to.scope = device.address.scope;  // link-local addresses: by this host's interface
    return to;
  }
  static std::string peer_of(const Device& device, const TcpHandle& handle) {
    return transport::to_string(endpoint_of(device, handle)) + " from " + device.name;
  }

  [[nodiscard]] std::unique_ptr<Descriptor> open(const Device& device, const TcpHandle& handle) const {
    const Endpoint to = endpoint_of(device, handle);
    const bool ipv6 = !transport::is_ipv4(to);
    auto socket = new_socket(ipv6);
    prepare(socket->number());
    sockaddr_storage storage{};
    const socklen_t size = transport::to_sockaddr(to, ipv6, storage);
    if (::connect(socket->number(), reinterpret_cast<const sockaddr*>(&storage), size) != 0 && errno != EINPROGRESS) {
      fail(errno);
    }
    return socket;
  }

  // Whether the socket is connected and has said who it is.
  bool progress(Way& way) const {
    if (way.sent == sizeof way.hello) return true;
    const int socket = way.socket->number();
    pollfd wanted{socket, POLLOUT, 0};
    if (::poll(&wanted, 1, 0) <= 0) return false;
    if (const int error = transport::get_option(socket, SOL_SOCKET, SO_ERROR); error != 0) fail(error);
    const auto left = std::as_bytes(std::span(&way.hello, 1)).subspan(way.sent);
    const ssize_t bytes = ::send(socket, left.data(), left.size(), MSG_NOSIGNAL);
    if (bytes < 0 && !would_block()) fail(errno);
    if (bytes > 0) way.sent += static_cast<std::size_t>(bytes);
    return way.sent == sizeof way.hello;
  }

  [[noreturn]] void fail(int error) const {
    errno = error;
    throw Error(ErrorCode::unreachable, "cannot connect to " + peer_ + ": " + errno_text());
  }

  const TcpSettings settings_;
  const Time until_;
  const std::string peer_;
  std::vector<Way> ways_;
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

// Both ends cut a message in the same way.
std::size_t begin_of_stripe(std::size_t bytes, std::size_t stripes, std::size_t number) {
  return bytes / stripes * number + std::min(number, bytes % stripes);
}

}  // namespace

Connection::Connection(Direction direction, Sockets sockets, std::string peer, const TcpSettings& settings)
    : first_(std::move(sockets.front())),
      peer_(std::move(peer)),
      settings_(settings),
      stripe_sockets_(sockets.size() - 1),
      last_moved_(runtime::now()) {
  waiting_.reserve(most_requests);
  // The other rank has a say in how many sockets there are, and this one in how many threads.
  const std::size_t threads = std::min(stripe_sockets_, std::max<std::size_t>(settings.threads, 1));
  std::vector<Sockets> of_threads(threads);
  for (std::size_t i = 0; i < stripe_sockets_; ++i) of_threads[i % threads].push_back(std::move(sockets[i + 1]));
  for (std::size_t i = 0; i < threads; ++i) {
    stripes_.push_back(
        std::make_unique<StripeSockets>(static_cast<std::uint32_t>(i), direction, std::move(of_threads[i]), last_moved_));
  }
}

Message* Connection::begin(void* data, std::size_t bytes, int tag) {
  check();
  const auto free = std::find_if(messages_.begin(), messages_.end(), [](const Message& each) { return !each.used; });
  if (free == messages_.end()) return nullptr;
  if (waiting_.empty() && !has_stripes()) has_moved();  // the time of silence begins
  *free = {this, static_cast<std::byte*>(data), bytes, 0, static_cast<std::uint32_t>(tag), true, false, false};
  waiting_.push_back(&*free);
  progress();
  return &*free;
}

bool Connection::test(Message& message) {
  const auto has_ended = [&] {
    if (message.striped && stripes_of(message).load(std::memory_order_acquire) == 0) message.done = true;
    return message.done;
  };
  if (!has_ended()) {
    try {
      check();
      progress();
    } catch (const Error&) {
      if (!has_ended()) throw;  // what has arrived meanwhile comes before the failure behind it
    }
  }
  if (has_ended()) {
    message.used = false;
    return true;
  }
  if (runtime::now() >= after(last_moved_.load(std::memory_order_relaxed), settings_.operation)) {
    fail(ErrorCode::deadline, "nothing was transferred for " + seconds(settings_.operation) + " (NETSUM_OPERATION_SECONDS)");
  }
  return false;
}

void Connection::check() {
  if (failure_) throw Error(*failure_);
  for (const auto& each : stripes_) {
    if (each->error() != 0) fail_by(each->error());
  }
}

void Connection::has_moved() {
  last_moved_.store(runtime::now(), std::memory_order_relaxed);
}

void Connection::complete(Message& message) {
  message.done = true;
  std::erase(waiting_, &message);
}

void Connection::stripe(Message& message, std::size_t stripes, std::size_t first_socket) {
  message.striped = true;
  std::erase(waiting_, &message);
  std::atomic<std::uint32_t>& under_way = stripes_of(message);
  under_way.store(static_cast<std::uint32_t>(stripes), std::memory_order_relaxed);
  for (std::size_t i = 0; i < stripes; ++i) {
    const std::size_t from = begin_of_stripe(message.bytes, stripes, i);
    const std::size_t to = begin_of_stripe(message.bytes, stripes, i + 1);
    const std::size_t socket = (first_socket + i) % stripe_sockets_;
    stripes_[socket % stripes_.size()]->add(socket / stripes_.size(), {message.data + from, to - from, &under_way});
  }
}

std::atomic<std::uint32_t>& Connection::stripes_of(const Message& message) {
  return stripes_under_way_[static_cast<std::size_t>(&message - messages_.data())];
}

bool Connection::has_stripes() const {
  for (std::size_t i = 0; i < messages_.size(); ++i) {
    if (messages_[i].used && messages_[i].striped && stripes_under_way_[i].load(std::memory_order_acquire) != 0) return true;
  }
  return false;
}

void Connection::fail(ErrorCode code, const std::string& what) {
  for (const auto& each : stripes_) each->stop();
  const auto in_flight =
      std::count_if(messages_.begin(), messages_.end(), [](const Message& each) { return each.used && !each.done; });
  failure_.emplace(code, "TCP with " + peer_ + ", " + std::to_string(in_flight) + " messages in flight: " + what);
  throw Error(*failure_);
}

void Connection::fail_by(int error) {
  if (error == StripeSockets::closed_by_peer) fail(ErrorCode::worker_lost, "the peer closed the connection");
  errno = error;
  fail(ErrorCode::worker_lost, errno_text());
}

std::size_t Sender::stripes(std::size_t bytes) const {
  const std::size_t most = std::min(stripe_sockets(), bytes / settings().stripe_bytes);
  return most < 2 ? 0 : most;
}

void Sender::progress() {
  while (!waiting().empty()) {
    Message& message = *waiting().front();
    const std::size_t stripes = this->stripes(message.bytes);
    MessageHeader header{message.bytes, message.tag, static_cast<std::uint16_t>(stripes),
                         static_cast<std::uint16_t>(next_socket_)};
    const std::size_t here = stripes == 0 ? message.bytes : 0;  // on this socket
    const std::size_t header_left = sizeof header - std::min(message.moved, sizeof header);
    const std::size_t from = message.moved - (sizeof header - header_left);
    const std::array<iovec, 2> parts = {{{reinterpret_cast<std::byte*>(&header) + sizeof header - header_left, header_left},
                                         {message.data + from, here - from}}};
    msghdr out{};
    out.msg_iov = const_cast<iovec*>(parts.data());
    out.msg_iovlen = parts.size();
    const ssize_t bytes = ::sendmsg(socket(), &out, MSG_NOSIGNAL);
    if (bytes < 0) {
      if (would_block()) return;
      fail_by(errno);
    }
    has_moved();
    message.moved += static_cast<std::size_t>(bytes);
    if (message.moved < sizeof header + here) continue;
    if (stripes == 0) {
      complete(message);
    } else {
      stripe(message, stripes, next_socket_);
      next_socket_ = (next_socket_ + stripes) % stripe_sockets();
    }
  }
}

bool Receiver::receive(std::byte* to, std::size_t bytes, std::size_t& moved) {
  while (moved < bytes) {
    const ssize_t got = ::recv(socket(), to + moved, bytes - moved, 0);
    if (got == 0) {
      if (has_stripes()) return false;  // which are on their way although the peer has closed
      fail_by(StripeSockets::closed_by_peer);
    }
    if (got < 0) {
      if (would_block()) return false;
      fail_by(errno);
    }
    has_moved();
    moved += static_cast<std::size_t>(got);
  }
  return true;
}

bool Receiver::find_receive(const MessageHeader& header) {
  const auto wanted =
      std::find_if(waiting().begin(), waiting().end(), [&](const Message* each) { return each->tag == header.tag; });
  if (wanted == waiting().end()) return false;
  if (header.bytes > (*wanted)->bytes) {
    fail(ErrorCode::mismatch, "a message of " + std::to_string(header.bytes) + " bytes arrived for a receive of " +
                                  std::to_string((*wanted)->bytes) + ", tag " + std::to_string(header.tag));
  }
  if (header.stripes > std::min<std::uint64_t>(stripe_sockets(), header.bytes) ||
      (header.stripes != 0 && header.first_socket >= stripe_sockets())) {
    fail(ErrorCode::mismatch, "a message arrived with an invalid header: use the same version of netsum on both hosts");
  }
  current_ = *wanted;
  current_->bytes = static_cast<std::size_t>(header.bytes);
  header_bytes_ = 0;
  return true;
}

void Receiver::progress() {
  while (!waiting().empty()) {
    if (current_ == nullptr) {
      if (!receive(header_.data(), header_.size(), header_bytes_)) return;
      MessageHeader header{};
      std::memcpy(&header, header_.data(), sizeof header);
      if (!find_receive(header)) return;
      if (header.stripes != 0) {
        stripe(*std::exchange(current_, nullptr), header.stripes, header.first_socket);
        continue;
      }
    }
    if (!receive(current_->data, current_->bytes, current_->moved)) return;
    complete(*std::exchange(current_, nullptr));
  }
}

TcpListener::TcpListener(const Device& device, const TcpSettings& settings) : settings_(settings) {
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
  handle_.stripe_sockets = static_cast<std::uint8_t>(settings.stripe_sockets());
}

std::unique_ptr<Receiver> TcpListener::accept() {
  const Time now = runtime::now();
  if (!until_) until_ = after(now, settings_.operation);
  if (now >= *until_) {
    throw Error(ErrorCode::deadline,
                "no rank connected within " + seconds(settings_.operation) + " (NETSUM_OPERATION_SECONDS)");
  }
  take_strangers(now);
  hear_strangers(now);
  std::erase_if(arrivals_, [&](const Arrival& each) { return now >= each.until; });
  const auto whole = std::find_if(arrivals_.begin(), arrivals_.end(), [](const Arrival& each) {
    return std::none_of(each.sockets.begin(), each.sockets.end(), [](const auto& socket) { return socket == nullptr; });
  });
  if (whole == arrivals_.end()) return nullptr;
  auto receiver = std::make_unique<Receiver>(std::move(whole->sockets), std::move(whole->address), settings_);
  arrivals_.erase(whole);
  until_.reset();
  return receiver;
}

void TcpListener::take_strangers(Time now) {
  for (std::size_t i = 0; i <= handle_.stripe_sockets; ++i) {
    sockaddr_storage storage{};
    socklen_t size = sizeof storage;
    const int accepted =
        ::accept4(socket_->number(), reinterpret_cast<sockaddr*>(&storage), &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (accepted < 0) return;
    prepare(accepted);
    if (strangers_.size() == most_strangers) strangers_.pop_front();  // a rank shows the secret as soon as it is connected
    strangers_.push_back({std::make_unique<Descriptor>(accepted),
                          transport::to_string(transport::endpoint_of(storage)),
                          {},
                          0,
                          after(now, patience_with_strangers)});
  }
}

void TcpListener::hear_strangers(Time now) {
  for (auto each = strangers_.begin(); each != strangers_.end();) {
    const ssize_t bytes =
        ::recv(each->socket->number(), each->shown.data() + each->bytes, each->shown.size() - each->bytes, 0);
    const bool gone = bytes == 0 || (bytes < 0 && !would_block()) || now >= each->until;
    if (bytes > 0) each->bytes += static_cast<std::size_t>(bytes);
    const bool has_spoken = each->bytes == each->shown.size();
    if (has_spoken) {
      TcpHello hello{};
      std::memcpy(&hello, each->shown.data(), sizeof hello);
      if (hello.secret == handle_.secret) welcome(*each, hello, now);
    }
    each = gone || has_spoken ? strangers_.erase(each) : std::next(each);
  }
}

void TcpListener::welcome(Stranger& stranger, const TcpHello& hello, Time now) {
  if (hello.socket > handle_.stripe_sockets) return;
  auto found = std::find_if(arrivals_.begin(), arrivals_.end(),
                            [&](const Arrival& each) { return each.connection == hello.connection; });
  if (found == arrivals_.end()) {
    if (arrivals_.size() == most_strangers) arrivals_.pop_front();
    arrivals_.push_back({hello.connection, stranger.address, Sockets(handle_.stripe_sockets + std::size_t{1}),
                         after(now, settings_.connecting)});
    found = std::prev(arrivals_.end());
  }
  found->sockets[hello.socket] = std::move(stranger.socket);
}

void begin_connecting(const Device& device, TcpHandle& handle, const TcpSettings& settings) {
  if (handle.magic != magic || handle.stripe_sockets > most_stripe_sockets) {
    throw Error(ErrorCode::bad_argument,
                "the handle does not come from this plugin's listen(): is NETSUM_NCCL_NET the same on all ranks?");
  }
  handle.attempt = attempts().add(std::make_unique<Attempt>(device, handle, settings));
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
