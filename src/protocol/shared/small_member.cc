#include "protocol/shared/small_member.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "kernels/kernels.h"
#include "protocol/shared/examine.h"
#include "stream/tensor.h"

namespace netsum::shared {
namespace {

using stream::Collective;

// Bytes read by one rank, of all ranks: an eighth of an L2 cache. Takes about as long as waking the lanes' threads.
constexpr std::size_t most_read = 131072;

[[nodiscard]] std::size_t bytes_in(const stream::Operation& operation) {
  if (operation.collective == Collective::barrier) return 0;
  return operation.elements * (operation.collective == Collective::broadcast ? 1 : bytes_of(operation.dtype));
}

}  // namespace

bool is_small(const stream::Operation& operation, std::uint32_t world_size) {
  const std::size_t most = std::min(small_bytes, most_read / world_size);
  return operation.collective == Collective::barrier || (operation.elements <= most && bytes_in(operation) <= most);
}

SmallMember::SmallMember(std::uint32_t rank, std::uint32_t world_size, SmallSlot* own, std::vector<const SmallSlot*> peers)
    : rank_(rank), world_size_(world_size), own_(own), peers_(std::move(peers)) {}

void SmallMember::post(const stream::Operation& operation) {
  operation_ = operation;
  signature_ = stream::signature_of(operation, 0);
  // The slot is of two operations ago: all ranks have posted the operation since, so all have finished that one.
  SmallSlot& slot = own_[posted_ % 2];
  slot.operation = operation.number;
  slot.signature = signature_;
  if (stream::contributes(operation, rank_) && operation.elements != 0) {
    std::memcpy(slot.values, operation.data, bytes_in(operation));
  }
  ++posted_;
}

bool SmallMember::finish(std::span<const std::uint64_t> others) {
  if (failure_) return false;
  for (std::uint32_t rank = 0; rank < world_size_; ++rank) {
    if (rank != rank_ && others[rank] < posted_) return false;
  }
  const std::size_t slot = (posted_ - 1) % 2;
  std::array<const std::byte*, max_world_size> sources;
  for (std::uint32_t rank = 0; rank < world_size_; ++rank) {
    if (rank == rank_) {
      sources[rank] = own_[slot].values;
      continue;
    }
    const SmallSlot& shown = peers_[rank][slot];
    if (once(shown.operation) != operation_.number || once(shown.signature) != signature_) {
      failure_ = MemberFailure{operation_.number, rank_, rank};
      return false;
    }
    sources[rank] = shown.values;
  }
  const std::size_t bytes = bytes_in(operation_);
  if (bytes == 0) return true;
  auto* const tensor = static_cast<std::byte*>(operation_.data);
  if (operation_.collective == Collective::broadcast) {
    if (operation_.root != rank_) std::memcpy(tensor, sources[operation_.root], bytes);
    return true;
  }
  const std::span<const std::byte* const> all(sources.data(), world_size_);
  examine(sample_, operation_, all, all.subspan(rank_, 1), operation_.elements);
  kernels::reduce_all(operation_.op, operation_.dtype, tensor, nullptr, all, operation_.elements,
                      stream::wire_dtype(operation_));
  return true;
}

RankSet SmallMember::missing(std::span<const std::uint64_t> others) const {
  RankSet missing;
  for (std::uint32_t rank = 0; rank < world_size_; ++rank) {
    if (rank != rank_ && others[rank] < posted_) missing.insert(rank);
  }
  return missing;
}

}  // namespace netsum::shared
