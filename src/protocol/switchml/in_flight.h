// What a worker's lane has in flight: its pending operations as one stream of chunks, and a slot for each of a window of
// them. Internal to the worker.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/time.h"
#include "protocol/switchml/stripes.h"
#include "stream/operation.h"
#include "stream/tensor.h"
#include "wire/switchml.h"

namespace netsum::switchml {

// An operation and this lane's share of it.
struct ActiveOperation {
  stream::Operation operation;
  std::uint32_t signature = 0;
  stream::OnWire wire;
  Stripes stripes;
  std::uint64_t base = 0;       // position of its first chunk in the lane's stream
  std::uint64_t remaining = 0;  // chunks without a result
  bool together = false;        // there has been a result: all ranks have begun it
  // This rank's largest exponents, by the lane's blocks, and the stripes with elements that are not finite. A stripe is
  // scanned when its first chunk is named, because results of one chunk overwrite part of a block shared with another.
  std::vector<std::uint8_t> exponents;
  std::vector<bool> nonfinite;
};

// A chunk of the lane's stream.
struct Place {
  ActiveOperation* active = nullptr;
  std::uint64_t chunk = 0;  // of the operation, on this lane

  [[nodiscard]] std::uint32_t part() const { return active->stripes.part(chunk); }
  [[nodiscard]] std::uint32_t elements() const { return active->stripes.elements(chunk); }
  [[nodiscard]] std::uint64_t offset() const { return active->stripes.offset(chunk); }
  // The last chunks of a part may be empty.
  [[nodiscard]] bool needs_exponents() const { return stream::uses_exponents(active->operation) && elements() != 0; }

  // The operation, or the part of it that the chunk belongs to, as the codec sees it.
  [[nodiscard]] stream::Operation given(std::uint32_t rank) const { return seen(rank, false); }
  [[nodiscard]] stream::Operation taken(std::uint32_t rank) const { return seen(rank, true); }

 private:
  [[nodiscard]] stream::Operation seen(std::uint32_t rank, bool as_taken) const {
    const stream::Operation& operation = active->operation;
    return stream::whole(operation) ? operation : stream::part_of(operation, rank, part(), as_taken);
  }
};

enum class Round : std::uint8_t { idle, exponents, values };

// One slot carries the chunks at positions i, i + s, i + 2s, ... (Alg. 4, l. 13); both versions alternate with each round.
struct Slot {
  std::uint64_t position = 0;
  Round round = Round::idle;
  std::uint8_t version = 0;  // of the round in flight, or of the next one
  std::uint32_t number = 0;  // of that round among those of its version

  // The packet in flight; together with the tensor, all data for a byte-identical retransmission.
  wire::switchml::ChunkHeader header;
  std::array<std::uint8_t, wire::switchml::max_blocks> all{};  // exponents of the chunk's blocks, the largest over all ranks
  std::uint64_t ahead = 0;  // the chunk whose exponents the packet carries: of its operation, on this lane

  Time sent{}, repeated{}, deadline = never;  // first and last transmission, next one
  std::uint32_t transmissions = 0;
  bool together = false;  // it was sent when all ranks had begun the operation
  bool held = false;      // the switch has our contribution and waits for others
  Time told{};            // when the switch named those others (Impl::missing); before: it has not
};

struct InFlight {
  InFlight(std::uint32_t window, std::size_t most_operations) : slots(window), operations(most_operations) {
    for (std::uint32_t i = 0; i < window; ++i) slots[i].position = i;
  }

  std::vector<Slot> slots;
  std::vector<ActiveOperation> operations;  // ring by operation number
  std::uint64_t front = 0, back = 0;        // pending numbers: [front, back)
  std::uint64_t end_position = 0;

  [[nodiscard]] ActiveOperation& at(std::uint64_t number) { return operations[number % operations.size()]; }
  [[nodiscard]] const ActiveOperation& at(std::uint64_t number) const { return operations[number % operations.size()]; }
  // The operation whose exponents a slot's packet carries, if it carries any.
  [[nodiscard]] const ActiveOperation& ahead_of(const Slot& slot) const {
    return at(slot.header.operation + slot.header.ahead_operation);
  }

  [[nodiscard]] Place find(std::uint64_t position, std::uint64_t from) {
    for (std::uint64_t number = std::max(from, front); number < back; ++number) {
      ActiveOperation& active = at(number);
      if (position < active.base + active.stripes.chunks()) return {&active, position - active.base};
    }
    return {};
  }
  [[nodiscard]] Place place_of(const Slot& slot) {
    ActiveOperation& active = at(slot.header.operation);
    return {&active, slot.position - active.base};
  }
  [[nodiscard]] Place after(const Slot& slot) { return find(slot.position + slots.size(), slot.header.operation); }

  [[nodiscard]] bool is_oldest(const Slot& slot) const {
    return std::none_of(slots.begin(), slots.end(),
                        [&](const Slot& other) { return other.round != Round::idle && other.position < slot.position; });
  }
};

}  // namespace netsum::switchml
