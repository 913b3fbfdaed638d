#include "collective/call_plan.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <new>
#include <numeric>
#include <string>

#include "base/crc32c.h"
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
  const std::string form = call.counts ? "_v" : call.place ? "_coalesced: tensor " + std::to_string(*call.place) : "";
  return {ErrorCode::bad_argument, name_of(call.collective) + form + ": " + why};
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

// Whether they are one for each rank, `own` for the caller, and `all` together.
[[nodiscard]] bool add_up(std::span<const std::size_t> counts, const Caller& caller, std::size_t own, std::size_t all) {
  if (counts.size() != caller.world_size || counts[caller.rank] != own) return false;
  for (const std::size_t count : counts) {
    if (count > all) return false;
    all -= count;
  }
  return all == 0;
}

// The elements of a rank's part, where `own` are the caller's.
[[nodiscard]] std::size_t part_of(const CollectiveCall& call, std::uint32_t rank, std::size_t own) {
  return call.counts ? (*call.counts)[rank] : own;
}
// The elements of all parts before the caller's.
[[nodiscard]] std::size_t before_own(const CollectiveCall& call, const Caller& caller, std::size_t own) {
  return call.counts ? std::accumulate(call.counts->begin(), call.counts->begin() + caller.rank, std::size_t{0})
                     : caller.rank * own;
}
[[nodiscard]] bool has_equal_parts(const CollectiveCall& call) {
  return !call.counts ||
         std::adjacent_find(call.counts->begin(), call.counts->end(), std::not_equal_to<>()) == call.counts->end();
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
  const TensorView &own = gathers ? call.in : call.out, &all = gathers ? call.out : call.in;
  const bool lengths_fit = call.counts ? add_up(*call.counts, caller, own.elements, all.elements)
                                       : call.in.elements * out_parts == call.out.elements * in_parts &&
                                             !(scatters && call.in.elements % ranks != 0);
  if (call.in.dtype != call.out.dtype || !lengths_fit) {
    throw refused(call, "the input has " + counted(call.in) + ", the output " + counted(call.out) + ", for " +
                            std::to_string(ranks) + " ranks: " +
                            (call.counts ? "counts must have " + std::to_string(ranks) + " lengths, the sum " +
                                               std::to_string(all.elements) + ", and " + std::to_string(own.elements) +
                                               " for rank " + std::to_string(caller.rank)
                             : scatters ? "the input must be as long as all ranks' outputs"
                             : gathers  ? "the output must be as long as all ranks' inputs"
                                        : "both must have the same length and type"));
  }
  const std::size_t before = scatters || gathers ? before_own(call, caller, own.elements) * bytes_of(own.dtype) : 0;
  const bool fits = apart_or_at(all, before, own);
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
  if (caller.traits.private_sums && !can_reduce(caller.traits, call.op, dtype)) {
    throw refused(call,
                  std::string(to_string(call.op)) + " of " + to_string(dtype) + " is not possible with private sums: " +
                      "aggregators add integers that they cannot read, and compute nothing else (docs/private-sums.md)");
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

// Whether a tensor of a list shares an operation: copying so few bytes, there and back, takes less time than one of its own.
[[nodiscard]] bool is_packed(const TensorView& tensor) {
  return bytes_in(tensor) <= std::size_t{16} << 10;
}

// Its elements in that operation: of floats whole blocks, so that no tensor shares its exponents with others.
[[nodiscard]] std::size_t room_for(const TensorView& tensor) {
  constexpr std::size_t block = kernels::block_elements;
  return is_float(tensor.dtype) ? (tensor.elements + block - 1) / block * block : tensor.elements;
}

[[nodiscard]] CollectiveCall all_reduce_of(const TensorView& tensor, ReduceOp op, std::optional<std::size_t> place = {}) {
  return {.collective = Collective::all_reduce, .op = op, .in = tensor, .out = tensor, .place = place};
}

void check(std::span<const TensorView> tensors, ReduceOp op, const Caller& caller, const std::optional<double>& factor) {
  std::vector<std::size_t> places;  // of those with elements
  for (std::size_t place = 0; place < tensors.size(); ++place) {
    const CollectiveCall call = all_reduce_of(tensors[place], op, place);
    check(call, caller, factor);
    if (call.in.dtype != tensors.front().dtype) {
      throw refused(call, std::string("its type is ") + to_string(call.in.dtype) + ", and that of tensor 0 " +
                              to_string(tensors.front().dtype) + ": make one call for each type");
    }
    if (call.in.elements > 0) places.push_back(place);
  }
  const auto begin = [&](std::size_t place) { return begin_of(tensors[place]); };
  std::sort(places.begin(), places.end(), [&](std::size_t a, std::size_t b) { return begin(a) < begin(b); });
  const auto overlap = std::adjacent_find(places.begin(), places.end(), [&](std::size_t a, std::size_t b) {
    return begin(a) + bytes_in(tensors[a]) > begin(b);
  });
  if (overlap == places.end()) return;
  throw refused(all_reduce_of(tensors[*overlap], op, *overlap), "it overlaps tensor " + std::to_string(overlap[1]));
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

// The same bytes for everyone, by one broadcast from each rank that gives some.
[[nodiscard]] CallPlan gathered_by_broadcasts(const CollectiveCall& call, const Caller& caller) {
  CallPlan plan;
  std::byte* to = begin_of(call.out);
  for (std::uint32_t rank = 0; rank < caller.world_size; ++rank) {
    const std::size_t bytes = part_of(call, rank, call.in.elements) * bytes_of(call.in.dtype);
    if (rank == caller.rank) copy_bytes(to, begin_of(call.in), bytes);
    if (bytes > 0 || call.out.elements == 0) {
      Operation broadcast;
      broadcast.collective = Collective::broadcast;
      broadcast.elements = bytes;
      broadcast.root = rank;
      broadcast.data = to;
      plan.operations.push_back(broadcast);
    }
    to += bytes;
  }
  return plan;
}

// A reduce-scatter, from `whole`, as one operation for each part that is not empty: a reduction to its rank, where that
// travels as such. Each part by itself, so that its sum has the same bits as a reduce-scatter's: exponent blocks are of one
// part.
[[nodiscard]] CallPlan scattered_by_reductions(const CollectiveCall& call, const Caller& caller, const Operation& whole,
                                               std::shared_ptr<std::byte> staged) {
  const bool own = has_own_collectives(caller);
  CallPlan plan;
  plan.staged = std::move(staged);
  auto* from = static_cast<std::byte*>(whole.data);
  for (std::uint32_t rank = 0; rank < caller.world_size; ++rank) {
    Operation part = whole;
    part.collective = own ? Collective::reduce : Collective::all_reduce;
    part.root = own ? rank : 0;
    part.elements = part_of(call, rank, call.out.elements);
    part.data = from;
    const std::size_t bytes = part.elements * bytes_of(call.in.dtype);
    if (rank == caller.rank && own) {
      part.out = begin_of(call.out) == from ? nullptr : call.out.data;
    } else if (rank == caller.rank) {
      plan.last = [to = begin_of(call.out), from, bytes] { copy_bytes(to, from, bytes); };
    }
    if (bytes > 0 || call.in.elements == 0) plan.operations.push_back(part);
    from += bytes;
  }
  return plan;
}

}  // namespace

bool can_reduce(const RankTraits& traits, ReduceOp op, DType dtype) {
  if (!among(reduce_ops, op) || !among(dtypes, dtype) || !applies_to(op, dtype)) return false;
  if (traits.private_sums && (!is_sum(op) || dtype == DType::float64 || dtype == DType::boolean)) return false;
  const bool usual = dtype == DType::float32 || dtype == DType::int32 || dtype == DType::float16 || dtype == DType::bfloat16;
  return traits.every_reduction || (is_sum(op) && usual);
}

bool has_own_collectives(const Caller& caller) {
  return caller.traits.every_collective && caller.divides;
}

CallPlan plan_of(const CollectiveCall& call, const Caller& caller, std::optional<double> factor) {
  check(call, caller, factor);
  const bool own = has_own_collectives(caller), equal_parts = has_equal_parts(call);
  if (call.collective == Collective::all_gather && !(own && equal_parts)) return gathered_by_broadcasts(call, caller);

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
  operation.nearest = caller.traits.nearest;
  operation.fixed_point = caller.traits.private_sums && is_float(call.in.dtype);

  const bool scatters = call.collective == Collective::reduce_scatter;
  const std::size_t bytes = bytes_in(call.in);
  const bool takes = call.collective != Collective::reduce || call.root == caller.rank;
  // Where values may be overwritten: the caller's own output, if the whole reduction fits there.
  std::byte* const room = !scatters && takes ? begin_of(call.out) : nullptr;
  const bool needs_room = factor || (!own && call.collective != Collective::all_reduce);
  if (needs_room || (caller.traits.in_place && operation.out != nullptr)) {
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
  if (scatters) {
    operation.out = nullptr;
    if (!(own && equal_parts)) return scattered_by_reductions(call, caller, operation, plan.staged);
    operation.parts = caller.world_size;
    operation.out = call.out.data;
  } else if (!own) {
    operation.collective = Collective::all_reduce;
    operation.root = 0;
  }
  return plan;
}

CallPlan plan_of(std::span<const TensorView> tensors, ReduceOp op, const Caller& caller, std::optional<double> factor) {
  check(tensors, op, caller, factor);
  CallPlan plan;
  const auto add = [&](const TensorView& tensor) {
    plan.operations.push_back(plan_of(all_reduce_of(tensor, op), caller, factor).operations.front());
  };
  std::vector<TensorView> packed;
  std::copy_if(tensors.begin(), tensors.end(), std::back_inserter(packed), is_packed);
  if (!packed.empty()) {
    TensorView pack{nullptr, 0, packed.front().dtype};
    for (const TensorView& tensor : packed) pack.elements += room_for(tensor);
    plan.staged = memory_for(all_reduce_of(pack, op));
    pack.data = plan.staged.get();
    std::uint32_t lengths = 0;
    for (std::byte* at = plan.staged.get(); const TensorView& tensor : packed) {
      copy_bytes(at, begin_of(tensor), bytes_in(tensor));
      std::byte* const end = at + room_for(tensor) * bytes_of(tensor.dtype);
      std::fill(at + bytes_in(tensor), end, std::byte{0});
      at = end;
      lengths = crc32c(std::as_bytes(std::span(&tensor.elements, 1)), lengths);
    }
    add(pack);
    plan.operations.back().tag = lengths;  // ranks that pack other tensors must not add them up
    plan.last = [packed = std::move(packed), sums = plan.staged] {
      for (const std::byte* at = sums.get(); const TensorView& tensor : packed) {
        copy_bytes(begin_of(tensor), at, bytes_in(tensor));
        at += room_for(tensor) * bytes_of(tensor.dtype);
      }
    };
  }
  for (const TensorView& tensor : tensors) {
    if (!is_packed(tensor)) add(tensor);
  }
  return plan;
}

}  // namespace netsum::collective
