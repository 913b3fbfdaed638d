// How gRPC says what became of a call.
#pragma once

#include <cstdint>

namespace netsum::p4app {

enum class GrpcStatus : std::uint8_t {
  ok = 0,
  invalid_argument = 3,
  resource_exhausted = 8,
  unimplemented = 12,
  internal = 13,
  unavailable = 14
};

}  // namespace netsum::p4app
