#include "staged_group.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "dense.h"
#include "routes.h"
#include "torch_device.h"

namespace netsum::torch_backend {
namespace {

using Tensors = std::vector<at::Tensor>;

bool any_at_device(const Tensors& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) { return !tensor.device().is_cpu(); });
}

// The same, asked before anything is done for a call. Throws Error if the call would become part of a graph.
bool is_for_device(const Tensors& tensors) {
  const auto first =
      std::find_if(tensors.begin(), tensors.end(), [](const at::Tensor& each) { return !each.device().is_cpu(); });
  if (first == tensors.end()) return false;
  refuse_capture(first->device());
  return true;
}

Tensors flat(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

Tensors joined(Tensors some, const Tensors& others) {
  some.insert(some.end(), others.begin(), others.end());
  return some;
}

template <class Inputs, class Outputs>
HostTwins twins_of(const Inputs& inputs, const Outputs& outputs) {
  HostTwins twins;
  twins.reads(inputs);
  twins.writes(outputs);
  return twins;
}

}  // namespace

template <class Base>
Sequencer& StagedGroup<Base>::sequencer() {
  this->check_usable();
  std::call_once(made_, [this] {
    auto sum = [this](TensorView inout, ReduceOp op) { return this->queue_->all_reduce_memory(inout, op); };
    sequencer_ = std::make_unique<Sequencer>(std::move(sum), *this->threads_, patience_);
    line_ = sequencer_.get();
  });
  return *sequencer_;
}

template <class Base>
void StagedGroup<Base>::end_staging() {
  if (!this->is_ours()) {
    static_cast<void>(sequencer_.release());
    return;
  }
  if (!sequencer_) return;
  if (this->queue_) this->queue_->abort();
  sequencer_->close();
}

template <class Base>
bool StagedGroup<Base>::has_unissued() const {
  const Sequencer* const line = line_;
  return line != nullptr && !line->has_issued_all();
}

template <class Base>
bool StagedGroup<Base>::must_line_up(const Tensors& tensors) const {
  return is_for_device(tensors) || has_unissued() || coalesced_;
}

template <class Base>
std::uint64_t StagedGroup<Base>::staged_bytes() const {
  const Sequencer* const line = line_;
  return line == nullptr ? 0 : line->bytes();
}

template <class Base>
auto StagedGroup<Base>::line_up(c10d::OpType type, std::string what, HostTwins twins, Tensors result, Sequencer::Issue call,
                                bool behind_all) -> WorkPtr {
  Sequencer& line = sequencer();
  what += describe(result);
  auto work = c10::make_intrusive<GroupWork>(this->getRank(), type, std::move(what), result, &result);
  line.call(std::move(twins), behind_all, std::move(call), work);
  return noted(work);
}

template <class Base>
auto StagedGroup<Base>::noted(WorkPtr work) -> WorkPtr {
  if (coalesced_) coalesced_->push_back(work);
  return work;
}

#if TORCH_VERSION_MAJOR >= 2
template <class Base>
auto StagedGroup<Base>::endCoalescing() -> WorkPtr {
  TORCH_CHECK(coalesced_, "netsum: endCoalescing() without startCoalescing()");
  auto works = std::exchange(coalesced_, std::nullopt);
  return c10::make_intrusive<WorkList>(this->getRank(), std::move(*works));
}
#endif

template <class Base>
auto StagedGroup<Base>::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) -> WorkPtr {
  if (!must_line_up(tensors)) return Group<Base>::broadcast(tensors, options);
  const bool root = this->getRank() == options.rootRank;
  return line_up(c10d::OpType::BROADCAST, "broadcast", twins_of(root ? tensors : Tensors{}, root ? Tensors{} : tensors),
                 tensors, [this, tensors, options](const HostTwins& twins) {
                   auto hosts = twins.of(tensors);
                   return Group<Base>::broadcast(hosts, options);
                 });
}

template <class Base>
bool StagedGroup<Base>::is_staged_in_chunks(const Tensors& tensors, const c10d::ReduceOp& op) const {
  return !tensors.empty() && any_at_device(tensors) && this->would_take(Call::all_reduce, tensors, &op) &&
         std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
           return tensor.device() == tensors.front().device() && is_dense(tensor);
         });
}

