// The packets of a network whose schedule is the fuzzer's input.
#pragma once

#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "fuzz/harness.h"

namespace netsum::fuzz {

struct UnderWay {
  // That one arrives, and may arrive again if it is kept.
  [[nodiscard]] Datagram take(std::size_t index, bool keep = false) {
    if (keep) return sent[index];
    Datagram taken = std::move(sent[index]);
    drop(index);
    return taken;
  }
  // All to one host, oldest first.
  [[nodiscard]] std::vector<Datagram> take_all_to(const Endpoint& host) {
    const auto to_host = std::stable_partition(sent.begin(), sent.end(), [&](const auto& one) { return one.to != host; });
    std::vector<Datagram> taken(std::move_iterator(to_host), std::move_iterator(sent.end()));
    sent.erase(to_host, sent.end());
    return taken;
  }
  // That one with a byte that is another: the checksum tells, whichever it is. Nothing: the byte would be the same.
  [[nodiscard]] std::optional<Datagram> damaged(std::size_t index, FuzzedDataProvider& input) const {
    const auto at = input.ConsumeIntegral<std::uint16_t>();
    const auto change = input.ConsumeIntegral<std::uint8_t>();
    if (change == 0) return std::nullopt;
    Datagram copy = sent[index];
    copy.bytes[at % copy.bytes.size()] ^= std::byte{change};
    return copy;
  }
  void drop(std::size_t index) { sent.erase(sent.begin() + static_cast<std::ptrdiff_t>(index)); }

  std::vector<Datagram> sent;  // oldest first
};

[[nodiscard]] inline std::vector<RxView> views_of(const std::vector<Datagram>& batch) {
  std::vector<RxView> views;
  for (const Datagram& each : batch) views.push_back({each.bytes, each.from});
  return views;
}

}  // namespace netsum::fuzz
