// What a packet of the aggregator says to a worker's lane. Internal to the worker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>

#include "protocol/switchml/in_flight.h"
#include "protocol/switchml/worker.h"
#include "wire/parse_error.h"
#include "wire/switchml.h"

namespace netsum::switchml {

// The result of a round in flight, as far as it could be compared with what this rank has sent.
struct RoundResult {
  Slot* slot = nullptr;
  Place place;
  std::span<const std::byte> exponents;  // of what the round named, the largest of all ranks; empty: not all named it
  std::span<const std::byte> payload, masks;
};

// Nothing: it was not for this lane, or not now, and is counted.
using Answer =
    std::variant<std::monostate, RoundResult, wire::switchml::RunPacket, wire::switchml::WaitingPacket, WorkerFailure>;
[[nodiscard]] inline Answer nothing(std::uint64_t& why) {
  ++why;
  return {};
}
[[nodiscard]] inline Answer malformed(WorkerCounters& counters, wire::ParseError why) {
  return nothing(counters.malformed[static_cast<std::size_t>(why)]);
}

}  // namespace netsum::switchml
