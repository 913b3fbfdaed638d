#include "protocol/switchml/probe.h"

#include <algorithm>
#include <bit>

#include "wire/switchml.h"

namespace netsum::switchml {
namespace {

constexpr std::uint32_t trains_bytes = 256 * 1024;  // four trains of UDP_SEGMENT: two on the way, two being summed
constexpr std::chrono::duration<double> pause = std::chrono::microseconds(500);
constexpr std::uint32_t train_growth = 4, most_train = 1024;
constexpr std::uint32_t least_slots = 2, most_slots = 4096;  // 5.6 MB in packets of 1374 bytes: 450 us at 100 Gbit/s

}  // namespace

void Probe::send_single(Time now, Sink& sink) {
  wire::switchml::write_probe(sink.datagram(config_.aggregator, config_.packet_bytes),
                              {{wire::switchml::Type::probe, 0, 0, 0}, sequence_});
  sent_ = now;
  deadline_ = now + config_.patience;
}

void Probe::send_train(std::uint32_t packets, Time now, Sink& sink) {
  phase_ = Phase::train;
  train_first_ = ++sequence_;
  train_ = packets;
  train_replies_ = 0;
  for (std::uint32_t i = 0; i < train_; ++i) {
    wire::switchml::write_probe(sink.datagram(config_.aggregator, config_.packet_bytes),
                                {{wire::switchml::Type::probe, 0, 0, 0}, train_first_ + i});
  }
  sequence_ += train_ - 1;
  sent_ = now;
  deadline_ = now + config_.patience;
}

void Probe::on_packets(std::span<const RxView> packets, Time now, Sink& sink) {
  for (const RxView& packet : packets) {
    wire::switchml::Common common;
    wire::switchml::ProbePacket reply{};
    if (packet.source != config_.aggregator ||
        wire::switchml::parse_common(packet.bytes, common) != wire::ParseError::none ||
        common.type != wire::switchml::Type::probe_reply ||
        wire::switchml::parse_probe(packet.bytes, common, reply) != wire::ParseError::none) {
      continue;
    }
    if (phase_ == Phase::singles && reply.sequence == sequence_) {
      round_trip_ = std::min(round_trip_, now - sent_);
      unanswered_ = 0;
      cookie_ = reply.cookie;
      ++sequence_;
      if (++answered_ < config_.singles)
        send_single(now, sink);
      else if (config_.train != 0)
        send_train(config_.train, now, sink);
      else
        phase_ = Phase::done;
    } else if (phase_ == Phase::train && reply.sequence - train_first_ < train_) {
      if (train_replies_++ == 0) first_reply_ = now;
      last_reply_ = now;
      if (train_replies_ < train_) continue;
      // A train that is short beside what the path may hold shows only a bound of its rate.
      if (packets_in(round_trip_) > 2.0 * train_ && train_ * train_growth <= most_train) {
        send_train(train_ * train_growth, now, sink);
      } else {
        phase_ = Phase::done;
      }
    }
  }
}

void Probe::on_timer(Time now, Sink& sink) {
  if (done() || now < deadline_) return;
  if (phase_ == Phase::train) {
    phase_ = Phase::done;  // uses the replies received: the rest was lost
  } else if (++unanswered_ == config_.tries) {
    phase_ = Phase::unanswered;
  } else {
    ++sequence_;
    send_single(now, sink);
  }
}

double Probe::packets_in(std::chrono::duration<double> time) const {
  if (train_replies_ < 2) return 0;
  // If replies arrive together, only the time from sending to the last reply bounds the rate.
  const Duration spread = std::max(last_reply_ - first_reply_, (last_reply_ - sent_) / 4);
  return (train_replies_ - 1) * (time / std::max(spread, Duration(1)));
}

std::uint32_t Probe::slots(Duration beyond) const {
  const double trains = double{trains_bytes} / config_.packet_bytes;
  const Duration round_trip = round_trip_ + beyond;
  const double wanted = std::max(packets_in(round_trip), std::min(packets_in(round_trip + pause), trains));
  return std::bit_ceil(static_cast<std::uint32_t>(std::clamp(wanted, double{least_slots}, double{most_slots})));
}

}  // namespace netsum::switchml
