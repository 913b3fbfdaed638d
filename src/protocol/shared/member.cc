#include "protocol/shared/member.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "kernels/kernels.h"
#include "protocol/shared/examine.h"
#include "stream/tensor.h"

namespace netsum::shared {
namespace {

using stream::Collective;

constexpr std::uint32_t most_arenas = 4096;

[[nodiscard]] std::size_t width_of(const stream::Operation& operation) {
  return operation.collective == Collective::broadcast ? 1 : bytes_of(operation.dtype);
}

void copy_into_caches(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

[[nodiscard]] std::uint64_t divided_up(std::uint64_t value, std::uint64_t by) {
  return (value + by - 1) / by;
}

}  // namespace

Member::Member(const MemberConfig& config, const LaneMemory& own, std::vector<PeerMemory> peers)
    : config_(config), own_(own), peers_(std::move(peers)), arenas_(config.world_size) {
  NETSUM_CHECK(peers_.size() == config_.world_size && config_.row_bytes % (std::size_t{block_elements} * 4) == 0);
}

void Member::set_arena(std::uint32_t rank, std::uint32_t arena, std::span<const std::byte> memory) {
  if (arena == 0 || arena > most_arenas) return;
  auto& known = arenas_[rank];
  if (known.size() < arena) known.resize(arena);
  known[arena - 1] = memory;
}

bool Member::submit(const Call& call) {
  if (last_ - first_ == most_operations || completed_count_ != completed_taken_) return false;
  Active& op = active(last_);
  op = {};
  op.call = call;
  op.signature = stream::signature_of(call.operation, 0);
  op.base = end_;
  op.width = width_of(call.operation);
  const std::uint64_t elements = call.operation.collective == Collective::barrier ? 0 : call.operation.elements;
  op.beyond_caches = elements * op.width >= kernels::beyond_caches_from;
  // Rows as long as the ring's, or shorter so that every lane and every owner has a share.
  const std::uint64_t blocks = divided_up(elements, block_elements);
  const std::uint64_t parts = std::uint64_t{config_.lanes} * (config_.rotate ? config_.world_size : 2);
  const std::uint64_t longest = config_.row_bytes / (block_elements * op.width);
  op.row_elements = std::clamp<std::uint64_t>(divided_up(blocks, parts), 1, longest) * block_elements;
  const std::uint64_t all = divided_up(elements, op.row_elements);
  // At least one row, so that no lane is ahead by more operations than rows, and each lane compares the calls.
  op.rows = all <= config_.lane ? 1 : divided_up(all - config_.lane, config_.lanes);
  for (std::uint64_t row = op.base + op.rows; row-- > op.base && op.last_owned_end == 0;) {
    if (owner_of(op, row) == config_.rank) op.last_owned_end = row + 1;
  }
  end_ += op.rows;
  ++last_;
  return true;
}

Member::Row Member::row_of(const Active& op, std::uint64_t row) const {
  const stream::Operation& operation = op.call.operation;
  if (operation.collective == Collective::barrier) return {};
  const std::uint64_t begin = ((row - op.base) * config_.lanes + config_.lane) * op.row_elements;
  if (begin >= operation.elements) return {};
  return {begin, std::min(op.row_elements, operation.elements - begin)};
}

std::uint32_t Member::owner_of(const Active& op, std::uint64_t row) const {
  if (op.call.operation.collective == Collective::broadcast) return op.call.operation.root;
  const std::uint64_t turn = config_.rotate ? row - op.base + config_.lane : config_.lane;
  return static_cast<std::uint32_t>(turn % config_.world_size);
}

std::byte* Member::tensor_at(const Active& op, std::uint64_t element) const {
  return static_cast<std::byte*>(op.call.operation.data) + element * op.width;
}

void Member::fail(const Active& op, std::uint32_t rank) {
  if (!failure_) failure_ = MemberFailure{op.call.operation.number, config_.rank, rank};
}

bool Member::read_header(std::uint32_t rank, const Active& op, std::uint64_t row, RowHeader& header) {
  const RowHeader& shown = peers_[rank].headers[header_of(row)];
  header = {once(shown.operation), once(shown.offset), once(shown.signature), once(shown.arena)};
  if (header.operation == op.call.operation.number && header.signature == op.signature) return true;
  fail(op, rank);
  return false;
}

const std::byte* Member::arena_of(std::uint32_t rank, const Active& op, const RowHeader& header) {
  const auto& known = arenas_[rank];
  const std::span<const std::byte> memory =
      header.arena <= known.size() ? known[header.arena - 1] : std::span<const std::byte>();
  if (!memory.empty() && header.offset <= memory.size() &&
      op.call.operation.elements <= (memory.size() - header.offset) / op.width && header.offset % op.width == 0) {
    return memory.data() + header.offset;
  }
  fail(op, rank);
  return nullptr;
}

bool Member::advance(std::span<const Progress> others) {
  if (failure_ || idle()) return false;
  // Steps for which the others wait come first.
  bool moved = stage();
  moved |= sum(others);
  moved |= take(others);
  complete(others);
  return moved;
}

void Member::step(std::uint64_t& row, std::uint64_t& operation) {
  ++row;
  if (row == active(operation).base + active(operation).rows) ++operation;
}

bool Member::stage() {
  const std::uint64_t row = progress_.staged;
  if (row == end_ || row >= progress_.taken + config_.window) return false;
  const Active& op = active(staging_);
  const stream::Operation& operation = op.call.operation;
  own_.headers[header_of(row)] = {operation.number, op.call.offset, op.signature, op.call.arena};
  const bool own = owner_of(op, row) == config_.rank;
  if (!own && op.call.arena == 0 && stream::contributes(operation, config_.rank)) {
    const Row part = row_of(op, row);
    const std::size_t bytes = part.count * op.width;
    if (bytes != 0) std::memcpy(own_.staged + slot_of(row) * config_.row_bytes, tensor_at(op, part.begin), bytes);
    bytes_copied_ += bytes;
  }
  step(progress_.staged, staging_);
  return true;
}

bool Member::sum(std::span<const Progress> others) {
  const std::uint64_t row = progress_.summed;
  if (row >= progress_.staged) return false;
  const Active& op = active(summing_);
  if (owner_of(op, row) != config_.rank) {
    step(progress_.summed, summing_);
    return true;
  }
  // All ranks have staged this row, so all have taken the row whose result was in this slot.
  for (std::uint32_t rank = 0; rank < config_.world_size; ++rank) {
    if (rank != config_.rank && others[rank].staged <= row) return false;
  }
  const stream::Operation& operation = op.call.operation;
  const Row part = row_of(op, row);
  std::array<const std::byte*, max_world_size> sources;
  for (std::uint32_t rank = 0; rank < config_.world_size; ++rank) {
    if (rank == config_.rank) {
      sources[rank] = tensor_at(op, part.begin);
      continue;
    }
    RowHeader header;
    if (!read_header(rank, op, row, header)) return false;
    if (header.arena == 0) {
      sources[rank] = peers_[rank].staged + slot_of(row) * config_.row_bytes;
    } else if (const std::byte* const tensor = arena_of(rank, op, header)) {
      sources[rank] = tensor + part.begin * op.width;
    } else {
      return false;
    }
  }
  std::byte* const result = op.call.arena != 0 ? nullptr : own_.results + slot_of(row) * config_.row_bytes;
  if (part.count != 0 && operation.collective == Collective::broadcast) {
    if (result != nullptr) std::memcpy(result, tensor_at(op, part.begin), part.count);
  } else if (part.count != 0) {
    const std::span<const std::byte* const> all(sources.data(), config_.world_size);
    examine(sample_, operation, all, all, part.count);
    kernels::reduce_all(operation.op, operation.dtype, tensor_at(op, part.begin), config_.world_size == 1 ? nullptr : result,
                        all, part.count, stream::wire_dtype(operation));
  }
  if (result != nullptr) bytes_copied_ += part.count * op.width;
  step(progress_.summed, summing_);
  return true;
}

bool Member::take(std::span<const Progress> others) {
  const std::uint64_t row = progress_.taken;
  if (row >= progress_.summed) return false;
  const Active& op = active(taking_);
  const std::uint32_t owner = owner_of(op, row);
  if (owner != config_.rank) {
    if (others[owner].summed <= row) return false;
    RowHeader header;
    if (!read_header(owner, op, row, header)) return false;
    const Row part = row_of(op, row);
    const std::byte* from = peers_[owner].results + slot_of(row) * config_.row_bytes;
    if (header.arena != 0) {
      const std::byte* const tensor = arena_of(owner, op, header);
      if (tensor == nullptr) return false;
      from = tensor + part.begin * op.width;
    } else {
      bytes_copied_ += part.count * op.width;
    }
    if (part.count != 0) {
      const auto copy = op.beyond_caches ? kernels::copy_past_caches : copy_into_caches;
      copy(tensor_at(op, part.begin), from, part.count * op.width);
    }
  }
  step(progress_.taken, taking_);
  return true;
}

void Member::complete(std::span<const Progress> others) {
  while (first_ != last_ && completed_count_ != most_operations) {
    const Active& op = active(first_);
    if (progress_.taken < op.base + op.rows) return;
    // The others copy results directly from a tensor in an arena: it belongs to the caller again when they have.
    if (op.call.arena != 0) {
      for (std::uint32_t rank = 0; rank < config_.world_size; ++rank) {
        if (rank != config_.rank && others[rank].taken < op.last_owned_end) return;
      }
    }
    completed_[completed_count_++] = op.call.operation.number;
    ++first_;
  }
}

std::optional<std::uint64_t> Member::take_completed() {
  if (completed_taken_ == completed_count_) {
    completed_taken_ = completed_count_ = 0;
    return std::nullopt;
  }
  return completed_[completed_taken_++];
}

std::optional<MemberStall> Member::stall(std::span<const Progress> others) const {
  if (idle()) return std::nullopt;
  const Active& op = active(first_);
  MemberStall stall{op.call.operation.number, std::min(progress_.taken, op.base + op.rows - 1) - op.base, {}};
  const auto behind = [&](auto member, std::uint64_t row) {
    for (std::uint32_t rank = 0; rank < config_.world_size; ++rank) {
      if (rank != config_.rank && others[rank].*member <= row) stall.missing.insert(rank);
    }
  };
  const std::uint64_t row = progress_.taken;
  if (row >= op.base + op.rows) {
    behind(&Progress::taken, op.last_owned_end - 1);
    return stall;
  }
  behind(&Progress::staged, row);
  const std::uint32_t owner = owner_of(op, row);
  if (stall.missing.empty() && owner != config_.rank && others[owner].summed <= row) stall.missing.insert(owner);
  return stall;
}

}  // namespace netsum::shared
