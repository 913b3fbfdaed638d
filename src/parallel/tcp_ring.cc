#include "parallel/tcp_ring.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <list>
#include <utility>

#include "base/bytes.h"
#include "base/failed_earlier.h"
#include "base/siphash.h"
#include "runtime/thread.h"
#include "transport/system/socket.h"

namespace netsum::parallel {
namespace {

// Bytes forwarded at once while more are to come: less costs more system calls, more adds latency.
constexpr std::size_t chunk_bytes = 16 << 10;
constexpr std::size_t scratch_bytes = 64 << 10;
constexpr std::size_t most_strangers = 64;  // connections without a Hello yet: one more closes the oldest

// Little-endian, like all of netsum's own formats.
struct Hello {
  static constexpr std::size_t size = 24;
  static constexpr std::uint64_t magic = 0x31676e69'726d736eULL;  // "nsmring1"

  std::uint64_t shown;
  std::uint32_t rank, ring_size;

  [[nodiscard]] std::array<std::byte, size> bytes() const {
    std::array<std::byte, size> out;
    store_le(out.data(), magic);
    store_le(out.data() + 8, shown);
    store_le(out.data() + 16, rank);
    store_le(out.data() + 20, ring_size);
    return out;
  }
};

[[nodiscard]] std::uint64_t hash_of(const std::string& text) {  // FNV-1a
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

// Nobody without the secret can make it.
[[nodiscard]] std::uint64_t shown_by(const TcpRingOptions& options) {
  if (options.secret.empty()) return hash_of(options.name);
  const auto half = [&](char which) {
    const std::string text = options.secret + which;
    return siphash({}, std::as_bytes(std::span(text)));
  };
  return siphash({half('0'), half('1')}, std::as_bytes(std::span(options.name)));
}

// Whether the peer's Hello is the expected one.
[[nodiscard]] bool hears(TcpSocket& socket, const Hello& expected, Time deadline) {
  std::array<std::byte, Hello::size> got;
  return socket.receive_all(got, deadline) && got == expected.bytes();
}

}  // namespace

// One pending all-reduce.
class TcpRing::Transfer {
 public:
  Transfer(TcpRing& ring, std::span<float> tensor)
      : ring_(ring), tensor_(std::as_writable_bytes(tensor)), elements_(tensor.size()), steps_(2 * (ring.size_ - 1)) {
    store_le(header_.data(), ring.operations_);
    store_le(header_.data() + 8, std::uint64_t{elements_});
  }

  void run(Time deadline) {
    send_header(deadline);
    skip_empty();
    while (!done()) {
      const bool sent = send_some();
      const bool received = receive_some();
      if (!sent && !received) wait(deadline);
    }
  }

 private:
  static constexpr std::size_t header_size = 16;

  struct Position {
    std::uint32_t step = 0;
    std::size_t offset = 0;  // in the step's piece
  };

  [[nodiscard]] std::span<std::byte> piece(std::uint32_t index) const {
    const auto at = [&](std::size_t i) { return elements_ * i / ring_.size_ * sizeof(float); };
    return tensor_.subspan(at(index), at(std::size_t{index} + 1) - at(index));
  }
  // The piece that is sent in this step, or received in the one before.
  [[nodiscard]] std::span<std::byte> sent_in(std::uint32_t step) const {
    return piece((ring_.rank_ + 2 * ring_.size_ - step) % ring_.size_);
  }
  [[nodiscard]] std::span<std::byte> received_in(std::uint32_t step) const { return sent_in(step + 1); }
  [[nodiscard]] bool adds_in(std::uint32_t step) const { return step < ring_.size_ - 1; }

  [[nodiscard]] bool all_sent() const { return sending_.step == steps_; }
  [[nodiscard]] bool all_received() const { return header_seen_ && receiving_.step == steps_; }
  [[nodiscard]] bool done() const { return all_sent() && all_received(); }

  void skip_empty() {
    while (!all_sent() && sending_.offset == sent_in(sending_.step).size()) sending_ = {sending_.step + 1, 0};
    while (receiving_.step < steps_ && receiving_.offset == received_in(receiving_.step).size()) {
      receiving_ = {receiving_.step + 1, 0};
    }
  }

  // Bytes of the current piece that may be sent to the successor now.
  [[nodiscard]] std::size_t ready() const {
    if (all_sent()) return 0;
    const std::size_t whole = sent_in(sending_.step).size();
    std::size_t there = whole;  // the first is this rank's own; others must come from the predecessor
    if (sending_.step > 0 && receiving_.step < sending_.step) {
      there = receiving_.step + 1 == sending_.step ? receiving_.offset : 0;
    }
    const std::size_t bytes = there - sending_.offset;
    return bytes >= chunk_bytes || there == whole ? bytes : 0;
  }

