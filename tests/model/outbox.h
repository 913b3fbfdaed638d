// What a protocol object sends, for the models to carry.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/packet_io.h"

namespace netsum::model {

[[nodiscard]] inline Endpoint host(std::uint32_t number) {
  Endpoint endpoint;
  endpoint.address[15] = static_cast<std::uint8_t>(number);
  endpoint.port = 1;
  return endpoint;
}

// Copied at flush().
class Outbox final : public Sink {
 public:
  struct Item {
    Endpoint to;
    std::vector<std::byte> bytes;
  };
  std::span<std::byte> datagram(const Endpoint& to, std::size_t bytes) override {
    flush();
    pending_ = {to, std::vector<std::byte>(bytes)};
    open_ = true;
    return pending_.bytes;
  }
  void multicast(std::span<const std::byte> packet, std::span<const Endpoint> to) override {
    flush();
    for (const Endpoint& endpoint : to) sent.push_back({endpoint, {packet.begin(), packet.end()}});
  }
  void flush() override {
    if (open_) sent.push_back(std::move(pending_));
    open_ = false;
  }
  std::vector<Item> sent;

 private:
  Item pending_;
  bool open_ = false;
};

}  // namespace netsum::model
