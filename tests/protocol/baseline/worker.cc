#include "protocol/baseline/worker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/kernels.h"
#include "protocol/baseline/joining.h"
#include "stream/tensor.h"

namespace netsum::baseline {
namespace {

constexpr std::size_t most_pending = 1024;

std::uint64_t chunks_of(const stream::Operation& operation, const WorkerConfig& config) {
  const std::uint64_t all =
      std::max<std::uint64_t>(1, (stream::wire_elements(operation) + config.packet_elements - 1) / config.packet_elements);
  return all / config.lanes + (config.lane < all % config.lanes ? 1 : 0);
}

bool is_narrow(DType dtype) {
  return dtype == DType::float16 || dtype == DType::bfloat16;
}

}  // namespace

WorkerConfig worker_config(const session::Admission& admission, std::uint32_t rank, std::uint32_t lane, std::uint32_t lanes,
                           const Endpoint& server) {
  WorkerConfig config;
  config.job_epoch = admission.job_epoch;
  config.rank = rank;
  config.world_size = static_cast<std::uint32_t>(admission.rank_epochs.size());
  config.rank_epoch = admission.rank_epoch;
  config.packet_elements = admission.packet_elements;
  config.window = admission.slots;
  config.lane = lane;
  config.lanes = lanes;
  config.server = server;
  config.patience = std::chrono::milliseconds(jobs::checked_part<Patience>(admission.own).milliseconds);
  return config;
}

bool Worker::submit(const stream::Operation& operation, Time now, Sink& sink) {
  if (active_.size() == most_pending) return false;
  Active active{operation, stream::signature_of(operation, config_.packet_elements), chunks_of(operation, config_)};
  if (active.chunks == 0) {
    completed_.push_back(operation.number);
    return true;
  }
  active_.push_back(active);
  advance(now, sink);
  return true;
}

// Chunks of the oldest operations first.
void Worker::advance(Time now, Sink& sink) {
  for (Active& active : active_) {
    while (active.sent < active.chunks) {
      if (in_flight_.size() == config_.window) return;
      Chunk chunk;
      chunk.active = &active;
      const std::uint64_t all = stream::wire_elements(active.operation);
      chunk.offset = (active.sent * config_.lanes + config_.lane) * config_.packet_elements;
      chunk.elements =
          static_cast<std::uint32_t>(std::min<std::uint64_t>(config_.packet_elements, all - std::min(all, chunk.offset)));
      chunk.first_sent = now;
      ++active.sent;
      in_flight_.push_back(chunk);
      send(in_flight_.back(), base_ + in_flight_.size() - 1, now, sink);
    }
  }
}

void Worker::send(Chunk& chunk, std::uint64_t sequence, Time now, Sink& sink) {
  const stream::Operation& operation = chunk.active->operation;
  Packet packet;
  packet.type = Type::contribution;
  packet.rank = static_cast<std::uint16_t>(config_.rank);
  packet.job_epoch = config_.job_epoch;
  packet.rank_epoch = config_.rank_epoch;
  packet.signature = chunk.active->signature;
  packet.sequence = sequence;
  packet.floats = stream::adds_floats(operation);
  packet.average = packet.floats && operation.op == ReduceOp::avg;
  packet.elements = static_cast<std::uint16_t>(chunk.elements);
  const std::span<std::byte> to = sink.datagram(config_.server, bytes_of(packet));
  encode(operation, chunk, to.data() + header_bytes);
  write(packet, to);
  chunk.last_sent = now;
  const Duration timeout = timer_.timeout(++chunk.transmissions);
  chunk.deadline = now + (chunk.transmissions == 1 ? timeout : stream::spread(timeout, sequence));
}

void Worker::encode(const stream::Operation& operation, const Chunk& chunk, std::byte* to) const {
  const std::size_t bytes = std::size_t{chunk.elements} * 4;
  if (is_narrow(operation.dtype) && operation.collective == stream::Collective::all_reduce) {
    std::vector<float> values(chunk.elements);
    const auto* const from = stream::tensor_at<const std::uint16_t>(operation, chunk.offset);
    (operation.dtype == DType::float16 ? kernels::from_float16 : kernels::from_bfloat16)(values.data(), from, values.size());
    if (bytes != 0) std::memcpy(to, values.data(), bytes);
    return;
  }
  std::fill_n(to, bytes, std::byte{0});
  if (!stream::contributes(operation, config_.rank) || bytes == 0) return;
  const bool broadcast = operation.collective == stream::Collective::broadcast;
  std::memcpy(to, stream::word_at(operation, chunk.offset),
              broadcast ? stream::broadcast_bytes(operation, chunk.offset, chunk.elements) : bytes);
}

void Worker::decode(const stream::Operation& operation, const Chunk& chunk, std::span<const std::byte> values) const {
  if (values.empty()) return;
  if (operation.collective == stream::Collective::broadcast) {
    if (operation.root == config_.rank) return;
    std::memcpy(stream::word_at(operation, chunk.offset), values.data(),
                stream::broadcast_bytes(operation, chunk.offset, chunk.elements));
  } else if (is_narrow(operation.dtype)) {
    std::vector<float> floats(chunk.elements);
    std::memcpy(floats.data(), values.data(), values.size());
    auto* const to = stream::tensor_at<std::uint16_t>(operation, chunk.offset);
    (operation.dtype == DType::float16 ? kernels::to_float16 : kernels::to_bfloat16)(to, floats.data(), floats.size());
  } else {
    std::memcpy(stream::word_at(operation, chunk.offset), values.data(), values.size());
    if (operation.dtype == DType::int32 && operation.op == ReduceOp::avg) {
      kernels::divide_int32(stream::tensor_at<std::int32_t>(operation, chunk.offset), chunk.elements, config_.world_size);
    }
  }
}

void Worker::on_packets(std::span<const RxView> packets, Time now, Sink& sink) {
  for (const RxView& packet : packets) on_packet(packet, now);
  while (!in_flight_.empty() && in_flight_.front().active == nullptr) {
    in_flight_.pop_front();
    ++base_;
  }
  while (!active_.empty() && active_.front().done == active_.front().chunks) active_.pop_front();
  if (!failure_) advance(now, sink);
}

void Worker::on_packet(const RxView& view, Time now) {
  const auto packet = parse(view.bytes);
  if (!packet) return void(++counters_.malformed);
  if (!(view.source == config_.server) || packet->type == Type::contribution || packet->job_epoch != config_.job_epoch ||
      packet->rank_epoch != config_.rank_epoch || packet->rank != config_.rank) {
    return void(++counters_.foreign);
  }
  if (packet->type == Type::unknown_job) {
    ++counters_.unknown_job;
    if (!failure_) failure_ = {protocol::LaneFailure::Kind::unknown_job};
    return;
  }
  const bool in_flight = packet->sequence >= base_ && packet->sequence - base_ < in_flight_.size();
  Chunk* const chunk = in_flight ? &in_flight_[packet->sequence - base_] : nullptr;
  if (chunk == nullptr || chunk->active == nullptr || packet->signature != chunk->active->signature) {
    return void(++counters_.stale);
  }
  Active& active = *chunk->active;
  if (packet->type == Type::mismatch) {
    ++counters_.mismatch;
    if (!failure_) {
      failure_ = {protocol::LaneFailure::Kind::mismatch, active.operation.number, packet->first, packet->second, {}};
    }
  } else if (packet->type == Type::waiting) {
    ++counters_.waiting;
    chunk->missing.clear();
    for (std::uint32_t rank = 0; rank < config_.world_size; ++rank) {
      if ((packet->missing >> rank & 1) != 0) chunk->missing.insert(rank);
    }
    chunk->told = now;
    chunk->deadline = now + config_.patience;
  } else if (packet->elements != chunk->elements) {
    ++counters_.stale;
  } else {
    ++counters_.results;
    timer_.answered(now - chunk->first_sent, now - chunk->last_sent);
    decode(stream::Seen(active.operation, config_.rank, 0, true), *chunk, packet->values);
    chunk->active = nullptr;
    if (++active.done == active.chunks) completed_.push_back(active.operation.number);
  }
}

void Worker::on_timer(Time now, Sink& sink) {
  if (failure_) return;
  for (std::size_t i = 0; i < in_flight_.size(); ++i) {
    Chunk& chunk = in_flight_[i];
    if (chunk.active == nullptr || now < chunk.deadline) continue;
    ++counters_.retransmissions;
    send(chunk, base_ + i, now, sink);
  }
}

Time Worker::next_timeout() const {
  Time next = never;
  if (failure_) return next;
  for (const Chunk& chunk : in_flight_) {
    if (chunk.active != nullptr) next = std::min(next, chunk.deadline);
  }
  return next;
}

std::vector<std::uint64_t> Worker::take_completed() {
  return std::exchange(completed_, {});
}

std::optional<protocol::ChunkStall> Worker::oldest_stall() const {
  const auto oldest =
      std::find_if(in_flight_.begin(), in_flight_.end(), [](const Chunk& chunk) { return chunk.active != nullptr; });
  if (oldest == in_flight_.end()) return std::nullopt;
  return protocol::ChunkStall{oldest->active->operation.number,
                              static_cast<std::uint32_t>(oldest->offset / config_.packet_elements), oldest->missing,
                              oldest->told};
}

std::vector<CounterValue> Worker::counters() const {
  std::vector<CounterValue> values;
  for_each_counter(counters_, [&](const CounterValue& counter) { values.push_back(counter); });
  return values;
}

}  // namespace netsum::baseline
