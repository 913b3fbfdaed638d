// What a daemon's control connections may take; docs/security.md has the table.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace netsum::control {

struct ConnectionLimits {
  std::uint32_t connections = 8192;
  std::uint32_t of_one_host = 2048;  // an IPv6 host: its /64. Ranks that wait, and people who ask why
  std::uint32_t of_one_tenant = 6144;
  std::uint32_t unproved = 512;               // that have not proved a token yet; the others' places are not theirs
  std::chrono::milliseconds handshake{3000};  // from the connection to the proof
  std::chrono::milliseconds frame{10'000};    // from a frame's first byte to its last; from an answer to its last byte
  std::chrono::milliseconds idle{60'000};     // between an answer and the next request
  std::size_t held_bytes = 36 << 20;          // of frames that are not whole, and answers that are not read
  std::size_t held_of_one = 20 << 20;         // of one tenant, or of one host that has not proved a token
};

}  // namespace netsum::control
