// The seals of a worker's lane. Internal to the worker.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "protocol/switchml/worker.h"
#include "seal/replay_window.h"
#include "seal/sealer.h"

namespace netsum::switchml {

class WorkerSeals {
 public:
  explicit WorkerSeals(const WorkerConfig& config)
      : security_(config.security),
        results_(config.security, config.results, sender),
        room_(config.security == PacketSecurity::encrypt ? UINT16_MAX : 0) {
    if (!config.keys) return;
    up_.emplace(config.security, config.keys.up, sender);
    down_.emplace(config.security, config.keys.down, sender);
  }

  [[nodiscard]] seal::Sealer* up() { return up_ ? &*up_ : nullptr; }  // null: without a seal

  // Empty: not to be believed. Else the packet without its seal, if it had one; valid until the next call.
  [[nodiscard]] std::span<const std::byte> open(std::span<const std::byte> packet, const wire::switchml::Common& common) {
    const bool near = !down_;
    if (common.security == PacketSecurity::none) return near ? packet : std::span<const std::byte>();
    if (common.security != security_) return {};
    const bool result = common.type == wire::switchml::Type::result || common.type == wire::switchml::Type::exponent_result;
    if (!result && near) return {};
    seal::Opener& opener = result ? results_ : *down_;
    const auto opened = opener.open(packet, wire::switchml::common_bytes, room_);
    // A result ends a chunk once, whatever comes again. Words on what is missing count each time.
    const bool idempotent = result || common.type == wire::switchml::Type::acknowledgement ||
                            common.type == wire::switchml::Type::acknowledgements;
    if (!opened || (!idempotent && !window_.take(opened->counter))) return {};
    return opened->bytes;
  }

 private:
  static constexpr std::uint16_t sender = 0;  // each key is one sender's

  PacketSecurity security_;
  std::optional<seal::Sealer> up_;
  std::optional<seal::Opener> down_;
  seal::ReplayWindow window_;
  seal::Opener results_;
  std::vector<std::byte> room_;
};

}  // namespace netsum::switchml
