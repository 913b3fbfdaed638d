// A worker of p4lang/p4app-switchML, over UDP: it sums tensors of int32 and float32 with whatever switch speaks that
// protocol, beside whatever workers do. docs/protocol-p4app.md has the rules. One worker has one window, and so one source
// port; all workers of a job have the same windows and sum tensors of the same lengths in the same order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/counter_list.h"
#include "base/packet_io.h"
#include "base/time.h"
#include "netsum/types.h"
#include "wire/p4app.h"
#include "wire/parse_error.h"

namespace netsum::p4app {

struct WorkerConfig {
  std::uint32_t world_size = 1;
  std::uint32_t elements = 256;                       // of a packet: 64 or 256
  std::uint32_t window = 256;                         // packets in flight
  std::uint32_t first_slot = 0;                       // the window's slots are this one and those that follow
  Endpoint aggregator{};                              // what comes from elsewhere is dropped
  Duration time_out = std::chrono::milliseconds(10);  // of a packet that was sent once; it doubles
  Duration longest_time_out = std::chrono::milliseconds(250);
};

struct WorkerCounters {
  std::uint64_t packets = 0;
  std::array<std::uint64_t, wire::parse_error_kinds> malformed{};
  std::uint64_t dropped_strangers = 0;
  std::uint64_t dropped_unexpected = 0;  // results of packets that are not in flight
  std::uint64_t results = 0;
  std::uint64_t sent = 0, retransmitted = 0;  // `sent` counts both

  static constexpr auto fields() {
    using enum CounterKind;
    using C = WorkerCounters;
    return std::to_array<CounterField<C>>({
        {"packets", &C::packets, other},
        {"dropped_strangers", &C::dropped_strangers, outcome},
        {"dropped_unexpected", &C::dropped_unexpected, outcome},
        {"results", &C::results, outcome},
        {"sent", &C::sent, other},
        {"retransmitted", &C::retransmitted, other},
    });
  }
};

class Worker {
 public:
  explicit Worker(const WorkerConfig& config);

  // Sums a tensor of int32 or float32 in its place; no other is under way. Floats are finite and below 2^127.
  void begin(DType dtype, std::span<std::byte> tensor, Time now, Sink& sink);
  [[nodiscard]] bool busy() const { return done_ < packets_; }

  void on_packets(std::span<const RxView> packets, Time now, Sink& sink);
  [[nodiscard]] Time next_timeout() const;
  void on_timer(Time now, Sink& sink);

  [[nodiscard]] const WorkerCounters& counters() const { return counters_; }

 private:
  struct InFlight {
    std::uint32_t packet = 0;
    Time due = never;  // never: nothing is in flight here
    Duration time_out{};
  };

  void on_packet(const RxView& view, Time now, Sink& sink);
  void start(std::uint32_t packet, Time now, Sink& sink);
  // Once the packets before it in its place of the window and in its slot have their results.
  void start_if_free(std::uint32_t packet, Time now, Sink& sink);
  void send(InFlight& at, Time now, Sink& sink);
  void take(std::uint32_t packet, const wire::p4app::Packet& result);
  void place(wire::p4app::Header& header) const;
  // Of floats the first `batch_` packets carry exponents alone, so packet k has the values of chunk k - batch_.
  [[nodiscard]] std::span<std::byte> chunk(std::uint32_t number) const;
  [[nodiscard]] bool floats() const { return dtype_ == DType::float32; }

  const WorkerConfig config_;
  std::vector<InFlight> window_;
  std::uint64_t begun_before_ = 0;  // packets of former tensors: sets alternate for ever
  // The tensor's.
  std::uint8_t job_ = 0xff;
  DType dtype_ = DType::int32;
  std::span<std::byte> tensor_;
  std::uint32_t chunks_ = 0, batch_ = 0, packets_ = 0, done_ = 0;
  std::vector<bool> has_result_;  // by packet
  std::vector<float> scales_;     // by chunk, once its exponent is known
  WorkerCounters counters_;
};

}  // namespace netsum::p4app
