// NCCL's log, and the border where exceptions become NCCL's results.
#pragma once

#include <exception>
#include <string>

#include "bindings/nccl/abi.h"
#include "netsum/error.h"

namespace netsum::nccl {

void log_through(Logger logger);  // from then on, in all threads
void log_line(LogLevel level, const std::string& line);

[[nodiscard]] Result result_of(ErrorCode code);
// For a handler: the result of what is being thrown, and one line about it, unless `has_told`, which is then set.
[[nodiscard]] Result failure_of(const char* call, bool& has_told) noexcept;

// Nothing leaves an entry point but its result. What fails once and for all, and says so with every call, tells the log
// once.
template <class Body>
Result guarded(const char* call, bool& has_told, const Body& body) noexcept {
  try {
    body();
    return Result::success;
  } catch (...) {
    return failure_of(call, has_told);
  }
}
template <class Body>
Result guarded(const char* call, const Body& body) noexcept {
  bool has_told = false;
  return guarded(call, has_told, body);
}

}  // namespace netsum::nccl
