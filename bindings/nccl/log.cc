#include "bindings/nccl/log.h"

#include <array>
#include <atomic>
#include <cstdio>
#include <new>
#include <utility>

namespace netsum::nccl {
namespace {

std::atomic<Logger> current_logger{nullptr};

void log(LogLevel level, const char* line) noexcept {
  if (const Logger logger = current_logger.load()) logger(level, log_of_init_and_net, "netsum", 0, "%s", line);
}

// Allocates nothing: memory may be what is missing.
void warn(const char* call, const char* what) noexcept {
  std::array<char, 2048> line{};
  std::snprintf(line.data(), line.size(), "netsum: %s: %s", call, what);
  log(LogLevel::warn, line.data());
}

}  // namespace

void log_through(Logger logger) {
  current_logger.store(logger);
}

void log_line(LogLevel level, const std::string& line) {
  log(level, line.c_str());
}

Result result_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::bad_argument:
      return Result::invalid_argument;
    case ErrorCode::mismatch:
      return Result::invalid_usage;
    case ErrorCode::unreachable:
    case ErrorCode::refused:
      return Result::system_error;
    case ErrorCode::deadline:
    case ErrorCode::worker_lost:
    case ErrorCode::aggregator_lost:
    case ErrorCode::aggregator_restarted:
    case ErrorCode::excluded:
    case ErrorCode::closed:
      return Result::remote_error;
    case ErrorCode::internal:
      break;
  }
  return Result::internal_error;
}

Result failure_of(const char* call, bool& has_told) noexcept {
  const auto told = [&](Result result, const char* what) {
    if (result == Result::invalid_argument || !std::exchange(has_told, true)) warn(call, what);
    return result;
  };
  try {
    throw;
  } catch (const Error& error) {
    return told(result_of(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return told(Result::system_error, "out of memory");
  } catch (const std::exception& error) {
    return told(Result::internal_error, error.what());
  } catch (...) {
    return told(Result::internal_error, "an unknown exception");
  }
}

}  // namespace netsum::nccl
