// ATP's packets between neighbours that have keys: the seal is behind a packet of the format, hop by hop, since switches
// rewrite headers.
#pragma once

#include <cstdint>
#include <span>

#include "base/packet_io.h"
#include "seal/hops.h"
#include "wire/atp.h"

namespace netsum::atp {

// The common header stays readable: by its epoch a node finds the job's keys.
[[nodiscard]] inline seal::Hops no_hops() {
  return seal::Hops({.epoch = wire::atp::at_job_epoch, .clear = wire::atp::common_bytes});
}

// Calls take(packets, sink) with those that may be believed, and a sink that seals. Without a job that has keys it stays out
// of the way. Returns how many were not believed.
template <class Take>
std::uint64_t through(seal::Hops& hops, std::span<const RxView> packets, Sink& sink, const Take& take) {
  if (hops.empty()) {
    take(packets, sink);
    return 0;
  }
  const std::uint64_t before = hops.unbelieved();
  const std::span<const RxView> opened = hops.open(packets);
  seal::SealingSink sealing(sink, hops);
  take(opened, sealing);
  return hops.unbelieved() - before;
}

}  // namespace netsum::atp
