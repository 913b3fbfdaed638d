// ATP's packets between neighbours that have keys: the seal is behind a packet of the format, hop by hop, since switches
// rewrite headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "seal/hops.h"
#include "wire/atp.h"

namespace netsum::atp {

// The common header stays readable: by its epoch a node finds the job's keys.
[[nodiscard]] inline seal::Hops no_hops() {
  return seal::Hops({.mark = [](std::span<const std::byte> packet) -> std::optional<std::uint64_t> {
                       if (packet.size() < wire::atp::common_bytes) return std::nullopt;
                       return load_le<std::uint64_t>(packet.data() + wire::atp::at_job_epoch);
                     },
                     .clear = wire::atp::common_bytes});
}

}  // namespace netsum::atp
