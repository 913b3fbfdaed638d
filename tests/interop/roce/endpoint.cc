// The other end of a reliable connection from a guest: netsum's own queue pair (src/protocol/roce), on a port that frames
// come through. Whatever arrives is checked, word by word.
//
// usage: endpoint PORT OWN_MAC PEER_MAC OWN_ADDRESS send|receive|receive_silent BYTES MESSAGES WINDOW MTU FIRST_PSN SECONDS
//
// PORT as src/transport/ports/port.h has it. Prints `listening TCP_PORT`, where guest/verbs.cc tells it of its end; when all
// is done, what the queue pair has counted, as a JSON object. receive_silent: messages have no immediate value. Exit codes:
// those of guest/verbs.cc.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/virtio_net.h"
#include "exchange.h"
#include "netsum/error.h"
#include "protocol/roce/queue_pair.h"
#include "runtime/thread.h"
#include "transport/addresses/addresses.h"
#include "transport/ports/port.h"
#include "transport/system/socket.h"
#include "wire/ethernet.h"

namespace netsum {
namespace {

enum Exit { good = 0, wrong_data = 1, queue_pair_error = 2, too_late = 3, unusable = 4 };
constexpr std::uint32_t own_qp = 0x4e5352, own_key = 0x6b6579;
constexpr std::uint64_t own_address = 0x7e5700000000;  // what the peer calls our memory; no address of ours
constexpr std::size_t ip_at = virtio_net_header_bytes + wire::ethernet::header_bytes;

struct Options {
  std::string port;
  wire::ethernet::Address own_mac{}, peer_mac{};
  std::string address, role;
  std::uint32_t bytes = 0, messages = 0, window = 0, mtu = 0, first_psn = 0;
  Time deadline{};
};

[[noreturn]] void end(Exit code, const std::string& why) {
  std::printf("%s\n", why.c_str());
  std::exit(code);
}

void need(bool done, const char* what) {
  if (!done) end(unusable, std::string(what) + ": " + std::strerror(errno));
}

// Packets of the queue pair as frames on the port.
class FrameSink final : public roce::PacketSink {
 public:
  FrameSink(transport::Port& port, const Options& options) : port_(port) {
    std::copy(options.peer_mac.begin(), options.peer_mac.end(), head_.begin());
    std::copy(options.own_mac.begin(), options.own_mac.end(), head_.begin() + 6);
    head_[12] = wire::ethernet::ipv4 >> 8;
  }
  ~FrameSink() = default;
  std::span<std::byte> packet(std::size_t bytes) override {
    std::vector<std::byte>& frame = frames_.emplace_back(ip_at + bytes);
    std::memcpy(frame.data() + virtio_net_header_bytes, head_.data(), head_.size());
    return std::span(frame).subspan(ip_at);
  }
  void flush() {
    std::vector<iovec> pieces;
    for (std::vector<std::byte>& frame : frames_) pieces.push_back({frame.data(), frame.size()});
    port_.send(pieces);
    frames_.clear();
  }

 private:
  transport::Port& port_;
  std::array<std::uint8_t, wire::ethernet::header_bytes> head_{};
  std::vector<std::vector<std::byte>> frames_;
};

class End {
 public:
  explicit End(const Options& options)
      : options_(options),
        words_(std::size_t{options.bytes} / 4 * options.messages),
        port_(transport::open_port(options.port)),
        sink_(*port_, options),
        pair_(meet_peer()) {}

  void send() {
    for (std::uint32_t k = 0; k < options_.messages; ++k) {
      for (std::uint32_t i = 0; i < options_.bytes / 4; ++i) words_[std::size_t{k} * (options_.bytes / 4) + i] = word(k, i);
    }
    std::uint32_t posted = 0;
    const std::span<const std::byte> memory = std::as_bytes(std::span(words_));
    while (pair_.completed() < options_.messages) {
      while (posted < options_.messages) {
        const std::uint64_t at = std::uint64_t{posted} * options_.bytes;
        if (!pair_.post_write(memory.subspan(at, options_.bytes), peer_.address + at, peer_.key, posted)) break;
        ++posted;
      }
      pump(-1);
    }
    meet();  // the peer has everything
    meet();  // and has found it right
  }

