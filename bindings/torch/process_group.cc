#include "process_group.h"

#include <ATen/ops/cat.h>
#include <Python.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <stdexcept>
#include <thread>
#include <utility>

#include "delegate.h"

namespace netsum::torch_backend {
namespace {

constexpr std::chrono::seconds shard_patience{3};  // how long a shard outlives its rank's membership
constexpr const char* left_key = "left";

std::optional<std::chrono::milliseconds> given(std::chrono::milliseconds timeout) {
  if (timeout == c10d::kUnsetTimeout) return std::nullopt;
  return timeout;
}

// Records in the store that this rank has left, and returns when `all` have, or after shard_patience: another rank may still
// wait for a lost result. A separate thread queries the store, because a store on a hung host never answers.
void say_goodbye(const c10::intrusive_ptr<c10d::Store>& store, std::int64_t all) {
  const auto until = Stopwatch::Clock::now() + shard_patience;
  std::promise<void> over;
  std::future<void> waited = over.get_future();
  std::thread([store = store, all, until, over = std::move(over)]() mutable {
    try {
      std::int64_t left = store->add(left_key, 1);
      while (left < all && Stopwatch::Clock::now() < until) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        left = store->add(left_key, 0);
      }
    } catch (const std::exception&) {
      // The store's process ended first: the other ranks are gone too, or learn of it from their heartbeats.
    }
    store.reset();
    over.set_value();
  }).detach();
  waited.wait_until(until);
}

std::string describe(const std::vector<at::Tensor>& tensors) {
  std::string text;
  for (const at::Tensor& tensor : tensors) {
    text += (text.empty() ? " of " : ", ") + std::to_string(tensor.numel()) + " " + c10::toString(tensor.scalar_type());
  }
  return text;
}

bool nothing_in(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) { return tensor.numel() == 0; });
}

}  // namespace

template <class Base>
Group<Base>::Group(c10::intrusive_ptr<Base> gloo, std::unique_ptr<Communicator> communicator,
                   std::shared_ptr<Aggregator> shard, c10::intrusive_ptr<c10d::Store> store, Decision decision)
    : Base(gloo->getRank(), gloo->getSize()),
      decision_(std::move(decision)),
      gloo_(std::move(gloo)),
      store_(std::move(store)),
      shard_(std::move(shard)),
      gloo_counts_{{{"all_reduce"},
                    {"all_reduce_coalesced"},
                    {"broadcast"},
                    {"reduce"},
                    {"all_gather"},
                    {"all_gather_coalesced"},
                    {"all_gather_into_tensor"},
                    {"gather"},
                    {"scatter"},
                    {"all_to_all"},
                    {"all_to_all_single"},
                    {"send"},
                    {"recv"},
                    {"barrier"},
                    {"monitored_barrier"},
                    {"sequence_number"}}} {
  if (communicator) queue_ = std::make_unique<SwitchQueue>(std::move(*communicator), stopwatch_, *threads_);
}

template <class Base>
Group<Base>::~Group() {
  if (!is_ours()) {
    // A child of fork() has no threads to join: leave the parent's objects to the exit.
    static_cast<void>(queue_.release());
    static_cast<void>(gloo_.release());
    static_cast<void>(threads_.release());
    static_cast<void>(store_.release());
    static_cast<void>(new std::shared_ptr<Aggregator>(std::move(shard_)));
    return;
  }
  // Python drops its last reference with its lock held, and the threads joined below may need the lock for callbacks.
  if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) {
    PyThreadState* const state = PyEval_SaveThread();
    shutdown();
    PyEval_RestoreThread(state);
  } else {
    shutdown();
  }
}

template <class Base>
void Group<Base>::shutdown() {
  if (!is_ours() || closed_.exchange(true)) return;
  const bool failed = queue_ && queue_->failed();
  queue_.reset();
  if (decision_.path == "switch" && !failed) say_goodbye(store_, shard_ ? this->getSize() : 0);
  shard_.reset();
  gloo_.reset();
  threads_.reset();
  store_.reset();
}

template <class Base>
void Group<Base>::check_usable() const {
  if (!is_ours()) {
    throw std::runtime_error("netsum: this process group was inherited through fork() from process " +
                             std::to_string(owner_) + ": use it there, or start the child with 'spawn' and its own group");
  }
  if (closed_) throw std::runtime_error("netsum: this process group was destroyed");
}

template <class Base>
Base& Group<Base>::gloo(const char* operation) {
  check_usable();
  for (GlooCount& count : gloo_counts_) {
    if (std::strcmp(count.name, operation) == 0) ++count.operations;
  }
  return *gloo_;
}

