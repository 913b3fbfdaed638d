// What a packet costs that is to be believed, or must not be read: a checksum, a tag, encryption, or pads, of one packet's
// bytes in cache.

#include <benchmark/benchmark.h>

#include <array>
#include <vector>

#include "base/crc32c.h"
#include "seal/aes_gcm.h"
#include "seal/linear_hash.h"
#include "seal/private_sums.h"
#include "seal/sealer.h"
#include "seal/tagger.h"

namespace netsum {
namespace {

constexpr std::size_t clear = 20;

std::vector<std::byte> some_packet(const benchmark::State& state) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(state.range(0)) + seal::longest_trailer);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  return bytes;
}

seal::PacketKey some_key() {
  std::array<std::byte, seal::PacketKey::size> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 + 1);
  return seal::PacketKey(bytes);
}

void checksum(benchmark::State& state) {
  const auto packet = some_packet(state);
  for (auto _ : state)
    benchmark::DoNotOptimize(crc32c(std::span(packet).first(static_cast<std::size_t>(state.range(0))), 0));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

// What a tag could be in place of what it is: HighwayHash of the whole packet, and AES-GCM without a text (GMAC).
void highway_hash(benchmark::State& state) {
  const auto packet = some_packet(state);
  const auto bytes = std::span(packet).first(static_cast<std::size_t>(state.range(0)));
  const seal::PacketKey key = some_key();
  for (auto _ : state) benchmark::DoNotOptimize(seal::keyed_hash(key, bytes));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
void gmac(benchmark::State& state) {
  const auto packet = some_packet(state);
  seal::AesGcm cipher(some_key());
  std::uint64_t counter = 0;
  const auto bytes = std::span(packet).first(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(cipher.encrypt({0, ++counter}, bytes, {}));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

template <PacketSecurity security>
void seal_packet(benchmark::State& state) {
  auto packet = some_packet(state);
  seal::Sealer sealer(security, some_key(), 1);
  for (auto _ : state) {
    sealer.seal(std::span(packet).first(static_cast<std::size_t>(state.range(0)) + sealer.trailer()), clear);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

template <PacketSecurity security>
void open_packet(benchmark::State& state) {
  auto packet = some_packet(state);
  std::vector<std::byte> room(packet.size());
  seal::Sealer sealer(security, some_key(), 1);
  seal::Opener opener(security, some_key(), 1);
  const auto whole = std::span(packet).first(static_cast<std::size_t>(state.range(0)) + sealer.trailer());
  sealer.seal(whole, clear);
  for (auto _ : state) {
    auto opened = opener.open(whole, clear, room);  // newer benchmark libraries refuse a const value
    if (!opened) state.SkipWithError("a packet is not authentic");
    benchmark::DoNotOptimize(opened);
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

// Private sums: a contribution's pads, and the sum's (seal/private_sums.h). Rank 0 adds three.
template <std::uint32_t rank>
void mask(benchmark::State& state) {
  auto packet = some_packet(state);
  const seal::PacketKey key = some_key();
  const seal::Pads pads({key, key, key.derived("next", 0), key.derived("previous", 0)}, rank);
  std::uint64_t operation = 0;
  for (auto _ : state) {
    pads.mask_term(std::span(packet).first(static_cast<std::size_t>(state.range(0))), 4, {++operation, 0});
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
void unmask(benchmark::State& state) {
  const auto packet = some_packet(state);
  std::vector<std::byte> room(packet.size());
  const seal::Pads pads({some_key(), some_key(), {}, {}}, 0);
  std::uint64_t operation = 0;
  for (auto _ : state) {
    pads.unmask(room.data(), std::span(packet).first(static_cast<std::size_t>(state.range(0))), 4, {++operation, 0});
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void hash_of_sum(benchmark::State& state) {
  const auto packet = some_packet(state);
  const auto words = static_cast<std::size_t>(state.range(0)) / 4;
  const seal::LinearHash hash(some_key(), words);
  for (auto _ : state) benchmark::DoNotOptimize(hash(packet.data(), 0, words));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

// The lengths of short packets, of one in a frame of 1500 bytes, and of long ones, as over loopback.
void lengths(benchmark::internal::Benchmark* each) {
  for (const int bytes : {68, 1024, 1072, 1332, 16384, 61440}) each->Arg(bytes);
}
BENCHMARK(checksum)->Apply(lengths);
BENCHMARK(highway_hash)->Apply(lengths);
BENCHMARK(gmac)->Apply(lengths);
BENCHMARK(seal_packet<PacketSecurity::tag>)->Name("tag")->Apply(lengths);
BENCHMARK(open_packet<PacketSecurity::tag>)->Name("check_tag")->Apply(lengths);
BENCHMARK(seal_packet<PacketSecurity::encrypt>)->Name("encrypt")->Apply(lengths);
BENCHMARK(open_packet<PacketSecurity::encrypt>)->Name("decrypt")->Apply(lengths);
BENCHMARK(mask<1>)->Name("mask")->Apply(lengths);
BENCHMARK(mask<0>)->Name("mask_at_rank_0")->Apply(lengths);
BENCHMARK(unmask)->Name("unmask")->Apply(lengths);
BENCHMARK(hash_of_sum)->Apply(lengths);

}  // namespace
}  // namespace netsum

BENCHMARK_MAIN();
