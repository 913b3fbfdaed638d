#include "collective/call_plan.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <string>

#include "kernels/kernels.h"
#include "netsum/error.h"
#include "runtime/thread.h"

namespace netsum::collective {
namespace {

using stream::Collective;
using stream::Operation;

[[nodiscard]] std::string counted(const TensorView& tensor) {
  return std::to_string(tensor.elements) + ' ' + to_string(tensor.dtype);
}

[[nodiscard]] const char* name_of(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::reduce:
      return "reduce";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::all_gather:
      return "all_gather";
    case Collective::broadcast:
      return "broadcast";
    default:
      return "barrier";
  }
}

[[nodiscard]] Error refused(const CollectiveCall& call, const std::string& why) {
  return {ErrorCode::bad_argument, std::string(name_of(call.collective)) + ": " + why};
}

[[nodiscard]] bool has_root(Collective collective) {
  return collective == Collective::broadcast || collective == Collective::reduce;
}
[[nodiscard]] bool combines(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce ||
         collective == Collective::reduce_scatter;
}

[[nodiscard]] bool is_sum(ReduceOp op) {
  return op == ReduceOp::sum || op == ReduceOp::avg;
}

[[nodiscard]] std::size_t bytes_in(const TensorView& tensor) {
  return tensor.elements * bytes_of(tensor.dtype);
}
[[nodiscard]] std::byte* begin_of(const TensorView& tensor) {
  return static_cast<std::byte*>(tensor.data);
}
// Whether `part` lies at `offset` of `all`, or apart from all of it.
[[nodiscard]] bool apart_or_at(const TensorView& all, std::size_t offset, const TensorView& part) {
  const auto begin = reinterpret_cast<std::uintptr_t>(all.data), other = reinterpret_cast<std::uintptr_t>(part.data);
  return bytes_in(part) == 0 || other == begin + offset || other + bytes_in(part) <= begin || begin + bytes_in(all) <= other;
}

constexpr std::uint64_t most_bytes = std::uint64_t{1} << 56;  // of addresses: x86-64 with five levels of pages

// For values that a caller has cast from a number.
template <class E, std::size_t n>
[[nodiscard]] bool among(const E (&all)[n], E value) {
  return std::find(std::begin(all), std::end(all), value) != std::end(all);
}
template <class E>
[[nodiscard]] std::string numbered(E value) {
  return std::to_string(static_cast<unsigned>(value));
}

void check(const CollectiveCall& call, const Caller& caller, const std::optional<double>& factor) {
  const std::uint64_t ranks = caller.world_size;
  for (const TensorView* tensor : {&call.in, &call.out}) {
    if (!among(dtypes, tensor->dtype)) throw refused(call, numbered(tensor->dtype) + " is not an element type");
    if (tensor->data == nullptr && tensor->elements != 0) throw refused(call, counted(*tensor) + " at a null pointer");
    if (tensor->elements > most_bytes / bytes_of(tensor->dtype)) {
      throw refused(call, "a tensor of " + counted(*tensor) + " is longer than a process can address: check its length");
    }
  }
  if (!among(reduce_ops, call.op)) throw refused(call, numbered(call.op) + " is not a reduction");
  if (has_root(call.collective) && call.root >= ranks) {
    throw refused(call, "root rank " + std::to_string(call.root) + " is not below the world size " + std::to_string(ranks));
  }
  const bool scatters = call.collective == Collective::reduce_scatter, gathers = call.collective == Collective::all_gather;
  const std::uint64_t in_parts = scatters ? ranks : 1, out_parts = gathers ? ranks : 1;
  if (call.in.dtype != call.out.dtype || call.in.elements * out_parts != call.out.elements * in_parts ||
      (scatters && call.in.elements % ranks != 0)) {
    throw refused(call, "the input has " + counted(call.in) + ", the output " + counted(call.out) + ", for " +
                            std::to_string(ranks) + " ranks: " +
                            (scatters  ? "the input must be as long as all ranks' outputs"
                             : gathers ? "the output must be as long as all ranks' inputs"
                                       : "both must have the same length and type"));
  }
  const bool fits = gathers ? apart_or_at(call.out, caller.rank * bytes_in(call.in), call.in)
                            : apart_or_at(call.in, scatters ? caller.rank * bytes_in(call.out) : 0, call.out);
  if (!fits)
    throw refused(
        call,
        "the output overlaps the input: use separate memory, the same tensor, or this rank's own part of the longer tensor");
  if (!combines(call.collective)) {
    if (factor) throw refused(call, "a factor requires a sum of floats");
    return;
  }
  const DType dtype = call.in.dtype;
  if (!applies_to(call.op, dtype)) {
    throw refused(call, std::string(to_string(call.op)) + " is not defined on " + to_string(dtype));
  }
  if (!can_reduce(caller.traits, call.op, dtype)) {
    throw refused(call, std::string(to_string(call.op)) + " of " + to_string(dtype) + " is not possible with " +
                            caller.traits.protocol + ", which has sum and avg of float32, int32, float16 and bfloat16. " +
                            "SwitchML has every operation");
  }
  if (factor && !(is_sum(call.op) && is_float(dtype))) {
    throw refused(call,
                  std::string("a factor requires a sum of floats, not ") + to_string(call.op) + " of " + to_string(dtype));
  }
}

// As aligned as any element.
[[nodiscard]] std::shared_ptr<std::byte> memory_for(const CollectiveCall& call) {
  void* const memory = ::operator new(bytes_in(call.in), std::nothrow);
  if (memory == nullptr) throw refused(call, "no memory for a copy of " + counted(call.in));
  return {static_cast<std::byte*>(memory), [](std::byte* begin) { ::operator delete(begin); }};
}

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes != 0 && to != from) std::memcpy(to, from, bytes);
}