template <class Base>
void Group<Base>::move_to_allocated(const at::Tensor& tensor) {
  check_usable();
  if (queue_ && switch_dtype(tensor)) queue_->move_to_allocated(tensor);
}

template <class Base>
auto Group<Base>::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) -> WorkPtr {
  return reduce_all(tensors, options.reduceOp, options.timeout, c10d::OpType::ALLREDUCE);
}

template <class Base>
auto Group<Base>::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) -> WorkPtr {
  return reduce_all(tensors, options.reduceOp, options.timeout, c10d::OpType::ALLREDUCE_COALESCED);
}

// The path depends only on properties that all ranks share (dtype, operation, layout), never on one rank's state.
template <class Base>
auto Group<Base>::reduce_all(Tensors& tensors, const c10d::ReduceOp& op, std::chrono::milliseconds timeout,
                             c10d::OpType type) -> WorkPtr {
  check_usable();
  bool by_switch = queue_ && switch_op(op) && !tensors.empty();
  for (const at::Tensor& tensor : tensors) by_switch = by_switch && switch_dtype(tensor);
  if (by_switch) return queue_->all_reduce(tensors, *switch_op(op), given(timeout), type);
  return gloo_reduce_all(tensors, op, timeout, type);
}

template <class Base>
auto Group<Base>::gloo_reduce_all(Tensors& tensors, const c10d::ReduceOp& op, std::chrono::milliseconds timeout,
                                  c10d::OpType type) -> WorkPtr {
  const bool average = op == c10d::ReduceOp::AVG;
  Tensors summable;
  bool converted = false;
  for (const at::Tensor& tensor : tensors) {
    summable.push_back(as_summable(tensor));
    converted = converted || !summable.back().is_same(tensor);
  }
  const c10d::ReduceOp gloo_op = average ? c10d::ReduceOp(c10d::ReduceOp::SUM) : op;
  WorkPtr inner;
  stopwatch_.begin();
  try {
    if (type == c10d::OpType::ALLREDUCE) {
      c10d::AllreduceOptions options;
      options.reduceOp = gloo_op;
      options.timeout = timeout;
      inner = gloo("all_reduce").allreduce(summable, options);
    } else {
      c10d::AllreduceCoalescedOptions options;
      options.reduceOp = gloo_op;
      options.timeout = timeout;
      inner = gloo("all_reduce_coalesced").allreduce_coalesced(summable, options);
    }
  } catch (...) {
    stopwatch_.end();
    throw;
  }
  std::function<void()> then;
  if (average || converted) {
    then = [tensors, summable, average, size = this->getSize()]() mutable {
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        if (average) divide(summable[i], size);
        if (!summable[i].is_same(tensors[i])) tensors[i].detach().copy_(summable[i]);
      }
    };
  }
  // The group outlives the work: its destructor waits for Gloo's threads and for `threads_`.
  return after(*threads_, inner, this->getRank(), type, "all_reduce" + describe(tensors) + " over Gloo", tensors,
               std::move(then), [this] { stopwatch_.end(); });
}

template <class Base>
auto Group<Base>::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) -> WorkPtr {
  auto movable = as_movable(tensors);
  return gloo("broadcast").broadcast(movable, options);
}

template <class Base>
auto Group<Base>::reduce(Tensors& tensors, const c10d::ReduceOptions& options) -> WorkPtr {
  const bool average = options.reduceOp == c10d::ReduceOp::AVG;
  Tensors summable;
  bool converted = false;
  for (const at::Tensor& tensor : tensors) {
    summable.push_back(as_summable(tensor));
    converted = converted || !summable.back().is_same(tensor);
  }
  auto gloo_options = options;
  if (average) gloo_options.reduceOp = c10d::ReduceOp::SUM;
  const WorkPtr inner = gloo("reduce").reduce(summable, gloo_options);
  if (this->getRank() != options.rootRank || (!average && !converted)) return inner;
  return after(*threads_, inner, this->getRank(), c10d::OpType::REDUCE, "reduce" + describe(tensors) + " over Gloo", tensors,
               [tensors, summable, average, size = this->getSize()]() mutable {
                 for (std::size_t i = 0; i < tensors.size(); ++i) {
                   if (average) divide(summable[i], size);
                   if (!summable[i].is_same(tensors[i])) tensors[i].detach().copy_(summable[i]);
                 }
               });
}

