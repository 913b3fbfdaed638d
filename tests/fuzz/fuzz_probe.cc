// The probe between any replies, losses and timers: it ends, stops sending when it has, and recommends a window that the
// registry accepts.
#include <fuzzer/FuzzedDataProvider.h>

#include <bit>

#include "fuzz/harness.h"
#include "protocol/switchml/probe.h"
#include "session/check.h"
#include "wire/switchml.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function

std::vector<std::byte> reply_to(FuzzedDataProvider& input, const std::vector<std::byte>& probe) {
  wire::switchml::Common common{};
  wire::switchml::ProbePacket packet{};
  fuzz::check(wire::switchml::parse_common(probe, common) == wire::ParseError::none &&
                  wire::switchml::parse_probe(probe, common, packet) == wire::ParseError::none,
              "a probe can be read");
  packet.common.type = static_cast<wire::switchml::Type>(input.PickValueInArray<int>({9, 9, 9, 9, 8, 7}));
  packet.sequence += input.PickValueInArray<std::uint32_t>({0, 0, 0, 0, 1, 0xffffffff, 64, 1000});
  std::vector<std::byte> reply(wire::switchml::probe_reply_bytes + input.PickValueInArray<std::size_t>({0, 0, 0, 1}));
  wire::switchml::write_probe(reply, packet);
  return reply;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  switchml::ProbeConfig config;
  config.aggregator = fuzz::endpoint_of(255);
  config.packet_bytes = input.ConsumeIntegralInRange<std::uint32_t>(wire::switchml::probe_reply_bytes, 2000);
  config.singles = input.ConsumeIntegralInRange<std::uint32_t>(1, 4);
  config.train = input.ConsumeIntegralInRange<std::uint32_t>(1, 8);
  config.tries = input.ConsumeIntegralInRange<std::uint32_t>(1, 4);
  switchml::Probe probe(config);
  std::vector<fuzz::Datagram> sent;
  fuzz::RecordingSink outbox(fuzz::endpoint_of(0), sent);
  Time now{};
  const auto settle = [&](bool was_done) {
    outbox.flush();
    fuzz::check(probe.done() == (probe.next_timeout() == never), "a timer runs until the probe has ended");
    fuzz::check(!was_done || (probe.done() && sent.empty()), "a probe that has ended sends nothing");
    if (probe.answered()) {
      fuzz::check(std::has_single_bit(probe.slots()) && probe.slots() >= 2 && probe.slots() <= session::most_slots,
                  "a window");
      fuzz::check(probe.round_trip() >= Duration::zero() && probe.round_trip() <= now.time_since_epoch(), "a round trip");
    }
  };
  probe.start(now, outbox);
  settle(false);
  std::vector<std::vector<std::byte>> seen;  // probes under way, to be answered in any order, and twice
  while (input.remaining_bytes() > 0) {
    for (const fuzz::Datagram& datagram : sent) seen.push_back(datagram.bytes);
    sent.clear();
    now += std::chrono::microseconds(input.ConsumeIntegral<std::uint16_t>());
    const bool was_done = probe.done();
    if (input.ConsumeIntegralInRange<int>(0, 3) == 0) {
      probe.on_timer(input.ConsumeBool()&& !was_done ? now = std::max(now, probe.next_timeout()) : now, outbox);
    } else {
      const auto back = input.ConsumeIntegral<std::uint8_t>() % std::min<std::size_t>(seen.size(), 16);
      const auto reply = reply_to(input, seen[seen.size() - 1 - back]);
      const RxView view{reply, fuzz::endpoint_of(input.ConsumeIntegralInRange<int>(0, 7) == 0 ? 77 : 255)};
      probe.on_packets({&view, 1}, now, outbox);
    }
    settle(was_done);
  }
  for (std::uint32_t step = 0; step <= config.tries && !probe.done(); ++step) {
    sent.clear();
    now = probe.next_timeout();
    probe.on_timer(now, outbox);
    settle(false);
  }
  fuzz::check(probe.done(), "a probe that hears nothing more ends");
  return 0;
}