  void send_header(Time deadline) {
    if (!ring_.next_.send_all(header_, deadline)) {
      if (runtime::now() >= deadline) too_late();
      lost(ring_.rank_after());
    }
  }

  bool send_some() {
    const std::size_t bytes = ready();
    if (bytes == 0) return false;
    const auto from = sent_in(sending_.step).subspan(sending_.offset, bytes);
    const ssize_t sent = ::send(ring_.next_.number(), from.data(), from.size(), MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno != EAGAIN && errno != EINTR) lost(ring_.rank_after());
      return false;
    }
    sending_.offset += static_cast<std::size_t>(sent);
    skip_empty();
    return true;
  }

  bool receive_some() {
    if (all_received()) return false;
    if (!header_seen_) return receive_header();
    const auto to = received_in(receiving_.step).subspan(receiving_.offset);
    if (!adds_in(receiving_.step)) {
      const std::size_t got = receive(to);
      receiving_.offset += got;
      skip_empty();
      return got > 0;
    }
    // After the partial float that was received before.
    auto scratch = ring_.scratch_.first(std::min(ring_.scratch_.size(), to.size()));
    const std::size_t got = receive(scratch.subspan(partial_));
    const std::size_t floats = (partial_ + got) / sizeof(float);
    add(to, scratch, floats);
    partial_ = partial_ + got - floats * sizeof(float);
    std::memmove(scratch.data(), scratch.data() + floats * sizeof(float), partial_);
    receiving_.offset += floats * sizeof(float);
    skip_empty();
    return got > 0;
  }

  static void add(std::span<std::byte> to, std::span<const std::byte> from, std::size_t floats) {
    auto* const sums = reinterpret_cast<float*>(to.data());
    const auto* const values = reinterpret_cast<const float*>(from.data());
    for (std::size_t i = 0; i < floats; ++i) sums[i] += values[i];
  }

  bool receive_header() {
    std::array<std::byte, header_size> got;
    const std::size_t bytes = receive(std::span(got).first(header_size - header_bytes_));
    std::copy_n(got.begin(), bytes, theirs_.begin() + static_cast<std::ptrdiff_t>(header_bytes_));
    header_bytes_ += bytes;
    header_seen_ = header_bytes_ == header_size;
    if (header_seen_ && theirs_ != header_) {
      const auto describe = [](const auto& header) {
        return "all-reduce " + std::to_string(load_le<std::uint64_t>(header.data())) + " of " +
               std::to_string(load_le<std::uint64_t>(header.data() + 8)) + " elements";
      };
      ring_.fail(ErrorCode::mismatch, "rank " + std::to_string(ring_.rank_before()) + " is in " + describe(theirs_) +
                                          ", this rank in " + describe(header_));
    }
    return bytes > 0;
  }

  // Receives available bytes; 0: none now.
  std::size_t receive(std::span<std::byte> to) {
    const ssize_t got = ::recv(ring_.previous_.number(), to.data(), to.size(), 0);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) lost(ring_.rank_before());
    return 0;
  }

  void wait(Time deadline) {
    if (runtime::now() >= deadline) too_late();
    // The successor sends nothing, so a readable socket means that it closed.
    std::array<pollfd, 2> sockets{pollfd{all_received() ? -1 : ring_.previous_.number(), POLLIN, 0},
                                  pollfd{all_sent() ? -1 : ring_.next_.number(), POLLIN, 0}};
    if (ready() > 0) sockets[1].events |= POLLOUT;
    ::poll(sockets.data(), sockets.size(), milliseconds_until(deadline));
    if ((sockets[1].revents & ~POLLOUT) != 0) lost(ring_.rank_after());
  }

  [[noreturn]] void too_late() {
    const bool waits_for_data = ready() == 0;
    const std::uint32_t step = waits_for_data ? receiving_.step : sending_.step;
    ring_.fail(ErrorCode::deadline, "all-reduce " + std::to_string(ring_.operations_) + " did not end in time: step " +
                                        std::to_string(step) + " of " + std::to_string(steps_) + " waits for rank " +
                                        std::to_string(waits_for_data ? ring_.rank_before() : ring_.rank_after()));
  }
  [[noreturn]] void lost(std::uint32_t rank) {
    ring_.fail(ErrorCode::worker_lost, "rank " + std::to_string(rank) + " closed its connection: its own error says why");
  }

  TcpRing& ring_;
  std::span<std::byte> tensor_;
  std::size_t elements_;
  std::uint32_t steps_;
  std::array<std::byte, header_size> header_{}, theirs_{};
  std::size_t header_bytes_ = 0, partial_ = 0;  // of the peer's header received; of a float that is not added yet
  bool header_seen_ = false;
  Position sending_, receiving_;
};

