#include "p4app/rank.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "netsum/error.h"
#include "p4app/grpc.h"
#include "p4app/messages.h"
#include "p4app/stations.h"
#include "runtime/thread.h"
#include "transport/addresses/addresses.h"
#include "transport/addresses/interfaces.h"
#include "transport/addresses/next_hop.h"
#include "transport/datagram/lossy.h"
#include "transport/datagram/udp.h"
#include "transport/system/own_descriptor.h"
#include "transport/system/random.h"
#include "transport/system/socket.h"

namespace netsum::p4app {
namespace {

constexpr Duration between_attempts = std::chrono::milliseconds(50);

// The control service, as a rank calls it: one call at a time, each of which waits.
class ControlClient {
 public:
  ControlClient(const std::string& address, Time until) : address_(address), end_(address) {
    const Endpoint to = transport::resolve(address);
    while (!attempt(to, until)) {
      if (runtime::now() + between_attempts > until)
        throw Error(ErrorCode::unreachable, "no control service answers at " + address + ": " + transport::errno_text());
      std::this_thread::sleep_for(between_attempts);
    }
    transport::set_option(socket_->number(), IPPROTO_TCP, TCP_NODELAY, 1);
  }

  [[nodiscard]] Endpoint local() const {
    sockaddr_storage storage{};
    socklen_t length = sizeof storage;
    ::getsockname(socket_->number(), reinterpret_cast<sockaddr*>(&storage), &length);
    return transport::endpoint_of(storage);
  }

  template <class Response, class Request>
  Response call(std::string_view path, const Request& request, Time until) {
    end_.call(path, to_bytes(request));
    std::optional<GrpcClientEnd::Result> result;
    while (!(result = end_.take_result())) exchange(until, path);
    if (!result->ok)
      throw Error(ErrorCode::refused,
                  "the control service at " + address_ + " refuses " + std::string(path) + ": " + result->bytes);
    const auto response = from_bytes<Response>(result->bytes);
    if (!response)
      throw Error(ErrorCode::refused, "the control service at " + address_ + " does not speak p4app's protocol");
    return *response;
  }

