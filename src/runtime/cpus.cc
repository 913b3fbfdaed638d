#include "runtime/cpus.h"

#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>

#include "transport/system/numa.h"
#include "transport/system/own_descriptor.h"

namespace netsum::runtime {
namespace {

// A CPU is taken by a name among abstract sockets: one thread of a host (a network namespace) has it, and the kernel frees
// it however its process ends.
bool take(std::uint32_t cpu, const transport::Descriptor& socket) {
  const std::string name = "netsum/cpu/" + std::to_string(cpu);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return ::bind(socket.number(), reinterpret_cast<const sockaddr*>(&address), length) == 0;
}

}  // namespace

std::vector<std::uint32_t> allowed_cpus() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::vector<std::uint32_t> cpus;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return cpus;
  for (std::uint32_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
  }
  return cpus;
}

void pin_thread(int cpu) {
  if (cpu <= own_cpu) {
    const auto node = cpu < own_cpu ? std::optional(static_cast<std::uint32_t>(own_cpu - 1 - cpu)) : std::nullopt;
    thread_local std::optional<transport::OwnDescriptor> own;  // a child of fork() has no threads of its parent's
    own.emplace(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    for (const std::uint32_t each : transport::near_first(allowed_cpus(), node)) {
      if (take(each, *own)) return pin_thread(static_cast<int>(each));
    }
  }
  if (cpu < 0) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(cpu), &one);
  ::pthread_setaffinity_np(::pthread_self(), sizeof one, &one);
}

}  // namespace netsum::runtime
