// The receiving end of a UC queue pair: which packets continue a message, from their PSNs (InfiniBand Architecture
// Specification, 9.8). Nothing is acknowledged or asked for again.
//
// A NIC takes a message's first packet of any PSN. This end takes none that is behind: a late copy would break the message
// that is under way, and a whole late message would pass for a new one.
#pragma once

#include <cstdint>

#include "wire/roce.h"

namespace netsum::roce {

class UcReceiver {
 public:
  explicit UcReceiver(std::uint32_t first_psn) : next_psn_(first_psn) {}

  enum class Finding : std::uint8_t {
    begins,      // a message
    continues,   // it, with its packet number packet()
    late,        // it came before, or was given up
    behind_gap,  // a packet before it is missing: its message is lost
  };
  [[nodiscard]] Finding take(std::uint32_t psn, bool first) {
    const std::int32_t ahead = wire::roce::psn_distance(next_psn_, psn);
    if (ahead < 0) return Finding::late;
    if (!first && (!whole_ || ahead != 0)) {
      whole_ = false;
      return Finding::behind_gap;
    }
    packet_ = first ? 0 : packet_ + 1;
    whole_ = true;
    next_psn_ = (psn + 1) & wire::roce::psn_mask;
    return first ? Finding::begins : Finding::continues;
  }
  // The message makes no sense, or has ended: nothing continues it.
  void give_up() { whole_ = false; }
  [[nodiscard]] std::uint32_t packet() const { return packet_; }

 private:
  std::uint32_t next_psn_, packet_ = 0;
  bool whole_ = false;  // all packets of a message that has begun and not ended
};

}  // namespace netsum::roce