  void receive() {
    const bool silent = options_.role == "receive_silent";
    for (std::uint32_t received = 0; !silent && received < options_.messages;) {
      pump(-1);
      for (const roce::Received& message : pair_.take_received()) {
        if (message.immediate != received || message.bytes != options_.bytes ||
            message.offset != std::uint64_t{received} * options_.bytes) {
          end(wrong_data, "message " + std::to_string(message.immediate) + " in the place of " + std::to_string(received));
        }
        ++received;
      }
    }
    meet();  // all was acknowledged
    for (std::uint32_t k = 0; k < options_.messages; ++k) {
      for (std::uint32_t i = 0; i < options_.bytes / 4; ++i) {
        const std::uint32_t found = words_[std::size_t{k} * (options_.bytes / 4) + i];
        if (found != word(k, i))
          end(wrong_data, "message " + std::to_string(k) + ", word " + std::to_string(i) + " is wrong");
      }
    }
    meet();
  }

  void print() const {
    const roce::QueuePairCounters& c = pair_.counters();
    std::printf(
        R"({"packets_sent": %ju, "retransmissions": %ju, "packets_received": %ju, "naks_sent": %ju, "naks_received": %ju, )"
        R"("timeouts": %ju, "duplicates": %ju, "out_of_order": %ju, "bad_icrc": %ju})"
        "\n",
        std::uintmax_t{c.packets_sent}, std::uintmax_t{c.retransmissions}, std::uintmax_t{c.packets_received},
        std::uintmax_t{c.naks_sent}, std::uintmax_t{c.naks_received}, std::uintmax_t{c.timeouts},
        std::uintmax_t{c.duplicates}, std::uintmax_t{c.out_of_order}, std::uintmax_t{bad_icrc_});
  }

 private:
  roce::QueuePairConfig meet_peer() {
    const transport::Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    need(::bind(listener.number(), reinterpret_cast<sockaddr*>(&address), length) == 0 &&
             ::listen(listener.number(), 1) == 0 &&
             ::getsockname(listener.number(), reinterpret_cast<sockaddr*>(&address), &length) == 0,
         "listen");
    std::printf("listening %d\n", ntohs(address.sin_port));
    std::fflush(stdout);
    wait(listener.number(), "the peer");
    socket_ = ::accept(listener.number(), nullptr, nullptr);
    need(socket_ >= 0, "accept");
    Peer own;
    own.qp = own_qp;
    own.psn = options_.first_psn;
    own.key = own_key;
    own.address = own_address;
    roce::QueuePairConfig config;
    config.local = transport::resolve(options_.address + ":1").address;
    std::copy(config.local.begin(), config.local.end(), own.gid);
    need(::write(socket_, &own, sizeof own) == sizeof own, "exchange");
    wait(socket_, "what the peer says");
    need(::recv(socket_, &peer_, sizeof peer_, MSG_WAITALL) == sizeof peer_, "exchange");
    std::copy_n(peer_.gid, config.remote.size(), config.remote.begin());
    config.local_qp = own_qp;
    config.remote_qp = peer_.qp;
    config.send_psn = options_.first_psn;
    config.receive_psn = peer_.psn;
    config.mtu = options_.mtu;
    config.max_messages = options_.window;
    config.memory = std::as_writable_bytes(std::span(words_));
    config.memory_address = own_address;
    config.memory_key = own_key;
    // Guests are emulated, and rest when their host does something else.
    config.initial_timeout = config.max_timeout = std::chrono::milliseconds(500);
    config.min_timeout = std::chrono::milliseconds(100);
    need(::write(socket_, "", 1) == 1, "exchange");
    wait(socket_, "the peer's readiness");
    char byte = 0;
    need(::recv(socket_, &byte, 1, 0) == 1, "the peer is gone");
    return config;
  }

