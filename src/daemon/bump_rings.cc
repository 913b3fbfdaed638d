#include "daemon/bump_rings.h"

#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "transport/system/random.h"

namespace netsum::daemon {

using netreduce::Bump;
using netreduce::RingConfig;

BumpRings::BumpRings(std::vector<RingConfig> rings, const BumpOptions& options)
    : rings_(std::move(rings)), options_(options) {}

void BumpRings::add_to(Bump& bump, const std::function<void(const std::string&)>& log) {
  for (const RingConfig& ring : rings_) {
    const std::size_t needed = add_ring(bump, ring);
    log("ring " + std::to_string(ring.ring) + ": " + std::to_string(ring.members) + " ranks, " +
        std::to_string(needed >> 10) + " KiB of packet buffers");
  }
}

// Adds a ring of foreign hosts, or its part here; returns the bytes that it takes.
std::size_t BumpRings::add_ring(Bump& bump, const RingConfig& ring) {
  const auto reserve = [&](const RingConfig& here, const std::function<void(std::span<std::byte>)>& use) {
    const std::size_t needed = netreduce::Accelerator::memory_bytes(here);
    memory_.add(ring.incarnation, needed, use);
    return needed;
  };
  if (!options_.rack_bumps.empty()) {
    std::vector<Endpoint> bumps;
    for (const std::string& each : options_.rack_bumps) bumps.push_back(transport::resolve(each));
    return reserve(netreduce::root_ring(ring, bumps, 0).ring, [&](std::span<std::byte> bytes) {
      bump.learned_racks().add(ring, netreduce::LearnedRacks::Root{bumps, bytes, transport::random_number});
    });
  }
  RingConfig here = ring;
  if (netreduce::spans_racks(ring)) {
    const netreduce::LearnedRacks::Rack rack{*options_.rack, transport::resolve(options_.root), transport::random_number()};
    here = *netreduce::rack_ring(ring, rack.rack, rack.root);
    bump.learned_racks().add(ring, rack);
  }
  return reserve(here, [&](std::span<std::byte> bytes) {
    if (!bump.accelerator().add_ring(here, bytes))
      throw Error(ErrorCode::internal, "two rings have the same random incarnation: start the bump again");
  });
}

bool BumpRings::is_complete(const Bump& bump, const RingConfig& ring) const {
  const netreduce::Accelerator& accelerator = bump.accelerator();
  if (!netreduce::spans_racks(ring)) return accelerator.bound(ring.incarnation) == RankSet::first(ring.members);
  if (!options_.rack_bumps.empty()) return bump.learned_racks().awaited(ring.incarnation).empty();
  return accelerator.gathered(ring.incarnation).begun;
}

BumpLook BumpRings::look(const Bump& bump) const {
  const netreduce::Accelerator& accelerator = bump.accelerator();
  BumpLook look{accelerator.counters(),           {}, bump.counters(), bump.learned_racks().counters(),
                bump.learned_racks().differing(), {}};
  for (std::size_t i = 0; i < look.examples.size(); ++i) {
    look.examples[i] = accelerator.example(static_cast<netreduce::Misfit>(i));
  }
  for (const RingConfig& ring : rings_) {
    RingLook& seen = look.rings.emplace_back();
    seen.complete = is_complete(bump, ring);
    seen.racks_awaited = bump.learned_racks().awaited(ring.incarnation);
    if (const auto* const counters = accelerator.ring_counters(ring.incarnation)) seen.counters = *counters;
    seen.stall = accelerator.stall(ring.incarnation);
    for (std::uint32_t rank = 0; seen.stall && rank < ring.members; ++rank) {
      seen.connections.push_back(accelerator.connection_of(ring.incarnation, rank));
    }
  }
  return look;
}

}  // namespace netsum::daemon
