// Datagrams a second over loopback when one thread is both sender and receiver: with a system call per datagram, with
// batches, and with segment trains. The last is what the Udp transport does; the others say what it gains.
#include <benchmark/benchmark.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "transport/datagram/udp.h"

namespace netsum::transport {
namespace {

constexpr std::size_t datagram_bytes = 1076;  // 256 elements and their headers

UdpOptions on_loopback(bool trains) {
  return {.bind = resolve("127.0.0.1:0"), .segmentation = trains};
}

// What is lost shows as a lower rate, and stops no round: all of a round's datagrams are there when flush() returns.
std::size_t drain(Udp& to) {
  std::size_t count = 0;
  for (auto views = to.receive(); !views.empty(); views = to.receive()) count += views.size();
  return count;
}

void report(benchmark::State& state, std::size_t received) {
  state.SetItemsProcessed(static_cast<std::int64_t>(received));
  state.SetBytesProcessed(static_cast<std::int64_t>(received * datagram_bytes));
}

void one_call_each(benchmark::State& state) {
  Udp to(on_loopback(false)), from(on_loopback(false));
  sockaddr_storage address{};
  const socklen_t size = to_sockaddr(to.local(), false, address);
  std::vector<std::byte> packet(datagram_bytes), buffer(65536);
  const auto burst = static_cast<std::size_t>(state.range(0));
  std::size_t received = 0;
  for (auto _ : state) {
    for (std::size_t i = 0; i < burst; ++i) {
      ::sendto(from.descriptor(), packet.data(), packet.size(), 0, reinterpret_cast<const sockaddr*>(&address), size);
    }
    while (::recv(to.descriptor(), buffer.data(), buffer.size(), MSG_DONTWAIT) > 0) ++received;
  }
  report(state, received);
}

void write_in_place(benchmark::State& state, bool trains) {
  Udp to(on_loopback(trains)), from(on_loopback(trains));
  const Endpoint address = to.local();
  const std::vector<std::byte> packet(datagram_bytes);
  const auto burst = static_cast<std::size_t>(state.range(0));
  std::size_t received = 0;
  for (auto _ : state) {
    for (std::size_t i = 0; i < burst; ++i) {
      std::memcpy(from.sink().datagram(address, packet.size()).data(), packet.data(), packet.size());
    }
    from.sink().flush();
    received += drain(to);
  }
  report(state, received);
}

void multicast(benchmark::State& state, bool trains) {
  constexpr std::size_t group_size = 4;
  std::vector<std::unique_ptr<Udp>> receivers;
  std::vector<Endpoint> group;
  for (std::size_t i = 0; i < group_size; ++i) {
    group.push_back(receivers.emplace_back(std::make_unique<Udp>(on_loopback(trains)))->local());
  }
  Udp from(on_loopback(trains));
  const auto burst = static_cast<std::size_t>(state.range(0));
  const std::vector<std::byte> slots(burst * datagram_bytes);
  std::size_t received = 0;
  for (auto _ : state) {
    for (std::size_t i = 0; i < burst; ++i) {
      from.sink().multicast(std::span(slots).subspan(i * datagram_bytes, datagram_bytes), group);
    }
    from.sink().flush();
    for (const auto& to : receivers) received += drain(*to);
  }
  report(state, received);
}

BENCHMARK(one_call_each)->Arg(60)->ArgName("burst");
BENCHMARK_CAPTURE(write_in_place, batches, false)->Arg(60)->ArgName("burst");
BENCHMARK_CAPTURE(write_in_place, trains, true)->Arg(15)->Arg(60)->Arg(240)->ArgName("burst");
BENCHMARK_CAPTURE(multicast, batches, false)->Arg(60)->ArgName("burst");
BENCHMARK_CAPTURE(multicast, trains, true)->Arg(60)->Arg(240)->ArgName("burst");

}  // namespace
}  // namespace netsum::transport

BENCHMARK_MAIN();