template <class Base>
auto StagedGroup<Base>::reduce_in_chunks(Call call, const Tensors& tensors, const c10d::ReduceOp& op, c10d::OpType type)
    -> WorkPtr {
  Sequencer& line = sequencer();
  static_cast<void>(this->by_switch(call, tensors, &op));
  Tensors memory;
  for (const at::Tensor& tensor : tensors) memory.push_back(tensor.detach());
  auto work = c10::make_intrusive<GroupWork>(this->getRank(), type, to_string(call) + describe(tensors), tensors, &tensors);
  this->stopwatch_.begin();
  const auto number = std::make_shared<std::optional<std::uint64_t>>();
  const auto flights = this->queue_->flights();
  work->getFuture()->addCallback([this, number, flights](c10::ivalue::Future& ended) {
    this->stopwatch_.end();
    if (*number) flights->end(**number, ended.hasError() ? ended.exception_ptr() : nullptr);
  });
  auto begun = [number, flights, type, memory, timeout = patience_.count()] {
    *number = flights->begin(type, memory, memory, timeout);
  };
  line.all_reduce(std::move(memory), *switch_op(op), std::move(begun), work);
  return noted(work);
}

template <class Base>
auto StagedGroup<Base>::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) -> WorkPtr {
  if (!must_line_up(tensors)) return Group<Base>::allreduce(tensors, options);
  if (is_staged_in_chunks(tensors, options.reduceOp)) {
    return reduce_in_chunks(Call::all_reduce, tensors, options.reduceOp, c10d::OpType::ALLREDUCE);
  }
  return line_up(c10d::OpType::ALLREDUCE, "all_reduce", twins_of(tensors, tensors), tensors,
                 [this, tensors, options](const HostTwins& twins) {
                   auto hosts = twins.of(tensors);
                   return Group<Base>::allreduce(hosts, options);
                 });
}

template <class Base>
auto StagedGroup<Base>::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) -> WorkPtr {
  if (!must_line_up(tensors)) return Group<Base>::allreduce_coalesced(tensors, options);
  if (is_staged_in_chunks(tensors, options.reduceOp)) {
    return reduce_in_chunks(Call::all_reduce_coalesced, tensors, options.reduceOp, c10d::OpType::ALLREDUCE_COALESCED);
  }
  return line_up(c10d::OpType::ALLREDUCE_COALESCED, "all_reduce", twins_of(tensors, tensors), tensors,
                 [this, tensors, options](const HostTwins& twins) {
                   auto hosts = twins.of(tensors);
                   return Group<Base>::allreduce_coalesced(hosts, options);
                 });
}

template <class Base>
auto StagedGroup<Base>::reduce(Tensors& tensors, const c10d::ReduceOptions& options) -> WorkPtr {
  if (!must_line_up(tensors)) return Group<Base>::reduce(tensors, options);
  const bool root = this->getRank() == options.rootRank;
  return line_up(c10d::OpType::REDUCE, "reduce", twins_of(tensors, root ? tensors : Tensors{}), tensors,
                 [this, tensors, options](const HostTwins& twins) {
                   auto hosts = twins.of(tensors);
                   return Group<Base>::reduce(hosts, options);
                 });
}

template <class Base>
auto StagedGroup<Base>::allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options)
    -> WorkPtr {
  if (!must_line_up(joined(inputs, flat(outputs)))) return Group<Base>::allgather(outputs, inputs, options);
  return line_up(c10d::OpType::ALLGATHER, "all_gather", twins_of(inputs, outputs), flat(outputs),
                 [this, inputs, outputs, options](const HostTwins& twins) {
                   auto from = twins.of(inputs);
                   auto to = twins.of(outputs);
                   return Group<Base>::allgather(to, from, options);
                 });
}

template <class Base>
auto StagedGroup<Base>::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options)
    -> WorkPtr {
  if (!must_line_up({output, input})) return Group<Base>::_allgather_base(output, input, options);
  return line_up(c10d::OpType::_ALLGATHER_BASE, "all_gather_into_tensor", twins_of(Tensors{input}, Tensors{output}),
                 {output}, [this, output, input, options](const HostTwins& twins) {
                   auto from = twins.of(input), to = twins.of(output);
                   return Group<Base>::_allgather_base(to, from, options);
                 });
}

