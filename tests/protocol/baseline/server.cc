#include "protocol/baseline/server.h"

#include <bit>
#include <cstring>
#include <utility>

#include "base/bytes.h"

namespace netsum::baseline {

std::size_t Server::memory_bytes(std::uint32_t packet_elements, std::uint32_t window) {
  return std::size_t{2} * window * packet_elements * (sizeof(double) + sizeof(std::uint32_t));
}

Server::Job::Job(const ServerJobConfig& c, std::span<std::byte> memory) : config(c), chunks(std::size_t{2} * c.window) {
  auto* sums = reinterpret_cast<double*>(memory.data());
  auto* values = reinterpret_cast<std::uint32_t*>(sums + chunks.size() * c.packet_elements);
  for (Chunk& chunk : chunks) {
    chunk.sums = {sums, c.packet_elements};
    chunk.values = {values, c.packet_elements};
    sums += c.packet_elements;
    values += c.packet_elements;
  }
}

bool Server::add_job(Job&& job) {
  const std::uint64_t epoch = job.config.epoch;
  return jobs_.try_emplace(epoch, std::move(job)).second;
}

std::map<std::uint64_t, Server::Job>::node_type Server::remove_job(std::uint64_t epoch) {
  return jobs_.extract(epoch);
}

void Server::on_packets(std::span<const RxView> packets, Sink& sink) {
  for (const RxView& packet : packets) on_packet(packet, sink);
}

void Server::on_packet(const RxView& view, Sink& sink) {
  const auto packet = parse(view.bytes);
  if (!packet) return void(++counters_.malformed);
  if (packet->type != Type::contribution) return void(++counters_.unexpected_type);
  const auto found = jobs_.find(packet->job_epoch);
  if (found == jobs_.end()) {
    ++counters_.unknown_job;
    Packet reply = *packet;
    reply.type = Type::unknown_job;
    if (bytes_of(reply) <= view.bytes.size()) write(reply, sink.datagram(view.source, bytes_of(reply)));
    return;
  }
  Job& job = found->second;
  ++job.counters.packets;
  const auto& members = job.config.members;
  if (packet->rank >= members.size() || packet->rank_epoch != members[packet->rank].epoch ||
      !(view.source == members[packet->rank].endpoint)) {
    return void(++job.counters.dropped_source);
  }
  if (packet->elements > job.config.packet_elements) return void(++job.counters.dropped_shape);

  Job::Chunk& chunk = job.chunks[packet->sequence % job.chunks.size()];
  if (chunk.used && packet->sequence < chunk.sequence) return void(++job.counters.old);
  if (!chunk.used || packet->sequence > chunk.sequence) {
    if (chunk.used && !chunk.complete) return void(++job.counters.dropped_early);
    chunk = {.used = true,
             .floats = packet->floats,
             .average = packet->average,
             .sequence = packet->sequence,
             .signature = packet->signature,
             .elements = packet->elements,
             .sums = chunk.sums,
             .values = chunk.values};
  }
  if (!chunk.mismatch && chunk.signature != packet->signature) {
    chunk.mismatch = true;
    chunk.first = static_cast<std::uint32_t>(std::countr_zero(chunk.ranks));
    chunk.second = packet->rank;
  }
  if (chunk.mismatch) {
    ++job.counters.mismatch;
    Packet reply = *packet;  // with the rank's own signature: it knows which call this is about
    reply.type = Type::mismatch;
    reply.first = chunk.first;
    reply.second = chunk.second;
    return write(reply, sink.datagram(view.source, bytes_of(reply)));
  }
  const std::uint64_t bit = std::uint64_t{1} << packet->rank;
  if ((chunk.ranks & bit) != 0) {
    ++(chunk.complete ? job.counters.repeats_answered : job.counters.repeats_waiting);
    return answer(job, chunk, packet->rank, sink);
  }
  if (packet->elements != chunk.elements || packet->floats != chunk.floats || packet->average != chunk.average) {
    return void(++job.counters.dropped_shape);
  }
  ++job.counters.added;
  add(chunk, *packet, members.size());
  if (!chunk.complete) return;
  ++job.counters.chunks;
  for (std::uint32_t rank = 0; rank < members.size(); ++rank) answer(job, chunk, rank, sink);
}

void Server::add(Job::Chunk& chunk, const Packet& packet, std::size_t world_size) {
  const bool first = chunk.ranks == 0;
  chunk.ranks |= std::uint64_t{1} << packet.rank;
  chunk.complete = static_cast<std::size_t>(std::popcount(chunk.ranks)) == world_size;
  for (std::uint32_t i = 0; i < chunk.elements; ++i) {
    const auto value = load_le<std::uint32_t>(packet.values.data() + std::size_t{i} * 4);
    if (!chunk.floats) {
      chunk.values[i] = first ? value : chunk.values[i] + value;
      continue;
    }
    const auto wide = static_cast<double>(std::bit_cast<float>(value));
    chunk.sums[i] = first ? wide : chunk.sums[i] + wide;
    if (!chunk.complete) continue;
    const double sum = chunk.average ? chunk.sums[i] / static_cast<double>(world_size) : chunk.sums[i];
    chunk.values[i] = std::bit_cast<std::uint32_t>(static_cast<float>(sum));
  }
}

void Server::answer(const Job& job, const Job::Chunk& chunk, std::uint32_t rank, Sink& sink) {
  const Member& member = job.config.members[rank];
  Packet reply;
  reply.type = chunk.complete ? Type::result : Type::waiting;
  reply.rank = static_cast<std::uint16_t>(rank);
  reply.job_epoch = job.config.epoch;
  reply.rank_epoch = member.epoch;
  reply.signature = chunk.signature;
  reply.sequence = chunk.sequence;
  reply.elements = static_cast<std::uint16_t>(chunk.elements);
  reply.values = std::as_bytes(chunk.values).first(std::size_t{chunk.elements} * 4);
  const std::uint64_t all = ~std::uint64_t{0} >> (64 - job.config.members.size());
  reply.missing = all & ~chunk.ranks;
  write(reply, sink.datagram(member.endpoint, bytes_of(reply)));
}

}  // namespace netsum::baseline
