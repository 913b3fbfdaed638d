#include "sim/ring_lane.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"

namespace netsum::sim {
namespace {

constexpr std::byte magic{0xb7};
constexpr std::uint32_t acknowledged_each = 8, overtaking = stream::TailProbe::packets;

}  // namespace

// ---- the steps

std::span<float> RingLane::segment(const stream::Operation& operation, std::uint32_t step, std::uint32_t of_rank) const {
  const std::uint64_t n = config_.world_size, parts = n * config_.lanes;
  const std::uint64_t part = std::uint64_t{config_.lane} * n + (of_rank + 2 * n - step % n) % n;
  const std::uint64_t from = operation.elements * part / parts, to = operation.elements * (part + 1) / parts;
  return {static_cast<float*>(operation.data) + from, to - from};
}

std::uint32_t RingLane::packets_in(const stream::Operation& operation, std::uint32_t step, std::uint32_t of_rank) const {
  return static_cast<std::uint32_t>((segment(operation, step, of_rank).size() + config_.packet_elements - 1) /
                                    config_.packet_elements);
}

std::span<float> RingLane::values(const Active& active, const Piece& piece, std::uint32_t of_rank) const {
  const std::span<float> all = segment(active.operation, piece.step, of_rank);
  const std::size_t from = std::size_t{piece.packet} * config_.packet_elements;
  return all.subspan(from, std::min<std::size_t>(config_.packet_elements, all.size() - from));
}

bool RingLane::submit(const stream::Operation& operation, Time now, Sink& sink) {
  NETSUM_CHECK(operation.collective == stream::Collective::all_reduce && operation.dtype == DType::float32 &&
               operation.out == nullptr);
  Active& active = active_[operation.number];
  active.operation = operation;
  submitted_ = operation.number + 1;
  const std::uint32_t before = (config_.rank + config_.world_size - 1) % config_.world_size;
  for (std::uint32_t step = 0; step < steps(); ++step) {
    active.to_send += packets_in(operation, step, config_.rank);
    active.to_come += packets_in(operation, step, before);
  }
  if (steps() != 0) {
    for (std::uint32_t packet = 0; packet < packets_in(operation, 0, config_.rank); ++packet)
      queue_[operation.number].push_back({operation.number, 0, packet});
  }
  for (auto each = early_.begin(); each != early_.end();) {
    if (each->first.operation != operation.number) {
      ++each;
      continue;
    }
    take(each->first, each->second);
    each = early_.erase(each);
  }
  finish(operation.number);
  advance(now, sink);
  return true;
}

// A packet of the rank before: its values are added, or in the second half taken, and go on.
void RingLane::take(const Piece& piece, std::span<const std::byte> content) {
  const auto found = active_.find(piece.operation);
  if (found == active_.end()) {
    NETSUM_CHECK(piece.operation >= submitted_);
    early_.emplace_back(piece, std::vector(content.begin(), content.end()));
    return;
  }
  Active& active = found->second;
  const std::uint32_t before = (config_.rank + config_.world_size - 1) % config_.world_size;
  const std::span<float> own = values(active, piece, before);
  NETSUM_CHECK(content.size() == own.size_bytes() && active.to_come > 0);
  for (std::size_t i = 0; i < own.size(); ++i) {
    float theirs = 0;
    std::memcpy(&theirs, content.data() + i * sizeof theirs, sizeof theirs);
    own[i] = piece.step < config_.world_size - 1 ? own[i] + theirs : theirs;
  }
  --active.to_come;
  if (piece.step + 1 < steps()) queue_[piece.operation].push_back({piece.operation, piece.step + 1, piece.packet});
}

void RingLane::finish(std::uint64_t operation) {
  const auto found = active_.find(operation);
  if (found == active_.end() || found->second.to_come != 0 || found->second.to_send != 0) return;
  completed_.push_back(operation);
  active_.erase(found);
}

// ---- the connection to the next rank

void RingLane::advance(Time now, Sink& sink) {
  while (!queue_.empty() && in_flight_.size() < config_.window) {
    const auto oldest = queue_.begin();
    const Piece piece = oldest->second.front();
    oldest->second.pop_front();
    if (oldest->second.empty()) queue_.erase(oldest);
    Active& active = active_.at(piece.operation);
    const std::span<const float> from = values(active, piece, config_.rank);
    Sent& sent = in_flight_.emplace_back();
    sent.bytes.resize(header_bytes + from.size_bytes());
    std::memcpy(sent.bytes.data() + header_bytes, from.data(), from.size_bytes());
    write({false, false, base_ + in_flight_.size() - 1, piece.operation, piece.step, piece.packet}, sent.bytes);
    --active.to_send;
    send(base_ + in_flight_.size() - 1, queue_.empty() || in_flight_.size() == config_.window, now, sink);
    finish(piece.operation);
  }
  if (!in_flight_.empty()) tail_.listen(timer_);
}

void RingLane::send(std::uint64_t sequence, bool asks, Time now, Sink& sink) {
  Sent& sent = in_flight_[sequence - base_];
  const std::span<std::byte> to = sink.datagram(config_.next, sent.bytes.size());
  std::copy(sent.bytes.begin(), sent.bytes.end(), to.begin());
  to[2] = asks ? std::byte{1} : std::byte{0};
  sent.at = now;
  ++counters_.packets_sent;
  if (sent.transmissions++ != 0) ++counters_.retransmissions;
  tail_.on_sent(now);
}

void RingLane::on_acknowledgement(const Header& header, Time now, Sink& sink) {
  std::optional<std::uint64_t> newest;  // that is new
  for (std::uint64_t i = 0; i < in_flight_.size(); ++i) {
    const std::uint64_t sequence = base_ + i;
    const bool there = sequence < header.sequence ||
                       (sequence - header.sequence < 64 && (header.operation >> (sequence - header.sequence) & 1) != 0);
    if (!there || std::exchange(in_flight_[i].there, true)) continue;
    newest = sequence;
  }
  if (newest) {
    tail_.on_answer(now);
    const Sent& sent = in_flight_[*newest - base_];
    if (sent.transmissions == 1) timer_.answered(now - sent.at, now - sent.at);
    for (std::uint64_t sequence = base_; sequence + overtaking <= *newest; ++sequence) {
      const Sent& each = in_flight_[sequence - base_];
      if (each.there || (each.transmissions > 1 && now - each.at < timer_.smoothed_round_trip() * 5 / 4)) continue;
      send(sequence, true, now, sink);
    }
  }
  while (!in_flight_.empty() && in_flight_.front().there) {
    in_flight_.pop_front();
    ++base_;
  }
}

// ---- the connection from the rank before

void RingLane::on_values(const Header& header, std::span<const std::byte> content, Sink& sink) {
  if (header.sequence < expected_ ||
      (header.sequence - expected_ < behind_.size() && behind_[header.sequence - expected_])) {
    ++counters_.duplicates;
    return acknowledge(sink);
  }
  ++counters_.values;
  const std::uint64_t at = header.sequence - expected_;
  if (at >= behind_.size()) behind_.resize(at + 1);
  behind_[at] = true;
  while (!behind_.empty() && behind_.front()) {
    behind_.pop_front();
    ++expected_;
  }
  take({header.operation, header.step, header.packet}, content);
  if (++unanswered_ >= acknowledged_each || header.asks || !behind_.empty()) acknowledge(sink);
}

void RingLane::acknowledge(Sink& sink) {
  Header header{true, false, expected_, 0, 0, 0};
  for (std::size_t i = 0; i < std::min<std::size_t>(64, behind_.size()); ++i) {
    if (behind_[i]) header.operation |= std::uint64_t{1} << i;
  }
  write(header, sink.datagram(config_.previous, header_bytes));
  ++counters_.acknowledgements_sent;
  unanswered_ = 0;
}

// ---- as a lane

void RingLane::on_packets(std::span<const RxView> packets, Time now, Sink& sink) {
  for (const RxView& packet : packets) {
    const std::optional<Header> header = read(packet.bytes);
    if (!header || !(packet.source == (header->acknowledges ? config_.next : config_.previous))) {
      ++counters_.foreign;
    } else if (header->acknowledges) {
      ++counters_.acknowledgements;
      on_acknowledgement(*header, now, sink);
    } else {
      on_values(*header, packet.bytes.subspan(header_bytes), sink);
      finish(header->operation);
    }
  }
  advance(now, sink);
}

void RingLane::on_timer(Time now, Sink& sink) {
  if (in_flight_.empty()) return;
  const Sent& oldest = in_flight_.front();
  if (now >= oldest.at + timer_.timeout(oldest.transmissions)) {
    timer_.expired(oldest.at, now);
    send(base_, true, now, sink);
  }
  if (now >= tail_.next()) {
    if (tail_.due(timer_, now)) {
      std::uint64_t newest = base_ + in_flight_.size() - 1;
      while (in_flight_[newest - base_].there) --newest;
      send(newest, true, now, sink);
    }
    tail_.listen(timer_);
  }
}

Time RingLane::next_timeout() const {
  if (in_flight_.empty()) return never;
  const Sent& oldest = in_flight_.front();
  return std::min(oldest.at + timer_.timeout(oldest.transmissions), tail_.next());
}

std::optional<protocol::ChunkStall> RingLane::oldest_stall() const {
  if (active_.empty()) return std::nullopt;
  return protocol::ChunkStall{active_.begin()->first, 0, {}, {}};
}

std::vector<CounterValue> RingLane::counters() const {
  std::vector<CounterValue> all;
  for_each_counter(counters_, [&](const CounterValue& counter) { all.push_back(counter); });
  return all;
}

// Byte 8: the job's epoch, as in all packets of netsum.
void RingLane::write(const Header& header, std::span<std::byte> to) const {
  std::fill_n(to.begin(), 8, std::byte{0});
  to[0] = magic;
  to[1] = header.acknowledges ? std::byte{1} : std::byte{0};
  to[2] = header.asks ? std::byte{1} : std::byte{0};
  store_le(to.data() + 8, config_.job_epoch);
  store_le(to.data() + 16, header.sequence);
  store_le(to.data() + 24, header.operation);
  store_le(to.data() + 32, header.step);
  store_le(to.data() + 36, header.packet);
}

std::optional<RingLane::Header> RingLane::read(std::span<const std::byte> bytes) const {
  if (bytes.size() < header_bytes || bytes[0] != magic || load_le<std::uint64_t>(bytes.data() + 8) != config_.job_epoch)
    return std::nullopt;
  return Header{bytes[1] != std::byte{0},
                bytes[2] != std::byte{0},
                load_le<std::uint64_t>(bytes.data() + 16),
                load_le<std::uint64_t>(bytes.data() + 24),
                load_le<std::uint32_t>(bytes.data() + 32),
                load_le<std::uint32_t>(bytes.data() + 36)};
}

}  // namespace netsum::sim
