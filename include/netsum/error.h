// The exceptions that netsum throws. docs/errors.md says what each code means and what to do.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "netsum/export.h"

namespace netsum {

enum class ErrorCode : std::uint8_t {
  bad_argument,          // the caller's own values, or two threads inside calls of one communicator
  unreachable,           // no aggregator answered within the connect deadline
  refused,               // the aggregator answered and said no: parameters, rank, token, version, slots
  mismatch,              // ranks issued different calls as the same operation
  deadline,              // an operation did not end in time; the text names the ranks that are missing
  worker_lost,           // another rank died or left; the text names it
  aggregator_lost,       // the aggregator stopped answering
  aggregator_restarted,  // the aggregator answers but no longer knows this job
  closed,                // the communicator failed earlier, was closed, or was inherited through fork()
  internal,              // a bug in netsum
  excluded,              // the job went on without this rank, which had been declared dead; the text names those that did
};

[[nodiscard]] NETSUM_API const char* to_string(ErrorCode code);

// What a rank called, in words: "all_reduce of 8 float32".
struct RankCall {
  std::uint32_t rank = 0;
  std::string call{};
};

// What the text says of ranks, operation and aggregator, for programs. Empty: not known, or not concerned.
struct ErrorDetails {
  std::vector<std::uint32_t> ranks{};        // that died, left, are missing, or made different calls
  std::optional<std::uint64_t> operation{};  // the number of the call that waits, or of the one that failed
  std::string aggregator{};                  // "host:port"
  std::vector<RankCall> calls{};             // mismatch: the different calls that are known, each with a rank that made it
};

class NETSUM_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& what) : Error(code, what, ErrorDetails()) {}
  Error(ErrorCode code, const std::string& what, ErrorDetails details)
      : std::runtime_error(what), code_(code), details_(std::make_shared<const ErrorDetails>(std::move(details))) {}
  // The same error, in other words.
  Error(const Error& other, const std::string& what)
      : std::runtime_error(what), code_(other.code_), details_(other.details_) {}

  // Copied, never moved from: there are always details.
  Error(const Error&) = default;
  Error& operator=(const Error&) = default;

  [[nodiscard]] ErrorCode code() const { return code_; }
  [[nodiscard]] const ErrorDetails& details() const { return *details_; }

 private:
  ErrorCode code_;
  std::shared_ptr<const ErrorDetails> details_;
};

}  // namespace netsum
