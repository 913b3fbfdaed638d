// What the transport tests share: datagrams with known content, and receiving with a deadline.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "transport/datagram/transport.h"

namespace netsum::transport {

using Bytes = std::vector<std::byte>;

struct Received {
  Endpoint source;
  Bytes bytes;
  bool congested = false;
};

// Content that differs between any two datagrams of a test, and within one.
inline Bytes pattern(std::size_t bytes, std::size_t number) {
  Bytes content(bytes);
  for (std::size_t i = 0; i < bytes; ++i) content[i] = static_cast<std::byte>((i * 31 + number * 7 + (number >> 8)) & 0xff);
  return content;
}

inline void write(Sink& sink, const Endpoint& to, const Bytes& content) {
  const std::span<std::byte> place = sink.datagram(to, content.size());
  ASSERT_EQ(place.size(), content.size());
  std::copy(content.begin(), content.end(), place.begin());
}

// Receives until `count` datagrams are there; fewer if they do not come in time.
inline std::vector<Received> collect(Transport& transport, std::size_t count) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(5);
  std::vector<Received> all;
  while (all.size() < count) {
    const std::span<const RxView> views = transport.receive();
    for (const RxView& view : views) all.push_back({view.source, {view.bytes.begin(), view.bytes.end()}, view.congested});
    if (!views.empty()) continue;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (transport.descriptor() < 0 || left.count() <= 0) break;
    pollfd readable{transport.descriptor(), POLLIN, 0};
    ::poll(&readable, 1, static_cast<int>(left.count()));
  }
  return all;
}

// Asks until it is so; false if it does not become so in time.
template <class Condition>
bool eventually(Condition condition) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(5);
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace netsum::transport
