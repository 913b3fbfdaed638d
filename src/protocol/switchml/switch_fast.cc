// The fast path: what nearly all packets are, a rank's int32 values for a sum. It does what the slow path (switch.cc) does,
// which is the specification, or it does nothing, and the slow path gets the packet.
#include <cstring>
#include <tuple>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "kernels/kernels.h"
#include "protocol/switchml/switch_job.h"

namespace netsum::switchml {
namespace {

// What the kernel added of a packet that is damaged. Modulo 2^32 every addition can be undone.
void subtract(std::byte* sum, const std::byte* values, std::size_t count) {
  for (std::size_t i = 0; i < count * 4; i += 4) {
    store_le(sum + i, load_le<std::uint32_t>(sum + i) - load_le<std::uint32_t>(values + i));
  }
}

}  // namespace

bool Switch::add_fast(const RxView& packet, Time now, Sink& sink) {
  if (last_ == nullptr || packet.bytes.size() < wire::switchml::chunk_header_bytes) return false;
  Job& job = *last_;
  const wire::switchml::ChunkFields fields{packet.bytes.data()};
  if (!job.alike.cover(packet.bytes)) return false;
  const std::uint16_t rank = fields.sender();
  const std::size_t number = fields.round();
  if (rank >= job.origins.size() || number >= job.slots.size()) return false;
  // Ranks are the members: what is learnt is not of a tree.
  const Origin& origin = job.origins[rank];
  if (origin.epoch != fields.rank_epoch() || packet.source != origin.endpoint) return false;

  SlotState& slot = job.slots[number];
  std::byte* const sum = job.memory.data() + number * job.slot_bytes + payload_at;
  const std::byte* const exponents = fields.p + wire::switchml::chunk_header_bytes;
  const std::byte* const values = exponents + wire::switchml::padded_exponents(fields.exponents());
  const std::span<const std::byte> covered = packet.bytes.subspan(wire::switchml::at_checksum + 4);
  const std::uint32_t before = load_le<std::uint32_t>(fields.p);  // the CRC of what is before the checksum
  const bool checked = fields.checked();
  if (slot.values && slot.operation == fields.operation() && slot.chunk == fields.chunk()) {
    const bool under_way = slot.signature == fields.signature() && !slot.mismatch && slot.dtype == DType::int32 &&
                           slot.op == ReduceOp::sum && slot.elements == fields.elements();
    if (!under_way || job.seen.contains(number, rank)) return false;
    // As a sum that is under way is nobody's result yet, values may be added whose checksum turns out wrong.
    if (!checked) {
      kernels::add_int32(sum, values, slot.elements);
    } else if (kernels::add_int32_and_crc32c(sum, covered, slot.elements, before) != fields.checksum()) {
      subtract(sum, values, slot.elements);
      return false;
    }
  } else {
    const bool opens =
        !slot.used || (slot.complete && std::tuple(fields.operation(), fields.chunk(), true) > slot.identity() &&
                       (slot.operation != fields.operation() || slot.chunk != fields.chunk()));
    // The last round's result may still be asked for: it is overwritten only by what is right.
    if (!opens || job.may_clash(number, fields.operation()) || (checked && crc32c(covered, before) != fields.checksum()))
      return false;
    open(job, number, fields.header(), true, rank, sink);
    std::memcpy(sum, values, fields.elements() * 4);
    slot.elements = fields.elements();
  }
  ++job.counters.packets;
  job.counters.bytes += packet.bytes.size();
  ++added_fast_;
  slot.take_ahead(fields.ahead_operation(), fields.ahead_chunk(), {exponents, fields.exponents()}, sum);
  job.count_in(slot, rank, rank, checked);
  if (slot.arrived == job.origins.size()) complete(job, slot, sink);
  tell_losses(job, number, slot.place, slot.identity(), false, rank, now, sink);
  return true;
}

}  // namespace netsum::switchml
