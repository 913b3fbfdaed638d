// The events of a run: as text, as pcap for Wireshark, and as a hash that two runs of one seed must share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <span>
#include <string>

#include "base/endpoint.h"
#include "base/time.h"
#include "sim/random.h"

namespace netsum::sim {

class Trace {
 public:
  // Null: only the hash.
  explicit Trace(std::ostream* text = nullptr, std::ostream* pcap = nullptr);

  void fold(std::uint64_t value) { hash_ = mix(hash_ ^ value) + 0x9e3779b97f4a7c15ULL; }
  [[nodiscard]] std::uint64_t hash() const { return hash_; }

  [[nodiscard]] bool verbose() const { return text_ != nullptr; }
  void line(Time now, const std::string& what);  // verbose only

  // A datagram as it leaves its sender.
  void datagram(Time now, const Endpoint& from, const Endpoint& to, std::span<const std::byte> bytes, bool marked);

 private:
  std::ostream* text_;
  std::ostream* pcap_;
  std::uint64_t hash_ = 0;
};

[[nodiscard]] std::string to_string(const Endpoint& endpoint);  // IPv4 only: the simulator's hosts

}  // namespace netsum::sim
