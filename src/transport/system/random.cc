#include "transport/system/random.h"

#include <sys/random.h>

#include <cerrno>

#include "netsum/error.h"

namespace netsum::transport {

void random_bytes(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::getrandom(bytes.data(), bytes.size(), 0);
    if (got < 0 && errno != EINTR) throw Error(ErrorCode::internal, "the system's random number generator failed");
    if (got > 0) bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
}

std::uint64_t random_number() {
  std::uint64_t number = 0;
  random_bytes(std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

}  // namespace netsum::transport
