// A rank of a TCP ring between neighbours that send anything: it ends in the sum of what came, or in an error that says so,
// and sends nothing but its own stream.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "fuzz/harness.h"
#include "parallel/tcp_ring.h"
#include "runtime/thread.h"

namespace {

std::size_t most_at_once = SIZE_MAX;  // bytes that the system takes or gives

}  // namespace

// Linked in place of the system's calls (-Wl,--wrap), which they make.
extern "C" {
ssize_t __real_recv(int socket, void* to, std::size_t size, int flags);
ssize_t __real_send(int socket, const void* from, std::size_t size, int flags);
ssize_t __wrap_recv(int socket, void* to, std::size_t size, int flags) {
  return __real_recv(socket, to, std::min(size, most_at_once), flags);
}
ssize_t __wrap_send(int socket, const void* from, std::size_t size, int flags) {
  return __real_send(socket, from, std::min(size, most_at_once), flags);
}
}

namespace netsum::parallel {
namespace {

using fuzz::check;
using Bytes = std::vector<std::byte>;
using namespace std::chrono_literals;

constexpr std::string_view ring_name = "fuzz";
constexpr std::size_t hello_bytes = 24, header_bytes = 16;

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(std::as_bytes(std::span(data, size))) {}
  std::uint8_t byte() { return rest_.empty() ? std::uint8_t{0} : std::to_integer<std::uint8_t>(take(1)[0]); }
  std::span<const std::byte> take(std::size_t most) {
    const auto taken = rest_.first(std::min(most, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }

 private:
  std::span<const std::byte> rest_;
};

Bytes hello(std::uint32_t rank, std::uint32_t size) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : ring_name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  Bytes bytes(hello_bytes);
  store_le(bytes.data(), std::uint64_t{0x31676e69'726d736eULL});
  store_le(bytes.data() + 8, hash);
  store_le(bytes.data() + 16, rank);
  store_le(bytes.data() + 20, size);
  return bytes;
}

Bytes header(std::uint64_t operation, std::uint64_t elements) {
  Bytes bytes(header_bytes);
  store_le(bytes.data(), operation);
  store_le(bytes.data() + 8, elements);
  return bytes;
}

void append(Bytes& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

// What one all-reduce makes of `received`, in whole steps; and what goes on to the successor.
struct Model {
  std::vector<float> tensor;
  Bytes sent;
};

Model model(std::uint32_t rank, std::uint32_t size, std::vector<float> tensor, std::span<const std::byte> received) {
  Model result{std::move(tensor), {}};
  const std::size_t elements = result.tensor.size();
  const auto piece = [&](std::uint32_t step) {
    const std::size_t index = (rank + 2 * size - step) % size;
    const std::size_t begin = elements * index / size;
    return std::span(result.tensor).subspan(begin, elements * (index + 1) / size - begin);
  };
  for (std::uint32_t step = 0; step < 2 * (size - 1); ++step) {
    append(result.sent, std::as_bytes(piece(step)));
    for (float& value : piece(step + 1)) {
      float came = 0;
      std::memcpy(&came, received.data(), sizeof came);
      received = received.subspan(sizeof came);
      value = step < size - 1 ? value + came : came;
    }
  }
  return result;
}

// Which of two NaNs an addition keeps is the compiler's choice.
bool same_floats(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i + 4 <= a.size(); i += 4) {
    float x = 0, y = 0;
    std::memcpy(&x, a.data() + i, 4);
    std::memcpy(&y, b.data() + i, 4);
    if (std::memcmp(&x, &y, 4) != 0 && !(std::isnan(x) && std::isnan(y))) return false;
  }
  return true;
}

struct Pair {
  Pair() {
    std::array<int, 2> ends{};
    check(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0, "a pair of sockets");
    ours = TcpSocket(ends[0]);
    theirs = TcpSocket(ends[1]);
  }
  TcpSocket ours, theirs;

  // Then nothing more, if it `ends`: what is missing is never waited for.
  void put(const Bytes& bytes, bool ends) {
    check(theirs.send_all(bytes, runtime::now() + 1s), "what a neighbour sends fits");
    if (ends) ::shutdown(theirs.number(), SHUT_WR);
  }
  Bytes got() {
    Bytes all(1 << 16);
    std::size_t size = 0;
    while (true) {
      const ssize_t more = ::recv(theirs.number(), all.data() + size, all.size() - size, 0);
      if (more <= 0) break;
      size += static_cast<std::size_t>(more);
    }
    all.resize(size);
    return all;
  }
};

void one(Input input) {
  const std::uint32_t size = 2 + input.byte() % 4, rank = input.byte() % size;
  const std::uint8_t mode = input.byte();
  const bool hello_is_right = mode % 8 != 7, next_is_right = mode / 8 % 8 != 7, silent = mode / 8 == 24;
  const std::uint32_t operations = 1 + input.byte() % 3;
  const std::uint8_t most = input.byte();

  most_at_once = SIZE_MAX;
  Pair next, previous;
  Bytes from_next = hello((rank + 1) % size, size), from_previous = hello((rank + size - 1) % size, size);
  if (!next_is_right) std::ranges::copy(input.take(hello_bytes), from_next.begin());
  if (!hello_is_right) std::ranges::copy(input.take(hello_bytes), from_previous.begin());

  std::vector<std::size_t> lengths;
  std::vector<Model> expected;
  std::optional<ErrorCode> trouble;  // of the operation behind the expected ones
  const auto tensor_of = [&](std::size_t operation) {
    std::vector<float> tensor(lengths[operation]);
    for (std::size_t i = 0; i < tensor.size(); ++i) tensor[i] = static_cast<float>(i + operation);
    return tensor;
  };
  for (std::uint32_t operation = 0; operation < operations && !trouble; ++operation) {
    const std::size_t elements = lengths.emplace_back(input.byte() % 67);
    std::size_t bytes = 0;
    for (std::uint32_t step = 1; step <= 2 * (size - 1); ++step) {
      const std::size_t index = (rank + 2 * size - step) % size;
      bytes += (elements * (index + 1) / size - elements * index / size) * sizeof(float);
    }
    const Bytes right_header = header(operation, elements);
    Bytes its_header = right_header;
    if (input.byte() % 16 == 15) std::ranges::copy(input.take(header_bytes), its_header.begin());
    const auto payload = input.take(bytes);
    append(from_previous, its_header);
    append(from_previous, payload);
    if (its_header != right_header) {
      trouble = ErrorCode::mismatch;
    } else if (payload.size() < bytes) {
      trouble = ErrorCode::worker_lost;
    } else {
      expected.push_back(model(rank, size, tensor_of(operation), payload));
    }
  }
  append(from_previous, input.take(4096));
  previous.put(from_previous, !silent);
  next.put(from_next, !next_is_right);

  most_at_once = most == 0 ? SIZE_MAX : most;
  const Time deadline = runtime::now() + (silent ? Duration(2ms) : Duration(10s));
  std::optional<Error> error;
  std::size_t done = 0;
  Bytes stream = hello(rank, size);
  try {
    TcpRing ring(std::move(next.ours), std::move(previous.ours), {std::string(ring_name), rank, size, "next"}, deadline);
    for (std::size_t operation = 0; operation < lengths.size(); ++operation) {
      auto tensor = tensor_of(operation);
      try {
        ring.all_reduce(tensor, deadline);
      } catch (const Error& first) {
        bool same = false;
        try {
          ring.all_reduce(tensor, deadline);
        } catch (const Error& again) {
          same = again.code() == first.code();
        }
        check(same, "a ring that failed stays so");
        throw;
      }
      check(done < expected.size(), "what is wrong is not summed");
      check(same_floats(std::as_bytes(std::span(tensor)), std::as_bytes(std::span(expected[done].tensor))),
            "the tensor is the sum of what came");
      append(stream, header(operation, tensor.size()));
      append(stream, expected[done++].sent);
    }
  } catch (const Error& thrown) {
    error = thrown;
  }
  if (error) {
    const ErrorCode code = error->code();
    check(code == ErrorCode::worker_lost || code == ErrorCode::mismatch || code == ErrorCode::deadline ||
              code == ErrorCode::refused,
          "an error of a neighbour's making");
    check(code != ErrorCode::deadline || silent, "who has ended is not waited for");
  }
  if (!hello_is_right || !next_is_right || silent) return;
  check(done == expected.size() && error.has_value() == trouble.has_value(), "what is right is summed");
  check(!error || error->code() == *trouble, "the error says what is wrong");
  if (error) return;
  most_at_once = SIZE_MAX;
  const Bytes sent = next.got();
  check(std::ranges::equal(std::span(sent).first(hello_bytes), std::span(stream).first(hello_bytes)), "its hello is sent");
  check(same_floats(std::span(sent).subspan(hello_bytes), std::span(stream).subspan(hello_bytes)),
        "its stream, and nothing else, is sent");
}

}  // namespace
}  // namespace netsum::parallel

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  netsum::parallel::one({data, size});
  return 0;
}
