// A sink that keeps the packets of a queue pair.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "protocol/roce/queue_pair.h"

namespace netsum::testing {

class RecordingPacketSink final : public roce::PacketSink {
 public:
  ~RecordingPacketSink() = default;
  // No zeros: a byte that nobody writes shows. What was given out stays where it is when the list grows.
  std::span<std::byte> packet(std::size_t bytes) override { return sent.emplace_back(bytes, std::byte{0xaa}); }

  [[nodiscard]] std::vector<std::vector<std::byte>> take() { return std::exchange(sent, {}); }

  std::vector<std::vector<std::byte>> sent;  // since the last take()
};

}  // namespace netsum::testing
