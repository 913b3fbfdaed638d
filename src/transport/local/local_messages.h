// Messages between an aggregator and the ranks on its host, some with descriptors of memory. Both sides run the same
// library: control/ has compared versions.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>

namespace netsum::transport {

enum class LocalType : std::uint32_t {
  hello,       // rank to broker, with its segment
  ticket,      // broker to rank: for the join request
  member,      // broker to rank, with another rank's segment: the job is admitted
  arena,       // rank to broker, with memory for tensors; then to the other ranks
  arena_gone,  // same path, without memory: no rank reads there any more
};

struct LocalMessage {
  static constexpr std::uint64_t expected_magic = 0x31'6c61'636f'6c6eULL;  // "nlocal1"

  std::uint64_t magic = expected_magic;
  LocalType type = LocalType::hello;
  std::uint32_t rank = 0;
  std::uint64_t ticket = 0;
  std::uint64_t job_epoch = 0;
  std::uint64_t arena = 0;

  [[nodiscard]] std::span<const std::byte> bytes() const { return std::as_bytes(std::span(this, 1)); }
  [[nodiscard]] std::span<std::byte> writable() { return std::as_writable_bytes(std::span(this, 1)); }
};

}  // namespace netsum::transport
