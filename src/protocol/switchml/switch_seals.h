// The seals of a job at one lane of a switch. Internal to the switch.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/packet_io.h"
#include "protocol/switchml/seal_packet.h"
#include "protocol/switchml/switch.h"
#include "seal/replay_window.h"
#include "seal/sealer.h"
#include "wire/switchml.h"

namespace netsum::switchml {

class SwitchSeals {
 public:
  explicit SwitchSeals(const SwitchJobConfig& config)
      : security_(config.security), room_(config.security == PacketSecurity::encrypt ? UINT16_MAX : 0) {
    bool any = config.tree.has_value();
    for (const Member& member : config.members) {
      add(member.endpoint, from_.emplace_back(), member.keys.up, member.keys.down);
      any |= static_cast<bool>(member.keys);
    }
    if (config.tree && config.tree->parent) {
      add(*config.tree->parent, parent_, config.tree->parent_keys.down, config.tree->parent_keys.up);
      parent_results_.emplace(security_, config.results, sender);
    } else if (any) {
      results_.emplace(security_, config.results, sender);
    }
  }

  // Empty: not to be believed. Else the packet without its seal, if it had one; valid until the next call.
  [[nodiscard]] std::span<const std::byte> from_member(std::size_t member, const RxView& packet,
                                                       const wire::switchml::Common& common) {
    // What is added once whatever comes again needs no window.
    const bool idempotent =
        common.type == wire::switchml::Type::contribution || common.type == wire::switchml::Type::exponent_contribution ||
        common.type == wire::switchml::Type::empty_contributions || common.type == wire::switchml::Type::sum_part;
    return open(from_[member], packet, common, idempotent);
  }
  [[nodiscard]] std::span<const std::byte> from_parent(const RxView& packet, const wire::switchml::Common& common) {
    const bool result = common.type == wire::switchml::Type::result || common.type == wire::switchml::Type::exponent_result;
    const bool idempotent = result || common.type == wire::switchml::Type::acknowledgement ||
                            common.type == wire::switchml::Type::acknowledgements;
    if (!result || common.security == PacketSecurity::none) return open(parent_, packet, common, idempotent);
    if (common.security != security_) return {};
    return bytes_of(parent_results_->open(packet.bytes, wire::switchml::common_bytes, room_));
  }

  // Null: without a seal.
  [[nodiscard]] seal::Sealer* to(const Endpoint& endpoint) {
    const auto found = to_.find(endpoint);
    return found == to_.end() ? nullptr : &found->second;
  }
  [[nodiscard]] seal::Sealer* results() { return results_ ? &*results_ : nullptr; }

 private:
  static constexpr std::uint16_t sender = 0;  // each key is one sender's
  struct Source {
    std::optional<seal::Opener> opener;  // none: it is on this host
    seal::ReplayWindow window;
  };

  void add(const Endpoint& endpoint, Source& source, const seal::PacketKey& receive, const seal::PacketKey& send) {
    if (!receive) return;
    source.opener.emplace(security_, receive, sender);
    to_.emplace(endpoint, seal::Sealer(security_, send, sender));
  }

  [[nodiscard]] static std::span<const std::byte> bytes_of(const std::optional<seal::Opener::Opened>& opened) {
    return opened ? opened->bytes : std::span<const std::byte>();
  }
  [[nodiscard]] std::span<const std::byte> open(Source& source, const RxView& packet, const wire::switchml::Common& common,
                                                bool idempotent) {
    if (!source.opener) return common.security == PacketSecurity::none ? packet.bytes : std::span<const std::byte>();
    if (common.security != security_) return {};
    const auto opened = source.opener->open(packet.bytes, wire::switchml::common_bytes, room_);
    if (!opened || (!idempotent && !source.window.take(opened->counter))) return {};
    return opened->bytes;
  }

  PacketSecurity security_;
  std::vector<Source> from_;  // by member
  Source parent_;
  std::optional<seal::Opener> parent_results_;
  std::map<Endpoint, seal::Sealer> to_;
  std::optional<seal::Sealer> results_;
  std::vector<std::byte> room_;
};

}  // namespace netsum::switchml
