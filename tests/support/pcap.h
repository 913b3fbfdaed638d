// Reads captures in the classic pcap format: little-endian, Ethernet, with nanosecond or microsecond time stamps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace netsum::testing {

struct CapturedFrame {
  std::uint64_t time_ns = 0;  // since 1970
  std::vector<std::byte> bytes;
};

// Throws std::runtime_error: not such a capture, or cut.
inline std::vector<CapturedFrame> parse_pcap(std::span<const std::byte> file) {
  constexpr std::size_t file_header = 24, frame_header = 16;
  constexpr std::uint32_t microseconds = 0xa1b2c3d4, nanoseconds = 0xa1b23c4d, ethernet = 1;
  const auto word = [&](std::size_t at) { return load_le<std::uint32_t>(file.data() + at); };
  if (file.size() < file_header) throw std::runtime_error("pcap: no header");
  if (word(0) != microseconds && word(0) != nanoseconds) throw std::runtime_error("pcap: not a capture");
  if (word(20) != ethernet) throw std::runtime_error("pcap: not of Ethernet");
  const std::uint64_t unit_ns = word(0) == nanoseconds ? 1 : 1000;
  std::vector<CapturedFrame> frames;
  for (std::size_t at = file_header; at < file.size();) {
    if (file.size() - at < frame_header) throw std::runtime_error("pcap: cut in a frame's header");
    const std::uint64_t time_ns = word(at) * std::uint64_t{1'000'000'000} + word(at + 4) * unit_ns;
    const std::uint32_t captured = word(at + 8), original = word(at + 12);
    at += frame_header;
    if (captured != original || file.size() - at < captured) throw std::runtime_error("pcap: cut in a frame");
    const auto bytes = file.subspan(at, captured);
    frames.push_back({time_ns, {bytes.begin(), bytes.end()}});
    at += captured;
  }
  return frames;
}

inline std::vector<CapturedFrame> read_pcap(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw std::runtime_error("pcap: cannot open " + path);
  const std::string content((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  return parse_pcap(std::as_bytes(std::span(content)));
}

}  // namespace netsum::testing
