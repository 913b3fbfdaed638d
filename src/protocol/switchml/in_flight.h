// What a worker's lane has in flight: its pending operations as a stream of chunks for each window (windows.h), and a slot
// for each chunk of a window. Internal to the worker.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/time.h"
#include "protocol/switchml/stripes.h"
#include "protocol/switchml/windows.h"
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
  std::size_t window = 0;         // window_of() it
  std::uint64_t base = 0;         // position of its first chunk in the window's stream
  std::uint64_t remaining = 0;    // chunks without a result
  std::uint64_t group = 1;        // chunks that begin together, from each multiple of it on: a power of two
  bool scanned = false;           // its values are in block fixed point
  bool exchanged = false;         // and need exponents that the ranks agree on
  std::uint32_t check_words = 0;  // behind the values of each chunk
  bool together = false;          // there has been a result: all ranks have begun it
  // This rank's largest exponents, by the lane's blocks, and the stripes with elements that are not finite. A stripe is
  // scanned when its first chunk is named, because results of one chunk overwrite part of a block shared with another.
  std::vector<std::uint8_t> exponents;
  std::vector<bool> nonfinite;
};

// A chunk of a window's stream, one of a slot's.
struct Place {
  ActiveOperation* active = nullptr;
  const Chunk* chunk = nullptr;

  // The last chunks of a part may be empty.
  [[nodiscard]] bool needs_exponents() const { return active->exchanged && chunk->elements != 0; }

  // Elements of a packet with the chunk's values, and of their sum.
  [[nodiscard]] std::uint32_t elements_on_wire() const {
    const DType dtype = active->wire.dtype;
    if (has_blocks(dtype)) return static_cast<std::uint32_t>(block_bytes(dtype, chunk->elements));
    return chunk->elements == 0 ? 0 : chunk->elements + active->check_words;
  }
  [[nodiscard]] std::uint32_t elements_of_result() const {
    return static_cast<std::uint32_t>(elements_of_sum(active->wire.dtype, elements_on_wire()));
  }

  // Whether the rank adds its own values to the sum of the others', as nobody else needs them. What is added in rank order
  // is added at the switch.
  [[nodiscard]] bool keeps(std::uint32_t rank, std::uint32_t world_size) const {
    return world_size > 1 && chunk->elements != 0 && !added_in_order(active->wire.dtype) &&
           stream::takes_alone(active->operation, rank, chunk->part);
  }
  [[nodiscard]] bool nonfinite() const { return active->scanned && active->nonfinite[active->stripes.stripe(chunk->index)]; }

  // The operation, or the part of it that the chunk belongs to, as the codec sees it.
  [[nodiscard]] stream::Seen given(std::uint32_t rank) const { return {active->operation, rank, chunk->part, false}; }
  [[nodiscard]] stream::Seen taken(std::uint32_t rank) const { return {active->operation, rank, chunk->part, true}; }
};

// The chunks of an operation that begin together.
struct Group {
  std::uint64_t first, end;
  Group(const ActiveOperation& active, std::uint64_t index)
      : first(index & ~(active.group - 1)), end(std::min(first + active.group, active.stripes.chunks())) {}
};

enum class Round : std::uint8_t { idle, exponents, values };

// One slot carries the chunks at positions i, i + s, i + 2s, ... (Alg. 4, l. 13); both versions alternate with each round.
struct Slot {
  static constexpr std::uint64_t no_next = UINT64_MAX;

  std::size_t window = 0;
  std::uint64_t position = 0;
  Round round = Round::idle;
  bool ready = false;            // idle, until its chunk's group begins
  bool exponents_known = false;  // of that chunk, to all ranks
  std::uint8_t version = 0;      // of the round in flight, or of the next one
  std::uint32_t number = 0;      // of that round among those of its version

  // The packet in flight; together with the tensor, all data for a byte-identical retransmission.
  wire::switchml::ChunkHeader header;
  std::array<std::uint8_t, wire::switchml::max_blocks> all{};  // exponents of the chunk's blocks, the largest over all ranks
  Chunk chunk;                                                 // of that packet
  Chunk ahead;                   // whose exponents it carries; else the slot's next one, of operation `next`
  std::uint64_t next = no_next;  // where that had been submitted when the round began

  Time sent{}, repeated{}, deadline = never;  // first and last transmission, next one
  std::uint32_t transmissions = 0;
  std::uint64_t order = 0;   // of its first transmission among those of the lane
  std::uint32_t probed = 0;  // in which silence its packet was repeated (Impl::probe); 0: in none
  bool lost = false;         // the switch lacks the last one
  bool together = false;     // it was sent when all ranks had begun the operation
  bool held = false;         // the switch has our contribution and waits for others
  Time told{};               // when the switch named those others (Impl::missing); before: it has not
};

struct InFlight {
  InFlight(std::uint32_t slots_in_window, std::uint32_t of_windows, std::size_t most_operations)
      : each(slots_in_window),
        slots(std::size_t{each} * of_windows),
        operations(std::bit_ceil(most_operations)),
        mask(operations.size() - 1) {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      slots[i].window = i / each;
      slots[i].position = i % each;
      slots[i].header.slot = static_cast<std::uint16_t>(i);
    }
  }

  std::uint32_t each;  // slots of a window

  std::vector<Slot> slots;
  std::vector<ActiveOperation> operations;            // ring by operation number, as long as a power of two
  std::uint64_t mask;                                 // of a number's place there
  std::uint64_t front = 0, back = 0;                  // pending numbers: [front, back)
  std::array<std::uint64_t, windows> end_position{};  // of the windows' streams

  // The slot of a position.
  [[nodiscard]] Slot& slot_at(std::size_t window, std::uint64_t position) { return slots[window * each + position % each]; }

  [[nodiscard]] ActiveOperation& at(std::uint64_t number) { return operations[number & mask]; }
  [[nodiscard]] const ActiveOperation& at(std::uint64_t number) const { return operations[number & mask]; }
  // The operation whose exponents a slot's packet carries, if it carries any.
  [[nodiscard]] const ActiveOperation& ahead_of(const Slot& slot) const {
    return at(slot.header.operation + slot.header.ahead_operation);
  }

  [[nodiscard]] Place place_of(const Slot& slot) { return {&at(slot.header.operation), &slot.chunk}; }

  // Looks for the slot's next chunk in the operations that have been submitted.
  void look_ahead(Slot& slot) {
    const std::uint64_t position = slot.position + each;
    for (std::uint64_t number = std::max(slot.header.operation, front); number < back; ++number) {
      const ActiveOperation& active = at(number);
      if (active.window == slot.window && position < active.base + active.stripes.chunks()) {
        slot.ahead = active.stripes.at(position - active.base);
        slot.next = number;
        return;
      }
    }
    slot.next = Slot::no_next;
  }

  // Of its window.
  [[nodiscard]] bool is_oldest(const Slot& slot) const {
    return std::none_of(slots.begin(), slots.end(), [&](const Slot& other) {
      return other.round != Round::idle && other.window == slot.window && other.position < slot.position;
    });
  }
};

}  // namespace netsum::switchml