TcpRing::TcpRing(const TcpRingOptions& options)
    : name_(options.name),
      shown_(shown_by(options)),
      rank_(options.rank),
      size_(options.size),
      scratch_(Copied::into, scratch_bytes) {
  if (size_ == 0 || rank_ >= size_) {
    throw Error(ErrorCode::bad_argument,
                "rank " + std::to_string(rank_) + " is not below the ring size " + std::to_string(size_));
  }
}

TcpRing::TcpRing(TcpSocket listener, const TcpRingOptions& options, Time deadline) : TcpRing(options) {
  if (size_ == 1) return;
  listener.listen();
  next_ = TcpSocket::connected_to(options.next, deadline);
  say_hello(next_, deadline);
  accept(listener, deadline);
  hear_next(options.next, deadline);
}

TcpRing::TcpRing(TcpSocket next, TcpSocket previous, const TcpRingOptions& options, Time deadline) : TcpRing(options) {
  if (size_ == 1) return;
  next_ = std::move(next);
  previous_ = std::move(previous);
  say_hello(next_, deadline);
  say_hello(previous_, deadline);
  if (!hears(previous_, {shown_, rank_before(), size_}, deadline)) {
    fail(ErrorCode::refused, "the connection to rank " + std::to_string(rank_) + " is not from rank " +
                                 std::to_string(rank_before()) + " of this ring: are the peers' addresses in rank order?");
  }
  hear_next(options.next, deadline);
}

void TcpRing::say_hello(TcpSocket& to, Time deadline) const {
  static_cast<void>(to.send_all(Hello{shown_, rank_, size_}.bytes(), deadline));
}

void TcpRing::hear_next(const std::string& address, Time deadline) {
  if (hears(next_, {shown_, rank_after(), size_}, deadline)) return;
  if (runtime::now() >= deadline)
    fail(ErrorCode::deadline, "rank " + std::to_string(rank_after()) + " did not answer before the deadline");
  fail(ErrorCode::refused,
       address + " is not rank " + std::to_string(rank_after()) + " of this ring: check the address and the job name");
}

void TcpRing::accept(TcpSocket& listener, Time deadline) {
  struct Stranger {
    TcpSocket socket;
    std::array<std::byte, Hello::size> hello{};
    std::size_t heard = 0;
  };
  const auto expected = Hello{shown_, rank_before(), size_}.bytes();
  std::list<Stranger> strangers;
  while (runtime::now() < deadline) {
    std::vector<pollfd> watched{{listener.number(), POLLIN, 0}};
    for (const Stranger& each : strangers) watched.push_back({each.socket.number(), POLLIN, 0});
    ::poll(watched.data(), watched.size(), milliseconds_until(deadline));
    if (watched.front().revents != 0) {
      if (auto accepted = listener.accept(deadline)) strangers.push_back({std::move(*accepted)});
      if (strangers.size() > most_strangers) strangers.pop_front();
    }
    for (auto each = strangers.begin(); each != strangers.end();) {
      const auto room = std::span(each->hello).subspan(each->heard);
      const ssize_t got = ::recv(each->socket.number(), room.data(), room.size(), 0);
      if (got > 0) each->heard += static_cast<std::size_t>(got);
      if (each->heard == Hello::size && each->hello == expected) {
        previous_ = std::move(each->socket);
        return say_hello(previous_, deadline);
      }
      const bool waits = got > 0 ? each->heard < Hello::size : got < 0 && (errno == EAGAIN || errno == EINTR);
      each = waits ? std::next(each) : strangers.erase(each);
    }
  }
  fail(ErrorCode::deadline, "rank " + std::to_string(rank_before()) + " did not connect in time");
}

void TcpRing::all_reduce(std::span<float> inout, Time deadline) {
  if (failure_) throw failed_earlier("ring '" + name_ + "'", *failure_);
  if (size_ == 1) return;
  Transfer(*this, inout).run(deadline);
  ++operations_;
}

void TcpRing::barrier(Time deadline) {
  std::vector<float> nothing(size_);  // one element per piece: no rank ends before all have begun
  all_reduce(nothing, deadline);
}

void TcpRing::close() {
  if (!failure_) failure_.emplace(ErrorCode::closed, "it was closed");
  next_.close();
  previous_.close();
}

void TcpRing::fail(ErrorCode code, const std::string& what) {
  failure_.emplace(code, "ring '" + name_ + "', rank " + std::to_string(rank_) + ": " + what);
  close();
  throw Error(*failure_);
}

}  // namespace netsum::parallel