template <class Base>
auto StagedGroup<Base>::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions& options) -> WorkPtr {
  if (!must_line_up(joined(inputs, flat(outputs)))) return Group<Base>::allgather_coalesced(outputs, inputs, options);
  return line_up(c10d::OpType::ALLGATHER_COALESCED, "all_gather", twins_of(inputs, outputs), flat(outputs),
                 [this, inputs, outputs, options](const HostTwins& twins) {
                   auto from = twins.of(inputs);
                   auto to = twins.of(outputs);
                   return Group<Base>::allgather_coalesced(to, from, options);
                 });
}

#if TORCH_VERSION_MAJOR >= 2
template <class Base>
auto StagedGroup<Base>::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                        const c10d::AllgatherOptions& options) -> WorkPtr {
  if (!must_line_up(joined(inputs, outputs))) return Group<Base>::allgather_into_tensor_coalesced(outputs, inputs, options);
  return line_up(c10d::OpType::COALESCED, "all_gather_into_tensor", twins_of(inputs, outputs), outputs,
                 [this, inputs, outputs, options](const HostTwins& twins) {
                   auto from = twins.of(inputs), to = twins.of(outputs);
                   return Group<Base>::allgather_into_tensor_coalesced(to, from, options);
                 });
}

template <class Base>
auto StagedGroup<Base>::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                        const c10d::ReduceScatterOptions& options) -> WorkPtr {
  if (!must_line_up(joined(inputs, outputs))) return Group<Base>::reduce_scatter_tensor_coalesced(outputs, inputs, options);
  return line_up(c10d::OpType::COALESCED, "reduce_scatter_tensor", twins_of(inputs, outputs), outputs,
                 [this, inputs, outputs, options](const HostTwins& twins) {
                   auto from = twins.of(inputs), to = twins.of(outputs);
                   return Group<Base>::reduce_scatter_tensor_coalesced(to, from, options);
                 });
}
#endif

template <class Base>
auto StagedGroup<Base>::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options)
    -> WorkPtr {
  if (!must_line_up(joined(inputs, flat(outputs)))) return Group<Base>::gather(outputs, inputs, options);
  return line_up(c10d::OpType::GATHER, "gather", twins_of(inputs, outputs), flat(outputs),
                 [this, inputs, outputs, options](const HostTwins& twins) {
                   auto from = twins.of(inputs);
                   auto to = twins.of(outputs);
                   return Group<Base>::gather(to, from, options);
                 });
}

template <class Base>
auto StagedGroup<Base>::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options)
    -> WorkPtr {
  if (!must_line_up(joined(outputs, flat(inputs)))) return Group<Base>::scatter(outputs, inputs, options);
  return line_up(c10d::OpType::SCATTER, "scatter", twins_of(inputs, outputs), outputs,
                 [this, inputs, outputs, options](const HostTwins& twins) {
                   auto from = twins.of(inputs);
                   auto to = twins.of(outputs);
                   return Group<Base>::scatter(to, from, options);
                 });
}

template <class Base>
auto StagedGroup<Base>::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                       const c10d::ReduceScatterOptions& options) -> WorkPtr {
  if (!must_line_up(joined(outputs, flat(inputs)))) return Group<Base>::reduce_scatter(outputs, inputs, options);
  return line_up(c10d::OpType::REDUCE_SCATTER, "reduce_scatter", twins_of(inputs, outputs), outputs,
                 [this, inputs, outputs, options](const HostTwins& twins) {
                   auto from = twins.of(inputs);
                   auto to = twins.of(outputs);
                   return Group<Base>::reduce_scatter(to, from, options);
                 });
}

template <class Base>
auto StagedGroup<Base>::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                             const c10d::ReduceScatterOptions& options) -> WorkPtr {
  if (!must_line_up({output, input})) return Group<Base>::_reduce_scatter_base(output, input, options);
  return line_up(c10d::OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor", twins_of(Tensors{input}, Tensors{output}),
                 {output}, [this, output, input, options](const HostTwins& twins) {
                   auto from = twins.of(input), to = twins.of(output);
                   return Group<Base>::_reduce_scatter_base(to, from, options);
                 });
}

template <class Base>
auto StagedGroup<Base>::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                      std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) -> WorkPtr {
  if (!must_line_up({output, input})) {
    return Group<Base>::alltoall_base(output, input, output_splits, input_splits, options);
  }
  return line_up(c10d::OpType::ALLTOALL_BASE, "all_to_all_single", twins_of(Tensors{input}, Tensors{output}), {output},
                 [this, output, input, output_splits, input_splits, options](const HostTwins& twins) {
                   auto from = twins.of(input), to = twins.of(output);
                   auto to_splits = output_splits, from_splits = input_splits;
                   return Group<Base>::alltoall_base(to, from, to_splits, from_splits, options);
                 });
}

