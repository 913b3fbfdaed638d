// Which code may wait. Every rank of every job needs a daemon's control lock, so code that waits for another thread, process
// or host must not run under it. The lock forbids waiting while it is held (NoWaiting); waiting code checks
// (check_may_wait). The check is thread-local and costs a load. Every build makes it, so every test tests the rule.
#pragma once

#include <stdexcept>
#include <string>

namespace netsum {

inline thread_local int waiting_forbidden = 0;

// While it lives, its thread may not wait.
class NoWaiting {
 public:
  NoWaiting() { ++waiting_forbidden; }
  ~NoWaiting() { --waiting_forbidden; }
  NoWaiting(const NoWaiting&) = delete;
  NoWaiting& operator=(const NoWaiting&) = delete;
};

// Throws std::logic_error: a bug in netsum.
inline void check_may_wait(const char* what) {
  if (waiting_forbidden != 0) throw std::logic_error(std::string("under the control lock, netsum would wait for ") + what);
}

}  // namespace netsum