  void wait(int descriptor, const std::string& what) const {
    pollfd one{descriptor, POLLIN, 0};
    const Duration left = std::max(options_.deadline - runtime::now(), Duration::zero());
    if (::poll(&one, 1, static_cast<int>(left / std::chrono::milliseconds(1))) != 1) end(too_late, "not in time: " + what);
  }

  // Sends and takes what there is; returns true once `descriptor` is readable, after some waiting at most.
  bool pump(int descriptor) {
    pair_.send(runtime::now(), sink_);
    sink_.flush();
    const Time until = std::min(options_.deadline, pair_.next_timeout());
    const Duration left = std::clamp(until - runtime::now(), Duration::zero(), Duration(std::chrono::seconds(1)));
    pollfd both[2] = {{port_->descriptor(), POLLIN, 0}, {descriptor, POLLIN, 0}};
    ::poll(both, 2, static_cast<int>(left / std::chrono::milliseconds(1)) + 1);
    if (runtime::now() > options_.deadline) end(too_late, "not in time");
    if (both[0].revents != 0) {
      std::vector<RxView> frames;
      port_->receive(frames, {});
      for (const RxView& frame : frames) take(frame.bytes);
    }
    pair_.on_timer(runtime::now());
    if (pair_.error() != roce::QueuePairError::none) end(queue_pair_error, roce::to_string(pair_.error()));
    return both[1].revents != 0;
  }

  void take(std::span<const std::byte> frame) {
    if (frame.size() < ip_at) return;
    const std::span<const std::byte> ip = frame.subspan(ip_at);
    wire::roce::Packet packet;
    if (!wire::roce::is_roce(ip) || wire::roce::parse(ip, packet) != wire::ParseError::none) return;
    if (!wire::roce::icrc_valid(ip.first(wire::roce::packet_bytes(ip)))) {
      ++bad_icrc_;
      return;
    }
    pair_.on_packet(packet, runtime::now());
  }

  // Returns when the peer is here too; until then its repeats are answered.
  void meet() {
    need(::write(socket_, "", 1) == 1, "the peer is gone");
    while (!pump(socket_)) {
    }
    char byte = 0;
    need(::recv(socket_, &byte, 1, 0) == 1, "the peer is gone");
  }

  const Options& options_;
  std::vector<std::uint32_t> words_;
  std::unique_ptr<transport::Port> port_;
  FrameSink sink_;
  Peer peer_;
  int socket_ = -1;
  std::uint64_t bad_icrc_ = 0;
  roce::QueuePair pair_;
};

wire::ethernet::Address mac(const char* text) {
  wire::ethernet::Address address{};
  unsigned parts[6] = {};
  if (std::sscanf(text, "%x:%x:%x:%x:%x:%x", &parts[0], &parts[1], &parts[2], &parts[3], &parts[4], &parts[5]) != 6) {
    end(unusable, std::string("no MAC address: ") + text);
  }
  std::transform(std::begin(parts), std::end(parts), address.begin(),
                 [](unsigned part) { return static_cast<std::uint8_t>(part); });
  return address;
}

int run(char** words) {
  const auto number = [](const char* text) { return static_cast<std::uint32_t>(std::strtoul(text, nullptr, 0)); };
  Options options;
  options.port = words[1];
  options.own_mac = mac(words[2]);
  options.peer_mac = mac(words[3]);
  options.address = words[4];
  options.role = words[5];
  options.bytes = number(words[6]);
  options.messages = number(words[7]);
  options.window = number(words[8]);
  options.mtu = number(words[9]);
  options.first_psn = number(words[10]);
  options.deadline = runtime::now() + std::chrono::seconds(number(words[11]));
  End own(options);
  if (options.role == "send")
    own.send();
  else
    own.receive();
  own.print();
  return good;
}

}  // namespace
}  // namespace netsum

int main(int argc, char** argv) {
  if (argc != 12) {
    std::fprintf(stderr, "usage: see the head of tests/interop/roce/endpoint.cc\n");
    return netsum::unusable;
  }
  try {
    return netsum::run(argv);
  } catch (const netsum::Error& error) {
    netsum::end(netsum::unusable, error.what());
  }
}
