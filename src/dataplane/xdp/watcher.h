// Tells when this host's interfaces, addresses, routes or neighbours have changed, on a thread of its own.
#pragma once

#include <functional>
#include <thread>

#include "transport/system/socket.h"

namespace netsum::dataplane::xdp {

class Watcher {
 public:
  // `changed`: on that thread; at once, for what changed before, and then within a tenth of a second, at most ten times a
  // second. Throws Error: internal.
  explicit Watcher(std::function<void()> changed);
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  void watch(const std::function<void()>& changed) const;
  [[nodiscard]] bool ends_within(int milliseconds) const;

  const transport::Descriptor news_, end_;
  std::thread thread_;
};

}  // namespace netsum::dataplane::xdp
