// One lane of an aggregator's data plane, for the services on it: an endpoint, and one place where its packets are
// processed. That is a thread in the daemons (runtime/aggregator_lane.h), and a host's turn in the simulator (sim/lane.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "service/format.h"
#include "service/memory.h"

namespace netsum::service {

class Lane {
 public:
  virtual ~Lane() = default;

  // The lane owns the format; its packets go to it once this returns.
  virtual void serve(std::unique_ptr<Format> format) = 0;
  // Runs `command` where the lane's packets are processed, between batches, and returns once it has run. Packets wait
  // meanwhile: all slow work is done outside. Rethrows what `command` throws.
  virtual void run(const std::function<void()>& command) = 0;
  // Throws std::bad_alloc. Not within run().
  [[nodiscard]] virtual std::unique_ptr<Memory> allocate(std::size_t bytes, Pages pages = Pages::when_touched) = 0;

  // Within run(): which packets are expected from now on. In a flood of others, a lane may drop those before it reads them.
  virtual void expect(std::uint64_t /*epoch*/) {}  // of a job whose packets have it in netsum's own header
  virtual void expect_no_more(std::uint64_t /*epoch*/) {}
  virtual void expect_ring() {}  // of RoCE connections: all IP packets, as long as there is one
  virtual void expect_ring_no_more() {}
};

using Lanes = std::vector<Lane*>;

// For a service, which keeps hold of the formats that it has given away.
template <class F, class... Arguments>
F* serve(Lane& lane, Arguments&&... arguments) {
  auto format = std::make_unique<F>(std::forward<Arguments>(arguments)...);
  F* const kept = format.get();
  lane.serve(std::move(format));
  return kept;
}

}  // namespace netsum::service
