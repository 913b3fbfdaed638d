#include "protocol/p4app/worker.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/bytes.h"
#include "kernels/kernels.h"

namespace netsum::p4app {
namespace {

constexpr std::size_t element_bytes = 4;

float value_at(std::span<const std::byte> floats, std::size_t i) {
  float value;
  std::memcpy(&value, floats.data() + i * element_bytes, sizeof value);
  return value;
}

// The least e with all magnitudes below 2^e, as far as eight bits hold it.
std::int8_t exponent_of(std::span<const std::byte> floats) {
  float largest = 0;
  for (std::size_t i = 0; i < floats.size() / element_bytes; ++i)
    largest = std::max(largest, std::fabs(value_at(floats, i)));
  std::uint32_t bits;
  std::memcpy(&bits, &largest, sizeof bits);
  return static_cast<std::int8_t>(static_cast<int>(bits >> 23) - 126);
}

// What float32 cannot hold is of values so small that all become 0.
float scale_of(std::int8_t exponent, std::uint32_t world_size) {
  const double scale = std::numeric_limits<std::int32_t>::max() / (world_size * std::ldexp(1.0, exponent));
  return scale > std::numeric_limits<float>::max() ? 0 : static_cast<float>(scale);
}

}  // namespace

Worker::Worker(const WorkerConfig& config) : config_(config), window_(config.window) {}

void Worker::begin(DType dtype, std::span<std::byte> tensor, Time now, Sink& sink) {
  begun_before_ += packets_;
  ++job_;
  dtype_ = dtype;
  tensor_ = tensor;
  const std::size_t chunk_bytes = std::size_t{config_.elements} * element_bytes;
  chunks_ = static_cast<std::uint32_t>((tensor.size() + chunk_bytes - 1) / chunk_bytes);
  batch_ = std::min(config_.window, chunks_);
  packets_ = chunks_ + (floats() ? batch_ : 0);
  done_ = 0;
  has_result_.assign(packets_, false);
  scales_.assign(floats() ? chunks_ : 0, 0);
  for (std::uint32_t packet = 0; packet < batch_; ++packet) start(packet, now, sink);
}

std::span<std::byte> Worker::chunk(std::uint32_t number) const {
  const std::size_t chunk_bytes = std::size_t{config_.elements} * element_bytes;
  const std::size_t at = number * chunk_bytes;
  return tensor_.subspan(at, std::min(chunk_bytes, tensor_.size() - at));
}

void Worker::place(wire::p4app::Header& header) const {
  const std::uint64_t number = begun_before_ + header.packet;
  header.slot = static_cast<std::uint16_t>(config_.first_slot + number % config_.window);
  header.set = number / config_.window % 2 != 0;
}

void Worker::start(std::uint32_t packet, Time now, Sink& sink) {
  InFlight& at = window_[packet % batch_];
  at = {packet, never, config_.time_out};
  send(at, now, sink);
}

void Worker::send(InFlight& at, Time now, Sink& sink) {
  ++counters_.sent;
  at.due = after(now, at.time_out);
  wire::p4app::Header header;
  header.elements = config_.elements;
  header.job = job_;
  header.packet = at.packet;
  place(header);
  if (floats() && at.packet < chunks_) header.exponents[0] = exponent_of(chunk(at.packet));
  const std::span<std::byte> out = sink.datagram(config_.aggregator, wire::p4app::packet_bytes(config_.elements));
  wire::p4app::write_header(out, header);
  const std::span<std::byte> payload = out.subspan(wire::p4app::header_bytes);
  std::fill(payload.begin(), payload.end(), std::byte{});
  if (!floats()) {
    const std::span<const std::byte> values = chunk(at.packet);
    kernels::swap_int32(payload.data(), values.data(), values.size() / element_bytes);
  } else if (at.packet >= batch_) {
    const std::uint32_t number = at.packet - batch_;
    const std::span<const std::byte> values = chunk(number);
    // A float32 has 24 bits, so that the nearest to the limit may be above it.
    const double limit = std::floor(static_cast<double>(std::numeric_limits<std::int32_t>::max()) / config_.world_size);
    for (std::size_t i = 0; i < values.size() / element_bytes; ++i) {
      const double scaled = std::nearbyint(value_at(values, i) * scales_[number]);
      const auto integer = static_cast<std::int32_t>(std::clamp(scaled, -limit, limit));
      store_be(payload.data() + i * element_bytes, static_cast<std::uint32_t>(integer));
    }
  }
}

void Worker::take(std::uint32_t packet, const wire::p4app::Packet& result) {
  if (!floats()) {
    const std::span<std::byte> values = chunk(packet);
    kernels::swap_int32(values.data(), result.payload.data(), values.size() / element_bytes);
    return;
  }
  if (packet >= batch_) {
    const std::uint32_t number = packet - batch_;
    const std::span<std::byte> values = chunk(number);
    for (std::size_t i = 0; i < values.size() / element_bytes; ++i) {
      const auto sum = static_cast<std::int32_t>(load_be<std::uint32_t>(result.payload.data() + i * element_bytes));
      const float value = scales_[number] == 0 ? 0 : static_cast<float>(sum) / scales_[number];
      std::memcpy(values.data() + i * element_bytes, &value, sizeof value);
    }
  }
  if (packet < chunks_) scales_[packet] = scale_of(result.header.exponents[0], config_.world_size);
}

void Worker::on_packets(std::span<const RxView> packets, Time now, Sink& sink) {
  for (const RxView& view : packets) on_packet(view, now, sink);
}

void Worker::on_packet(const RxView& view, Time now, Sink& sink) {
  ++counters_.packets;
  if (view.source != config_.aggregator) return void(++counters_.dropped_strangers);
  wire::p4app::Packet result;
  if (const auto error = wire::p4app::parse(view.bytes, result); error != wire::ParseError::none) {
    ++counters_.malformed[static_cast<std::size_t>(error)];
    return;
  }
  const wire::p4app::Header& header = result.header;
  wire::p4app::Header expected = header;
  place(expected);
  const bool known = busy() && header.job == job_ && header.elements == config_.elements && header.packet < packets_ &&
                     header.slot == expected.slot && header.set == expected.set;
  InFlight* const at = known ? &window_[header.packet % batch_] : nullptr;
  if (at == nullptr || at->packet != header.packet || at->due == never) return void(++counters_.dropped_unexpected);
  ++counters_.results;
  at->due = never;
  take(header.packet, result);
  ++done_;
  has_result_[header.packet] = true;
  start_if_free(header.packet + batch_, now, sink);
  if (batch_ != config_.window) start_if_free(header.packet + config_.window, now, sink);
}

// Of floats that fill less than the window, twice as many packets may be more than the window: then one that follows in its
// place is ahead of the one that has its slot. Sent at once, it would clear this worker's bit in a round whose result may
// have been lost, and the repeat would be added again.
void Worker::start_if_free(std::uint32_t packet, Time now, Sink& sink) {
  if (packet >= packets_ || !has_result_[packet - batch_]) return;
  if (packet >= config_.window && !has_result_[packet - config_.window]) return;
  start(packet, now, sink);
}

Time Worker::next_timeout() const {
  Time soonest = never;
  for (const InFlight& each : window_) soonest = std::min(soonest, each.due);
  return soonest;
}

void Worker::on_timer(Time now, Sink& sink) {
  for (InFlight& each : window_) {
    if (each.due > now) continue;
    each.time_out = std::min(2 * each.time_out, config_.longest_time_out);
    ++counters_.retransmitted;
    send(each, now, sink);
  }
}

}  // namespace netsum::p4app
