// Which code may wait. A daemon's control lock is needed by every rank of every job, so nothing that waits for another
// thread, process or host may run under it. The lock says so while it is held (NoWaiting); what waits asks (check_may_wait).
// The question is a thread's own, and costs a load: it is asked in every build, so that every test is a test of the rule.
#pragma once

#include <stdexcept>
#include <string>

namespace netsum {

inline thread_local int waiting_forbidden = 0;

// While it lives, its thread does not wait.
class NoWaiting {
 public:
  NoWaiting() { ++waiting_forbidden; }
  ~NoWaiting() { --waiting_forbidden; }
  NoWaiting(const NoWaiting&) = delete;
  NoWaiting& operator=(const NoWaiting&) = delete;
};

// Throws std::logic_error: this is a bug of netsum's.
inline void check_may_wait(const char* what) {
  if (waiting_forbidden != 0) throw std::logic_error(std::string("under the control lock, netsum would wait for ") + what);
}

}  // namespace netsum