// Gloo divides by the size of the data that it gathers, so with no data the ranks meet in a barrier instead.
template <class Base>
auto Group<Base>::meet(const char* operation, c10d::OpType type, Tensors outputs, std::chrono::milliseconds timeout)
    -> WorkPtr {
  c10d::BarrierOptions options;
  options.timeout = timeout;
  return after(*threads_, gloo(operation).barrier(options), this->getRank(), type, operation, std::move(outputs), {});
}

template <class Base>
auto Group<Base>::allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options)
    -> WorkPtr {
  if (nothing_in(inputs)) {
    return meet("all_gather", c10d::OpType::ALLGATHER, outputs.empty() ? Tensors{} : outputs[0], options.timeout);
  }
  auto movable_outputs = as_movable(outputs);
  auto movable_inputs = as_movable(inputs);
  return gloo("all_gather").allgather(movable_outputs, movable_inputs, options);
}

template <class Base>
auto Group<Base>::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) -> WorkPtr {
  TORCH_CHECK(output.numel() == input.numel() * this->getSize(), "netsum: all_gather_into_tensor of ", input.numel(),
              " elements by ", this->getSize(), " ranks into a tensor of ", output.numel());
  TORCH_CHECK(output.scalar_type() == input.scalar_type(), "netsum: all_gather_into_tensor of ", input.scalar_type(),
              " into ", output.scalar_type());
  TORCH_CHECK(output.is_contiguous(), "netsum: all_gather_into_tensor needs a contiguous output");
  if (input.numel() == 0) return meet("all_gather_into_tensor", c10d::OpType::_ALLGATHER_BASE, {output}, options.timeout);
  const at::Tensor from = as_movable(input.detach().contiguous()).reshape(-1);
  std::vector<Tensors> parts{as_movable(output.detach()).view({this->getSize(), from.numel()}).unbind(0)};
  Tensors inputs{from};
  const WorkPtr inner = gloo("all_gather_into_tensor").allgather(parts, inputs, options);
  return after(*threads_, inner, this->getRank(), c10d::OpType::_ALLGATHER_BASE, "all_gather_into_tensor over Gloo",
               {output}, {});
}

template <class Base>
auto Group<Base>::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options)
    -> WorkPtr {
  if (nothing_in(inputs)) return meet("all_gather_coalesced", c10d::OpType::ALLGATHER_COALESCED, {}, options.timeout);
  auto movable_outputs = as_movable(outputs);
  auto movable_inputs = as_movable(inputs);
  return gloo("all_gather_coalesced").allgather_coalesced(movable_outputs, movable_inputs, options);
}

template <class Base>
auto Group<Base>::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) -> WorkPtr {
  if (nothing_in(inputs)) return meet("gather", c10d::OpType::GATHER, {}, options.timeout);
  auto movable_outputs = as_movable(outputs);
  auto movable_inputs = as_movable(inputs);
  return gloo("gather").gather(movable_outputs, movable_inputs, options);
}

template <class Base>
auto Group<Base>::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) -> WorkPtr {
  if (nothing_in(outputs)) return meet("scatter", c10d::OpType::SCATTER, outputs, options.timeout);
  auto movable_outputs = as_movable(outputs);
  auto movable_inputs = as_movable(inputs);
  return gloo("scatter").scatter(movable_outputs, movable_inputs, options);
}

// PyTorch's Gloo has no reduce-scatter: all-reduces all parts, and keeps this rank's part.
template <class Base>
auto Group<Base>::scatter_of_sum(at::Tensor flat, at::Tensor output, std::int64_t offset,
                                 const c10d::ReduceScatterOptions& options, c10d::OpType type) -> WorkPtr {
  Tensors summed{flat};
  const WorkPtr inner = reduce_all(summed, options.reduceOp, options.timeout, c10d::OpType::ALLREDUCE);
  return after(*threads_, inner, this->getRank(), type, "reduce_scatter", {output}, [flat, output, offset] {
    output.detach().copy_(flat.narrow(0, offset, output.numel()).view(output.sizes()));
  });
}

template <class Base>
auto Group<Base>::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options)
    -> WorkPtr {
  TORCH_CHECK(outputs.size() == 1 && inputs.size() == 1 && inputs[0].size() == static_cast<std::size_t>(this->getSize()),
              "netsum: reduce_scatter takes one output, and one input for each of the ", this->getSize(), " ranks");
  Tensors flat;
  std::int64_t offset = 0;
  for (int rank = 0; rank < this->getSize(); ++rank) {
    const at::Tensor& input = inputs[0][static_cast<std::size_t>(rank)];
    if (rank < this->getRank()) offset += input.numel();
    flat.push_back(input.detach().reshape(-1));
  }
  TORCH_CHECK(flat[static_cast<std::size_t>(this->getRank())].numel() == outputs[0].numel(), "netsum: reduce_scatter of ",
              flat[static_cast<std::size_t>(this->getRank())].numel(), " elements into ", outputs[0].numel());
  return scatter_of_sum(at::cat(flat), outputs[0], offset, options, c10d::OpType::REDUCE_SCATTER);
}

