// The error of calls after the one that failed.
#pragma once

#include <string>

#include "netsum/error.h"

namespace netsum {

// Of `what`, such as "the communicator". It has the first cause's code, but for one that says that nothing has happened.
[[nodiscard]] inline Error failed_earlier(const std::string& what, const Error& first) {
  const std::string text = what + " failed earlier: " + first.what();
  return first.code() == ErrorCode::bad_argument ? Error(ErrorCode::closed, text) : Error(first, text);
}

}  // namespace netsum
