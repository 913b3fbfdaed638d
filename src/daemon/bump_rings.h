// The rings that a bump's options name: their memory, and how they are. In its accelerator are the rings of one rack, or
// this rack's parts of others; at a root, whose rings begin and end, the learned racks have them.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "daemon/bump_daemon.h"
#include "daemon/ring_watch.h"
#include "protocol/netreduce/bump.h"
#include "runtime/memory.h"

namespace netsum::daemon {

class BumpRings {
 public:
  // `options` outlive it, and it outlives the bump that it is added to.
  BumpRings(std::vector<netreduce::RingConfig> rings, const BumpOptions& options);

  [[nodiscard]] const std::vector<netreduce::RingConfig>& configs() const { return rings_; }
  // Once, before packets come. Throws as transport::resolve(), for other bumps; std::bad_alloc.
  void add_to(netreduce::Bump& bump, const std::function<void(const std::string&)>& log);

  // Where the bump's packets are processed:
  [[nodiscard]] BumpLook look(const netreduce::Bump& bump) const;
  // Whether all of the ring's ranks are there.
  [[nodiscard]] bool is_complete(const netreduce::Bump& bump, const netreduce::RingConfig& ring) const;

 private:
  std::size_t add_ring(netreduce::Bump& bump, const netreduce::RingConfig& ring);

  const std::vector<netreduce::RingConfig> rings_;
  const BumpOptions& options_;
  runtime::JobMemory memory_;  // of each, by incarnation
};

}  // namespace netsum::daemon