template <class Base>
auto Group<Base>::_reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options)
    -> WorkPtr {
  TORCH_CHECK(input.numel() == output.numel() * this->getSize(), "netsum: reduce_scatter_tensor of ", input.numel(),
              " elements by ", this->getSize(), " ranks into ", output.numel());
  return scatter_of_sum(input.detach().reshape(-1).clone(), output, this->getRank() * output.numel(), options,
                        c10d::OpType::_REDUCE_SCATTER_BASE);
}

template <class Base>
auto Group<Base>::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) -> WorkPtr {
  at::Tensor movable_output = as_movable(output);
  at::Tensor movable_input = as_movable(input);
  return gloo("all_to_all_single").alltoall_base(movable_output, movable_input, output_splits, input_splits, options);
}

// PyTorch's Gloo exchanges one split tensor: the lists travel as their concatenation.
template <class Base>
auto Group<Base>::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) -> WorkPtr {
  const auto size = static_cast<std::size_t>(this->getSize());
  TORCH_CHECK(outputs.size() == size && inputs.size() == size,
              "netsum: all_to_all takes one input and one output for each of the ", size, " ranks");
  Tensors flat;
  std::vector<int64_t> input_splits, output_splits;
  for (const at::Tensor& input : inputs) {
    flat.push_back(as_movable(input).reshape(-1));
    input_splits.push_back(flat.back().numel());
  }
  std::int64_t total = 0;
  for (const at::Tensor& output : outputs) {
    output_splits.push_back(as_movable(output).numel());
    total += output_splits.back();
  }
  at::Tensor sent = at::cat(flat);
  at::Tensor received = at::empty({total}, sent.options());
  auto splits = output_splits;  // Gloo moves from its arguments
  const WorkPtr inner = gloo("all_to_all").alltoall_base(received, sent, splits, input_splits, options);
  return after(*threads_, inner, this->getRank(), c10d::OpType::ALLTOALL, "all_to_all over Gloo", outputs,
               [sent, received, output_splits, outputs] {
                 std::int64_t offset = 0;
                 for (std::size_t i = 0; i < outputs.size(); ++i) {
                   const at::Tensor to = as_movable(outputs[i]).detach();
                   to.copy_(received.narrow(0, offset, output_splits[i]).view(to.sizes()));
                   offset += output_splits[i];
                 }
               });
}

template <class Base>
auto Group<Base>::send(Tensors& tensors, int to, int tag) -> WorkPtr {
  auto movable = as_movable(tensors);
  return gloo("send").send(movable, to, tag);
}

template <class Base>
auto Group<Base>::recv(Tensors& tensors, int from, int tag) -> WorkPtr {
  auto movable = as_movable(tensors);
  return gloo("recv").recv(movable, from, tag);
}

template <class Base>
auto Group<Base>::recvAnysource(Tensors& tensors, int tag) -> WorkPtr {
  auto movable = as_movable(tensors);
  return gloo("recv").recvAnysource(movable, tag);
}

// A barrier waits for all operations issued before it, on the switch too.
template <class Base>
auto Group<Base>::barrier(const c10d::BarrierOptions& options) -> WorkPtr {
  check_usable();
  c10::intrusive_ptr<GroupWork> last;
  if (queue_) last = queue_->last();
  const WorkPtr inner = gloo("barrier").barrier(options);
  if (!last) return inner;
  return after(*threads_, inner, this->getRank(), c10d::OpType::BARRIER, "barrier", {}, [last] { last->wait(); });
}

template <class Base>
void Group<Base>::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  gloo("monitored_barrier").monitoredBarrier(options, wait_all_ranks);
}

template <class Base>
void Group<Base>::setSequenceNumberForGroup() {
  gloo("sequence_number").setSequenceNumberForGroup();
}

template <class Base>
uint64_t Group<Base>::getSequenceNumberForGroup() {
  return gloo("sequence_number").getSequenceNumberForGroup();
}

template class Group<GroupBase>;

}  // namespace netsum::torch_backend