template <class Base>
auto StagedGroup<Base>::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) -> WorkPtr {
  if (!must_line_up(joined(inputs, outputs))) return Group<Base>::alltoall(outputs, inputs, options);
  return line_up(c10d::OpType::ALLTOALL, "all_to_all", twins_of(inputs, outputs), outputs,
                 [this, inputs, outputs, options](const HostTwins& twins) {
                   auto from = twins.of(inputs), to = twins.of(outputs);
                   return Group<Base>::alltoall(to, from, options);
                 });
}

// Gloo's works of messages have no future: a thread waits.
template <class Base>
auto StagedGroup<Base>::with_future(WorkPtr message, c10d::OpType type) -> WorkPtr {
  auto work = c10::make_intrusive<GroupWork>(this->getRank(), type, "a message", Tensors{});
  this->threads_->post([message = std::move(message), work] {
    try {
      message->wait();
    } catch (...) {
      return work->fail(std::current_exception());
    }
    work->complete();
  });
  return work;
}

// Messages between two ranks have no place in the ranks' common order: those of host memory need not line up.
template <class Base>
auto StagedGroup<Base>::send(Tensors& tensors, int to, int tag) -> WorkPtr {
  if (!is_for_device(tensors) && !coalesced_) return Group<Base>::send(tensors, to, tag);
  return line_up(c10d::OpType::SEND, "send", twins_of(tensors, Tensors{}), tensors,
                 [this, tensors, to, tag](const HostTwins& twins) {
                   auto hosts = twins.of(tensors);
                   return with_future(Group<Base>::send(hosts, to, tag), c10d::OpType::SEND);
                 });
}

template <class Base>
auto StagedGroup<Base>::recv(Tensors& tensors, int from, int tag) -> WorkPtr {
  if (!is_for_device(tensors) && !coalesced_) return Group<Base>::recv(tensors, from, tag);
  return line_up(c10d::OpType::RECV, "recv", twins_of(Tensors{}, tensors), tensors,
                 [this, tensors, from, tag](const HostTwins& twins) {
                   auto hosts = twins.of(tensors);
                   return with_future(Group<Base>::recv(hosts, from, tag), c10d::OpType::RECV);
                 });
}

template <class Base>
auto StagedGroup<Base>::recvAnysource(Tensors& tensors, int tag) -> WorkPtr {
  if (any_at_device(tensors)) {
    throw std::invalid_argument("netsum: a recv from any rank needs a tensor in host memory: name the rank");
  }
  return Group<Base>::recvAnysource(tensors, tag);
}

template <class Base>
auto StagedGroup<Base>::barrier(const c10d::BarrierOptions& options) -> WorkPtr {
  if (const Sequencer* const line = line_; line == nullptr || line->is_idle()) return Group<Base>::barrier(options);
  return line_up(
      c10d::OpType::BARRIER, "barrier", {}, {}, [this, options](const HostTwins&) { return Group<Base>::barrier(options); },
      /*behind_all=*/true);
}

// The memory is shared between the ranks in an operation of the communicator, which has its place among the others.
template <class Base>
auto StagedGroup<Base>::behind_all(const char* what, std::function<void()> action) -> WorkPtr {
  const auto act = [this, what, action = std::move(action)](const HostTwins&) {
    action();
    auto over = c10::make_intrusive<GroupWork>(this->getRank(), c10d::OpType::UNKNOWN, what, Tensors{});
    over->complete();
    return WorkPtr(over);
  };
  return line_up(c10d::OpType::UNKNOWN, what, {}, {}, act);
}

template <class Base>
void StagedGroup<Base>::move_to_allocated(const at::Tensor& tensor) {
  if (!has_unissued()) return Group<Base>::move_to_allocated(tensor);
  behind_all("the move to memory that ranks share", [this, tensor] { Group<Base>::move_to_allocated(tensor); })->wait();
}

template <class Base>
void StagedGroup<Base>::begin_step() {
  if (!has_unissued()) return Group<Base>::begin_step();
  behind_all("a step's begin", [this] { Group<Base>::begin_step(); });
}

template class StagedGroup<GroupBase>;

}  // namespace netsum::torch_backend