 private:
  [[nodiscard]] bool attempt(const Endpoint& to, Time until) {
    sockaddr_storage storage{};
    const bool ipv6 = !transport::is_ipv4(to);
    const socklen_t length = transport::to_sockaddr(to, ipv6, storage);
    socket_.emplace(::socket(ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (::connect(socket_->number(), reinterpret_cast<const sockaddr*>(&storage), length) == 0) return true;
    if (errno != EINPROGRESS) return false;
    pollfd ready{socket_->number(), POLLOUT, 0};
    runtime::wait_for({&ready, 1}, until);
    errno = transport::get_option(socket_->number(), SOL_SOCKET, SO_ERROR);
    if (ready.revents == 0) errno = ETIMEDOUT;
    return errno == 0;
  }

  void exchange(Time until, std::string_view path) {
    unsent_ += end_.take_output();
    if (!unsent_.empty()) {
      const ssize_t sent = ::send(socket_->number(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) lost();
      unsent_.erase(0, static_cast<std::size_t>(std::max<ssize_t>(sent, 0)));
    }
    pollfd ready{socket_->number(), static_cast<short>(unsent_.empty() ? POLLIN : POLLIN | POLLOUT), 0};
    runtime::wait_for({&ready, 1}, until);
    if (runtime::now() >= until)
      throw Error(ErrorCode::deadline, "the control service at " + address_ + " has not answered " + std::string(path) +
                                           " in time: a rank is missing");
    std::array<char, 4096> bytes;
    const ssize_t count = ::recv(socket_->number(), bytes.data(), bytes.size(), 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0 || !end_.receive({bytes.data(), static_cast<std::size_t>(count)})) lost();
  }

  [[noreturn]] void lost() const {
    throw Error(ErrorCode::aggregator_lost, "the connection to the control service at " + address_ + " has ended");
  }

  const std::string address_;
  GrpcClientEnd end_;
  std::string unsent_;
  std::optional<transport::OwnDescriptor> socket_;
};

}  // namespace

struct Rank::Impl {
  explicit Impl(const RankOptions& o)
      : options(o),
        connect_until(after(runtime::now(), runtime::bounded(o.connect_deadline))),
        control(o.controller, connect_until) {
    if (options.threads == 0 || options.window / options.threads == 0 ||
        2 * std::uint64_t{options.window} > wire::p4app::max_slots)
      throw Error(ErrorCode::bad_argument,
                  "the window must be between the number of threads, " + std::to_string(options.threads) + ", and " +
                      std::to_string(wire::p4app::max_slots / 2) + " packets, not " + std::to_string(options.window));
    const Endpoint own = own_address();
    const Endpoint aggregator = begin_session(own);
    const std::uint32_t window = options.window / options.threads;
    for (std::uint32_t thread = 0; thread < options.threads; ++thread) {
      WorkerConfig config;
      config.world_size = options.world_size;
      config.elements = options.packet_elements;
      config.window = window;
      config.first_slot = 2 * window * thread;
      config.aggregator = aggregator;
      workers.emplace_back(config);
      transport::UdpOptions udp;
      udp.bind = own;
      udp.bind.port = static_cast<std::uint16_t>(own.port + thread);
      udp.peer = aggregator;
      std::unique_ptr<transport::Transport> socket = std::make_unique<transport::Udp>(udp);
      if (options.loss > 0)
        socket = std::make_unique<transport::Lossy>(std::move(socket), options.loss, options.loss_seed, thread);
      sockets.push_back(std::move(socket));
    }
    barrier(connect_until);
  }

  const RankOptions options;
  const Time connect_until;
  ControlClient control;
  std::vector<Worker> workers;
  std::vector<std::unique_ptr<transport::Transport>> sockets;

  [[nodiscard]] Endpoint own_address() const {
    if (!options.bind.empty()) return transport::resolve(options.bind);
    Endpoint own = control.local();
    own.port = wire::p4app::first_worker_port;
    return own;
  }

  // Where packets go to. The other ranks' packets would be lost before rank 0 has begun the session.
  Endpoint begin_session(const Endpoint& own) {
    if (!transport::is_ipv4(own))
      throw Error(ErrorCode::bad_argument, "a worker of p4app must have an IPv4 address, not " + transport::to_string(own));
    std::uint64_t number = 0;
    transport::random_bytes(std::as_writable_bytes(std::span(&number, 1)));
    const BroadcastRequest share{number, options.rank, options.world_size, 0};
    UdpSessionRequest request;
    request.session = control.call<BroadcastResponse>(broadcast_path, share, connect_until).value;
    request.rank = options.rank;
    request.workers = options.world_size;
    request.station = {mac_at(own), ipv4_of(own)};
    request.packet_size = wire::p4app::size_of(options.packet_elements);
    if (options.rank != 0) barrier(connect_until);
    const auto response = control.call<UdpSessionResponse>(udp_session_path, request, connect_until);
    if (response.session != request.session)
      throw Error(ErrorCode::refused,
                  "the control service at " + options.controller + " refuses the session; its log says why");
    if (options.rank == 0) barrier(connect_until);
    Endpoint aggregator = endpoint_of_ipv4(response.station.ipv4);
    aggregator.port = wire::p4app::switch_port;
    return aggregator;
  }

  [[nodiscard]] static std::uint64_t mac_at(const Endpoint& own) {
    const auto interface = transport::interface_of(own);
    return !interface || interface->loopback ? 0 : number_of_mac(transport::ethernet_interface(interface->name).address);
  }

  void barrier(Time until) { control.call<BarrierResponse>(barrier_path, BarrierRequest{options.world_size}, until); }

  [[nodiscard]] bool busy() const {
    return std::any_of(workers.begin(), workers.end(), [](const Worker& worker) { return worker.busy(); });
  }

  // Threads have slices of the tensor, as equal as can be: the first ones have an element more.
  void begin(DType dtype, std::span<std::byte> tensor) {
    constexpr std::size_t element_bytes = 4;
    const std::size_t elements = tensor.size() / element_bytes;
    std::size_t at = 0;
    for (std::size_t thread = 0; thread < workers.size(); ++thread) {
      const std::size_t share = elements / workers.size() + (thread < elements % workers.size() ? 1 : 0);
      workers[thread].begin(dtype, tensor.subspan(at * element_bytes, share * element_bytes), runtime::now(),
                            sockets[thread]->sink());
      sockets[thread]->sink().flush();
      at += share;
    }
  }

  void all_reduce(DType dtype, std::span<std::byte> tensor) {
    const Time until = after(runtime::now(), runtime::bounded(options.deadline));
    begin(dtype, tensor);
    std::vector<pollfd> descriptors;
    for (const auto& socket : sockets) descriptors.push_back({socket->descriptor(), POLLIN, 0});
    while (busy()) {
      Time next = until;
      for (const Worker& worker : workers) next = std::min(next, worker.next_timeout());
      runtime::wait_for(descriptors, next);
      if (runtime::now() >= until)
        throw Error(ErrorCode::deadline, "rank " + std::to_string(options.rank) + ": all_reduce did not end within " +
                                             std::to_string(options.deadline.count()) +
                                             " ms: a rank has died, or the switch at " + options.controller +
                                             " does not answer packets");
      for (std::size_t thread = 0; thread < workers.size(); ++thread) {
        Sink& sink = sockets[thread]->sink();
        while (true) {
          const std::span<const RxView> packets = sockets[thread]->receive();
          if (packets.empty()) break;
          workers[thread].on_packets(packets, runtime::now(), sink);
          sink.flush();
        }
        workers[thread].on_timer(runtime::now(), sink);
        sink.flush();
      }
    }
  }
};

Rank::Rank(const RankOptions& options) : impl_(std::make_unique<Impl>(options)) {}

Rank::~Rank() = default;

void Rank::all_reduce(DType dtype, std::span<std::byte> tensor) {
  impl_->all_reduce(dtype, tensor);
}

void Rank::barrier() {
  impl_->barrier(after(runtime::now(), runtime::bounded(impl_->options.deadline)));
}

WorkerCounters Rank::worker_counters() const {
  WorkerCounters sum;
  for (const Worker& worker : impl_->workers) {
    for (const auto& field : counter_fields<WorkerCounters>) sum.*field.value += worker.counters().*field.value;
  }
  return sum;
}

transport::Counters Rank::transport_counters() const {
  transport::Counters sum;
  for (const auto& socket : impl_->sockets) {
    const transport::Counters counters = socket->counters();
    for (const auto& field : counter_fields<transport::Counters>) sum.*field.value += counters.*field.value;
  }
  return sum;
}

}  // namespace netsum::p4app
