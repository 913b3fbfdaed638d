// Checksums of one packet's worth of bytes in cache, and what RoCEv2 packets cost that are checked on arrival and get new
// checksums on departure.

#include <benchmark/benchmark.h>

#include <vector>

#include "base/crc32.h"
#include "base/crc32c.h"
#include "wire/roce.h"

namespace netsum {
namespace {

// As payloads lie in frames: at any alignment.
constexpr std::size_t begins_at = 54;

std::vector<std::byte> some_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7);
  return bytes;
}

template <auto crc>
void checksum(benchmark::State& state) {
  const auto bytes = some_bytes(begins_at + static_cast<std::size_t>(state.range(0)));
  const auto part = std::span(bytes).subspan(begins_at);
  for (auto _ : state) benchmark::DoNotOptimize(crc(part, 0));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void combine(benchmark::State& state) {
  const Crc32Shift shift(1024);
  std::uint32_t value = 1;
  for (auto _ : state) benchmark::DoNotOptimize(value = shift.combine(value, 0));
}

struct Frame {
  explicit Frame(std::size_t bytes, bool udp_checksum) : payload(some_bytes(bytes)) {
    packet.bth.opcode = wire::roce::Opcode::rc_write_middle;
    packet.udp_checksum = udp_checksum ? 1 : 0;
    packet.payload = payload;
    const std::size_t length = wire::roce::packet_bytes(packet);
    room.resize(14 + length);
    wire::roce::write(written(), packet);
  }
  std::span<std::byte> written() { return std::span(room).subspan(14); }
  std::vector<std::byte> payload, room;
  wire::roce::Packet packet;
};

void roce_parse(benchmark::State& state) {
  Frame frame(1024, false);
  for (auto _ : state) {
    wire::roce::Packet packet;
    benchmark::DoNotOptimize(wire::roce::parse(frame.written(), packet));
    benchmark::DoNotOptimize(packet);
  }
}

void roce_parse_and_check(benchmark::State& state) {
  Frame frame(static_cast<std::size_t>(state.range(0)), false);
  for (auto _ : state) {
    wire::roce::Packet packet;
    benchmark::DoNotOptimize(wire::roce::parse(frame.written(), packet));
    benchmark::DoNotOptimize(wire::roce::icrc_valid(frame.written()));
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void roce_write_checksums(benchmark::State& state) {
  Frame frame(static_cast<std::size_t>(state.range(0)), state.range(1) != 0);
  for (auto _ : state) {
    wire::roce::write_checksums(frame.written());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

BENCHMARK(checksum<crc32c>)->Name("crc32c")->Arg(64)->Arg(256)->Arg(1024)->Arg(1072)->Arg(4096);
BENCHMARK(checksum<crc32>)->Name("crc32")->Arg(64)->Arg(256)->Arg(1024)->Arg(1072)->Arg(4096);
BENCHMARK(combine)->Name("crc32_combine");
BENCHMARK(roce_parse);
BENCHMARK(roce_parse_and_check)->Arg(1024)->Arg(4096);
BENCHMARK(roce_write_checksums)->ArgNames({"payload", "udp_checksum"})->ArgsProduct({{1024, 4096}, {0, 1}});

}  // namespace
}  // namespace netsum

BENCHMARK_MAIN();