// The same bytes for everyone, by one broadcast from each rank.
[[nodiscard]] CallPlan gathered_by_broadcasts(const CollectiveCall& call, const Caller& caller) {
  const std::size_t bytes = bytes_in(call.in);
  CallPlan plan;
  copy_bytes(begin_of(call.out) + caller.rank * bytes, begin_of(call.in), bytes);
  for (std::uint32_t rank = 0; rank < caller.world_size; ++rank) {
    Operation broadcast;
    broadcast.collective = Collective::broadcast;
    broadcast.elements = bytes;
    broadcast.root = rank;
    broadcast.data = begin_of(call.out) + rank * bytes;
    plan.operations.push_back(broadcast);
  }
  return plan;
}

}  // namespace

bool can_reduce(const RankTraits& traits, ReduceOp op, DType dtype) {
  if (!among(reduce_ops, op) || !among(dtypes, dtype) || !applies_to(op, dtype)) return false;
  const bool usual = dtype == DType::float32 || dtype == DType::int32 || dtype == DType::float16 || dtype == DType::bfloat16;
  return traits.every_reduction || (is_sum(op) && usual);
}

bool has_own_collectives(const Caller& caller) {
  return caller.traits.every_collective && caller.divides;
}

CallPlan plan_of(const CollectiveCall& call, const Caller& caller, std::optional<double> factor) {
  check(call, caller, factor);
  const bool own = has_own_collectives(caller);
  if (call.collective == Collective::all_gather && !own) return gathered_by_broadcasts(call, caller);

  CallPlan plan;
  plan.operations.emplace_back();
  Operation& operation = plan.operations.front();
  operation.collective = call.collective;
  operation.root = call.root;
  if (call.collective == Collective::barrier) return plan;
  operation.data = call.in.data;
  if (call.out.data != call.in.data) operation.out = call.out.data;
  if (!combines(call.collective)) {
    operation.elements = bytes_in(call.out);
    if (call.collective == Collective::all_gather) {
      operation.parts = caller.world_size;
      operation.out = call.out.data;
    }
    return plan;
  }
  operation.dtype = call.in.dtype;
  operation.elements = call.in.elements;
  operation.op = call.op;
  operation.wire = caller.traits.wire;

  const bool scatters = call.collective == Collective::reduce_scatter;
  const std::size_t bytes = bytes_in(call.in), part = bytes_in(call.out);
  const bool takes = call.collective != Collective::reduce || call.root == caller.rank;
  // Where values may be overwritten: the caller's own output, if the whole reduction fits there.
  std::byte* const room = !scatters && takes ? begin_of(call.out) : nullptr;
  const bool needs_room = factor || (!own && call.collective != Collective::all_reduce);
  if (needs_room || (!own && operation.out != nullptr)) {
    std::byte* values = room;
    if (values == nullptr) {
      plan.staged = memory_for(call);
      values = plan.staged.get();
    }
    copy_bytes(values, begin_of(call.in), bytes);
    operation.data = values;
    operation.out = nullptr;
    if (factor) {
      const runtime::DefaultFloatingPoint environment;  // the caller's own would change all ranks' results
      kernels::scale(call.in.dtype, values, call.in.elements, *factor);
    }
  }
  if (own) {
    if (scatters) {
      operation.parts = caller.world_size;
      operation.out = call.out.data;
    }
    return plan;
  }
  operation.collective = Collective::all_reduce;
  operation.root = 0;
  if (scatters) {
    // Each part by itself, so that its sum has the same bits as a reduce-scatter's: exponent blocks are of one part.
    operation.elements = call.out.elements;
    for (std::uint32_t rank = 1; rank < caller.world_size; ++rank) {
      Operation next = plan.operations.front();
      next.data = plan.staged.get() + rank * part;
      plan.operations.push_back(next);
    }
    plan.last = [to = begin_of(call.out), from = plan.staged.get() + caller.rank * part, part] {
      copy_bytes(to, from, part);
    };
  }
  return plan;
}

}  // namespace netsum::collective
