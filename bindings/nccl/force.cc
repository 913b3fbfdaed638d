#include "bindings/nccl/force.h"

#include <atomic>
#include <mutex>

#include "netsum/error.h"

namespace netsum::nccl {
namespace {

std::atomic<bool> refused{false};
std::mutex mutex;
std::string why;  // under the mutex; written once

}  // namespace

void refuse_sockets(const std::string& reason) {
  const std::lock_guard lock(mutex);
  if (!refused) why = reason;
  refused = true;
}

void check_sockets() {
  if (!refused) return;
  const std::lock_guard lock(mutex);
  throw Error(ErrorCode::refused, "NETSUM_MODE=force, but " + why);
}

}  // namespace netsum::nccl
