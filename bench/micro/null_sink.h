// Takes packets and sends nothing.
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <span>
#include <vector>

#include "base/packet_io.h"

namespace netsum {

class NullSink final : public Sink {
 public:
  std::span<std::byte> datagram(const Endpoint&, std::size_t bytes) override { return std::span(place_).first(bytes); }
  void multicast(std::span<const std::byte> packet, std::span<const Endpoint>) override {
    benchmark::DoNotOptimize(packet.data());
  }
  void flush() override {}

 private:
  std::vector<std::byte> place_ = std::vector<std::byte>(65536);
};

}  // namespace netsum
