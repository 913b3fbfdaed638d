#include "process_group.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <Python.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <future>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <utility>

#include "delegate.h"

namespace netsum::torch_backend {
namespace {

constexpr std::chrono::seconds shard_patience{3};  // how long a shard outlives its rank's membership
constexpr const char* left_key = "left";
constexpr const char* looked_key = "looked";

std::optional<std::chrono::milliseconds> given(std::chrono::milliseconds timeout) {
  if (timeout == c10d::kUnsetTimeout) return std::nullopt;
  return timeout;
}

// Records in the store that this rank has left. A rank with a shard returns when all `ranks` have, or after shard_patience:
// another rank may still wait for a lost result. Rank 0, whose process may be the store, waits for the other shards' last
// look into it too. A separate thread queries the store, because a store on a hung host never answers.
void say_goodbye(const c10::intrusive_ptr<c10d::Store>& store, int rank, int ranks, int shards, bool has_shard) {
  const auto until = Stopwatch::Clock::now() + shard_patience;
  std::promise<void> over;
  std::future<void> waited = over.get_future();
  std::thread([=, store = store, over = std::move(over)]() mutable {
    const auto wait = [&](const char* key, std::int64_t count) {
      while (store->add(key, 0) < count && Stopwatch::Clock::now() < until) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    };
    try {
      store->add(left_key, 1);
      if (has_shard) wait(left_key, ranks);
      if (has_shard && rank == 0) wait(looked_key, shards - 1);
      if (has_shard && rank != 0) store->add(looked_key, 1);
    } catch (const std::exception&) {
      // The store's process ended first: the other ranks are gone too, or learn of it from their heartbeats.
    }
    store.reset();
    over.set_value();
  }).detach();
  waited.wait_until(until);
}

SwitchQueue::Counts lengths_of(const std::vector<at::Tensor>& tensors) {
  SwitchQueue::Counts lengths;
  for (const at::Tensor& tensor : tensors) lengths.push_back(static_cast<std::size_t>(tensor.numel()));
  return lengths;
}

bool nothing_in(const std::vector<at::Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) { return tensor.numel() == 0; });
}

std::uint64_t bytes_in(const std::vector<at::Tensor>& tensors) {
  std::uint64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.layout() == at::kStrided) bytes += tensor.nbytes();
  }
  return bytes;
}

}  // namespace

template <class Base>
Group<Base>::Group(c10::intrusive_ptr<Base> gloo, std::unique_ptr<Communicator> communicator,
                   std::shared_ptr<Aggregator> shard, c10::intrusive_ptr<c10d::Store> store, Decision decision,
                   std::function<void(const std::string&)> log)
    : Base(gloo ? gloo->getRank() : static_cast<int>(communicator->rank()),
           gloo ? gloo->getSize() : static_cast<int>(communicator->world_size())),
      decision_(std::move(decision)),
      gloo_(std::move(gloo)),
      store_(std::move(store)),
      shard_(std::move(shard)),
      log_(std::move(log)) {
  if (communicator)
    queue_ = std::make_unique<SwitchQueue>(std::move(*communicator), decision_.world_ranks, stopwatch_, *threads_);
}

template <class Base>
void Group<Base>::end() {
  if (!is_ours()) {
    // A child of fork() has no threads to join: leave the parent's objects to the exit.
    end_staging();
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
  warn(/*last=*/true);
  const bool failed = aborted_ || (queue_ && queue_->failed());
  end_staging();
  std::unique_ptr<SwitchQueue> ended;
  {
    const std::lock_guard lock(ending_);
    ended = std::move(queue_);
  }
  ended.reset();
  if (decision_.shards > 0 && !failed) {
    say_goodbye(store_, this->getRank(), this->getSize(), decision_.shards, shard_ != nullptr);
  }
  shard_.reset();
  gloo_.reset();
  threads_.reset();
  store_.reset();
}

template <class Base>
void Group<Base>::abort() {
  if (!is_ours() || closed_ || aborted_.exchange(true)) return;
  const std::lock_guard lock(ending_);
  if (queue_) queue_->abort("the process group was aborted");
}

template <class Base>
void Group<Base>::check_usable() const {
  if (!is_ours()) {
    throw std::runtime_error("netsum: this process group was inherited through fork() from process " +
                             std::to_string(owner_) + ": use it there, or start the child with 'spawn' and its own group");
  }
  if (closed_) throw std::runtime_error("netsum: this process group was destroyed");
  if (aborted_) {
    throw std::runtime_error("netsum: rank " + std::to_string(this->getRank()) +
                             " aborted this process group: build another");
  }
}

template <class Base>
std::string Group<Base>::why_not(Call call, const Tensors& tensors, const c10d::ReduceOp* op) const {
  return why_not_by_switch(call, tensors, op, [this](ReduceOp kind, DType dtype) { return queue_->reduces(kind, dtype); });
}

template <class Base>
bool Group<Base>::by_switch(Call call, const Tensors& tensors, const c10d::ReduceOp* op) {
  check_usable();
  const std::string why_not = queue_ ? this->why_not(call, tensors, op) : decision_.reason;
  counts_.add(call, why_not, bytes_in(tensors));
  warn(/*last=*/false);
  return queue_ && why_not.empty();
}

template <class Base>
Base& Group<Base>::gloo() const {
  if (gloo_) return *gloo_;
  throw std::runtime_error(
      "netsum: this process came into a running job, where Gloo has no connections to it: make only calls that go through "
      "the switch");
}

template <class Base>
Base& Group<Base>::gloo(Call call, const Tensors& tensors) {
  static_cast<void>(by_switch(call, tensors));
  return gloo();
}

// A group that is over Gloo as a whole has said so at its start.
template <class Base>
void Group<Base>::warn(bool last) {
  if (!queue_ || !log_) return;
  if (const auto words = counts_.warning(last)) log_(decision_.job + ": " + *words);
}

template <class Base>
void Group<Base>::move_to_allocated(const at::Tensor& tensor) {
  check_usable();
  const c10d::ReduceOp sum(c10d::ReduceOp::SUM);
  if (tensor.device().is_cpu() && would_take(Call::all_reduce, {tensor}, &sum)) queue_->move_to_allocated(tensor);
}

template <class Base>
void Group<Base>::begin_step() {
  if (feedback_) feedback_->begin_step();
}

template <class Base>
std::vector<std::uint32_t> Group<Base>::admit() {
  check_usable();
  if (!queue_ || !decision_.survivors)
    throw std::runtime_error("netsum: admit() requires survivors and a switch: set NETSUM_SURVIVORS and NETSUM_SWITCH");
  return queue_->admit();
}

template <class Base>
void Group<Base>::wait_for_all() {
  check_usable();
  if (!queue_ || !decision_.survivors) return;
  queue_->all_reduce({at::zeros({1}, at::kInt)}, ReduceOp::sum, {{}, {}, /*waits_for_all=*/true}, c10d::OpType::BARRIER)
      ->wait();
}

// A work of Gloo, with what is left to do once it has ended. The group outlives it: its destructor waits for Gloo's threads
// and for `threads_`.
template <class Base>
auto Group<Base>::after_gloo(const WorkPtr& inner, Call call, c10d::OpType type, Tensors outputs, std::function<void()> then)
    -> WorkPtr {
  std::string what = to_string(call) + describe(outputs) + " over Gloo";
  return after(*threads_, {inner}, this->getRank(), type, std::move(what), std::move(outputs), std::move(then));
}

template <class Base>
auto Group<Base>::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) -> WorkPtr {
  return reduce_all(Call::all_reduce, tensors, options.reduceOp, options.timeout, c10d::OpType::ALLREDUCE);
}

template <class Base>
auto Group<Base>::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) -> WorkPtr {
  return reduce_all(Call::all_reduce_coalesced, tensors, options.reduceOp, options.timeout,
                    c10d::OpType::ALLREDUCE_COALESCED);
}

// In place.
template <class Base>
auto Group<Base>::reduce_all(Call call, Tensors& tensors, const c10d::ReduceOp& op, std::chrono::milliseconds timeout,
                             c10d::OpType type) -> WorkPtr {
  if (sums_complex(tensors, op)) {
    Outputs sums;
    Tensors parts = sums.parts(tensors);
    return after(*threads_, {reduce_all(call, parts, op, timeout, type)}, this->getRank(), type,
                 to_string(call) + describe(tensors), tensors, [sums] { sums.write(); });
  }
  const auto factor = factor_of(op, tensors);
  const c10d::ReduceOp without = factor ? c10d::ReduceOp(c10d::ReduceOp::SUM) : op;
  if (by_switch(call, tensors, &without)) {
    return queue_->all_reduce(tensors, *switch_op(without), {given(timeout), factor}, type);
  }
  if (factor) multiply(tensors, *factor);
  return gloo_reduce_all(tensors, without, timeout, type);
}

template <class Base>
auto Group<Base>::gloo_reduce_all(Tensors& tensors, const c10d::ReduceOp& op, std::chrono::milliseconds timeout,
                                  c10d::OpType type) -> WorkPtr {
  Tensors reducible;
  for (const at::Tensor& tensor : tensors) reducible.push_back(as_reducible(tensor, op));
  const c10d::ReduceOp gloo_op = op == c10d::ReduceOp::AVG ? c10d::ReduceOp(c10d::ReduceOp::SUM) : op;
  WorkPtr inner;
  stopwatch_.begin();
  try {
    if (type == c10d::OpType::ALLREDUCE) {
      c10d::AllreduceOptions options;
      options.reduceOp = gloo_op;
      options.timeout = timeout;
      inner = gloo().allreduce(reducible, options);
    } else {
      c10d::AllreduceCoalescedOptions options;
      options.reduceOp = gloo_op;
      options.timeout = timeout;
      inner = gloo().allreduce_coalesced(reducible, options);
    }
  } catch (...) {
    stopwatch_.end();
    throw;
  }
  auto then = [tensors, reducible, op, size = this->getSize()] {
    for (std::size_t i = 0; i < tensors.size(); ++i) take_reduced(tensors[i], reducible[i], op, size);
  };
  return after(*threads_, {inner}, this->getRank(), type, "all_reduce" + describe(tensors) + " over Gloo", tensors,
               std::move(then), [this] { stopwatch_.end(); });
}

template <class Base>
auto Group<Base>::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) -> WorkPtr {
  if (by_switch(Call::broadcast, tensors)) {
    return queue_->broadcast(tensors, static_cast<std::uint32_t>(options.rootRank), given(options.timeout));
  }
  Outputs received;
  auto movable = this->getRank() == options.rootRank ? as_movable(tensors) : received.movable(tensors);
  return after_gloo(gloo().broadcast(movable, options), Call::broadcast, c10d::OpType::BROADCAST, tensors,
                    [received] { received.write(); });
}

template <class Base>
auto Group<Base>::reduce(Tensors& tensors, const c10d::ReduceOptions& options) -> WorkPtr {
  const bool root = this->getRank() == options.rootRank;
  if (sums_complex(tensors, options.reduceOp)) {
    Outputs sums;
    Tensors parts = sums.parts(tensors);
    return after(*threads_, {reduce(parts, options)}, this->getRank(), c10d::OpType::REDUCE, "reduce" + describe(tensors),
                 tensors, [sums, root] {
                   if (root) sums.write();
                 });
  }
  const auto factor = factor_of(options.reduceOp, tensors);
  auto gloo_options = options;
  if (factor) gloo_options.reduceOp = c10d::ReduceOp::SUM;
  if (by_switch(Call::reduce, tensors, &gloo_options.reduceOp)) {
    return queue_->reduce(tensors, *switch_op(gloo_options.reduceOp), static_cast<std::uint32_t>(options.rootRank),
                          {given(options.timeout), factor});
  }
  const c10d::ReduceOp op = gloo_options.reduceOp;
  Tensors reducible;
  for (const at::Tensor& tensor : tensors) reducible.push_back(as_reducible(factor ? tensor.detach().clone() : tensor, op));
  if (factor) multiply(reducible, *factor);
  if (op == c10d::ReduceOp::AVG) gloo_options.reduceOp = c10d::ReduceOp::SUM;
  const WorkPtr inner = gloo().reduce(reducible, gloo_options);
  std::function<void()> then;
  if (root) {
    then = [tensors, reducible, op, size = this->getSize()] {
      for (std::size_t i = 0; i < tensors.size(); ++i) take_reduced(tensors[i], reducible[i], op, size);
    };
  }
  return after_gloo(inner, Call::reduce, c10d::OpType::REDUCE, tensors, std::move(then));
}

// Gloo divides by the size of the data that it gathers, so with no data the ranks meet in a barrier instead.
template <class Base>
auto Group<Base>::meet(Call call, c10d::OpType type, Tensors outputs, std::chrono::milliseconds timeout) -> WorkPtr {
  c10d::BarrierOptions options;
  options.timeout = timeout;
  return after_gloo(gloo().barrier(options), call, type, std::move(outputs));
}

// The future's value is one tensor, as NCCL's is: part r is rank r's. Parts of different lengths are one after the other.
// The list of outputs, not this rank's input, says which: all ranks have the same list.
template <class Base>
auto Group<Base>::allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options)
    -> WorkPtr {
  constexpr Call call = Call::all_gather;
  const auto size = static_cast<std::size_t>(this->getSize());
  if (by_switch(call, inputs) && outputs.size() == 1 && inputs.size() == 1 && outputs[0].size() == size) {
    const SwitchQueue::Counts lengths = lengths_of(outputs[0]);
    const bool even = std::adjacent_find(lengths.begin(), lengths.end(), std::not_equal_to<>()) == lengths.end();
    std::vector<std::int64_t> shape = inputs[0].sizes().vec();
    shape.insert(shape.begin(), this->getSize());
    if (!even) shape = {static_cast<std::int64_t>(std::accumulate(lengths.begin(), lengths.end(), std::size_t{0}))};
    const at::Tensor all = at::empty(shape, inputs[0].options());
    const WorkPtr inner = queue_->all_gather(inputs[0], all, lengths, given(options.timeout), c10d::OpType::ALLGATHER);
    return after(*threads_, {inner}, this->getRank(), c10d::OpType::ALLGATHER, to_string(call) + describe(inputs), {all},
                 [all, parts = outputs[0]] {
                   std::int64_t from = 0;
                   for (const at::Tensor& part : parts) {
                     write(part, all.view(-1).narrow(0, from, part.numel()).view(part.sizes()));
                     from += part.numel();
                   }
                 });
  }
  if (nothing_in(outputs.empty() ? inputs : outputs[0])) {
    return meet(call, c10d::OpType::ALLGATHER, outputs.empty() ? Tensors{} : outputs[0], options.timeout);
  }
  Outputs received;
  auto movable_outputs = received.movable(outputs);
  auto movable_inputs = as_movable(inputs);
  return after_gloo(gloo().allgather(movable_outputs, movable_inputs, options), call, c10d::OpType::ALLGATHER, outputs[0],
                    [received] { received.write(); });
}

template <class Base>
auto Group<Base>::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) -> WorkPtr {
  TORCH_CHECK(output.numel() == input.numel() * this->getSize(), "netsum: all_gather_into_tensor of ", input.numel(),
              " elements by ", this->getSize(), " ranks into a tensor of ", output.numel());
  TORCH_CHECK(output.scalar_type() == input.scalar_type(), "netsum: all_gather_into_tensor of ", input.scalar_type(),
              " into ", output.scalar_type());
  constexpr Call call = Call::all_gather_into_tensor;
  if (by_switch(call, {input})) {
    const SwitchQueue::Counts each(static_cast<std::size_t>(this->getSize()), static_cast<std::size_t>(input.numel()));
    return queue_->all_gather(input, output, each, given(options.timeout), c10d::OpType::_ALLGATHER_BASE);
  }
  if (input.numel() == 0) return meet(call, c10d::OpType::_ALLGATHER_BASE, {output}, options.timeout);
  const at::Tensor from = as_movable(input.detach()).view(-1);
  Outputs received;
  std::vector<Tensors> parts{received.movable(output).detach().view({this->getSize(), from.numel()}).unbind(0)};
  Tensors inputs{from};
  const WorkPtr inner = gloo().allgather(parts, inputs, options);
  return after_gloo(inner, call, c10d::OpType::_ALLGATHER_BASE, {output}, [received] { received.write(); });
}

template <class Base>
auto Group<Base>::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options)
    -> WorkPtr {
  constexpr Call call = Call::all_gather_coalesced;
  Base& gloo = this->gloo(call, inputs);
  if (nothing_in(inputs)) return meet(call, c10d::OpType::ALLGATHER_COALESCED, {}, options.timeout);
  Outputs received;
  auto movable_outputs = received.movable(outputs);
  auto movable_inputs = as_movable(inputs);
  return after_gloo(gloo.allgather_coalesced(movable_outputs, movable_inputs, options), call,
                    c10d::OpType::ALLGATHER_COALESCED, outputs[0], [received] { received.write(); });
}

#if TORCH_VERSION_MAJOR >= 2
template <class Base>
auto Group<Base>::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options)
    -> WorkPtr {
  TORCH_CHECK(outputs.size() == inputs.size() && !inputs.empty(), "netsum: all_gather_into_tensor of ", inputs.size(),
              " inputs into ", outputs.size(), " outputs");
  std::vector<WorkPtr> each;
  for (std::size_t i = 0; i < inputs.size(); ++i) each.push_back(_allgather_base(outputs[i], inputs[i], options));
  return after(*threads_, each, this->getRank(), c10d::OpType::COALESCED, "all_gather_into_tensor" + describe(outputs),
               outputs);
}

template <class Base>
auto Group<Base>::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                  const c10d::ReduceScatterOptions& options) -> WorkPtr {
  TORCH_CHECK(outputs.size() == inputs.size() && !inputs.empty(), "netsum: reduce_scatter_tensor of ", inputs.size(),
              " inputs into ", outputs.size(), " outputs");
  std::vector<WorkPtr> each;
  for (std::size_t i = 0; i < inputs.size(); ++i) each.push_back(_reduce_scatter_base(outputs[i], inputs[i], options));
  return after(*threads_, each, this->getRank(), c10d::OpType::COALESCED, "reduce_scatter_tensor" + describe(outputs),
               outputs);
}
#endif

template <class Base>
auto Group<Base>::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) -> WorkPtr {
  Base& gloo = this->gloo(Call::gather, inputs);
  if (nothing_in(inputs)) return meet(Call::gather, c10d::OpType::GATHER, {}, options.timeout);
  Outputs received;
  auto movable_outputs = received.movable(outputs);
  auto movable_inputs = as_movable(inputs);
  return after_gloo(gloo.gather(movable_outputs, movable_inputs, options), Call::gather, c10d::OpType::GATHER,
                    outputs.empty() ? Tensors{} : outputs[0], [received] { received.write(); });
}

template <class Base>
auto Group<Base>::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) -> WorkPtr {
  Base& gloo = this->gloo(Call::scatter, outputs);
  if (nothing_in(outputs)) return meet(Call::scatter, c10d::OpType::SCATTER, outputs, options.timeout);
  Outputs received;
  auto movable_outputs = received.movable(outputs);
  auto movable_inputs = as_movable(inputs);
  return after_gloo(gloo.scatter(movable_outputs, movable_inputs, options), Call::scatter, c10d::OpType::SCATTER, outputs,
                    [received] { received.write(); });
}

// Of `flat`, which is this group's to change, the sum of this rank's part. `counts`: the elements of each rank's. Where the
// switch does not take it, all parts are all-reduced: PyTorch's Gloo has no reduce-scatter before 2.x, and in 2.6 one that
// sums whatever the operation is.
template <class Base>
auto Group<Base>::scatter_reduced(Call call, at::Tensor flat, at::Tensor output, SwitchQueue::Counts counts,
                                  const c10d::ReduceScatterOptions& options, c10d::OpType type) -> WorkPtr {
  if (sums_complex({flat}, options.reduceOp)) {
    Outputs sums;
    const at::Tensor part = sums.parts({output}).front();
    for (std::size_t& count : counts) count *= 2;
    return after(*threads_, {scatter_reduced(call, at::view_as_real(flat).view(-1), part, counts, options, type)},
                 this->getRank(), type, to_string(call) + describe({output}), {output}, [sums] { sums.write(); });
  }
  Tensors whole{flat};
  const auto factor = factor_of(options.reduceOp, whole);
  const c10d::ReduceOp op = factor ? c10d::ReduceOp(c10d::ReduceOp::SUM) : options.reduceOp;
  if (by_switch(call, whole, &op)) {
    const bool sums = op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG;
    const bool rounded = flat.scalar_type() == at::kFloat || flat.scalar_type() == at::kBFloat16;
    if (feedback_ && sums && rounded && !factor) flat = feedback_->give_back(flat, counts);
    return queue_->reduce_scatter(flat, output, counts, *switch_op(op), {given(options.timeout), factor}, type);
  }
  if (factor) multiply(whole, *factor);
  const WorkPtr inner = gloo_reduce_all(whole, op, options.timeout, c10d::OpType::ALLREDUCE);
  const auto offset =
      static_cast<std::int64_t>(std::accumulate(counts.begin(), counts.begin() + this->getRank(), std::size_t{0}));
  return after(*threads_, {inner}, this->getRank(), type, to_string(call) + describe({output}), {output},
               [flat, output, offset] { write(output, flat.narrow(0, offset, output.numel()).view(output.sizes())); });
}

template <class Base>
auto Group<Base>::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options)
    -> WorkPtr {
  TORCH_CHECK(outputs.size() == 1 && inputs.size() == 1 && inputs[0].size() == static_cast<std::size_t>(this->getSize()),
              "netsum: reduce_scatter takes one output, and one input for each of the ", this->getSize(), " ranks");
  Tensors flat;
  for (const at::Tensor& input : inputs[0]) flat.push_back(dense(input).detach().view(-1));
  TORCH_CHECK(flat[static_cast<std::size_t>(this->getRank())].numel() == outputs[0].numel(), "netsum: reduce_scatter of ",
              flat[static_cast<std::size_t>(this->getRank())].numel(), " elements into ", outputs[0].numel());
  return scatter_reduced(Call::reduce_scatter, at::cat(flat), outputs[0], lengths_of(flat), options,
                         c10d::OpType::REDUCE_SCATTER);
}

template <class Base>
auto Group<Base>::_reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options)
    -> WorkPtr {
  TORCH_CHECK(input.numel() == output.numel() * this->getSize(), "netsum: reduce_scatter_tensor of ", input.numel(),
              " elements by ", this->getSize(), " ranks into ", output.numel());
  const SwitchQueue::Counts each(static_cast<std::size_t>(this->getSize()), static_cast<std::size_t>(output.numel()));
  return scatter_reduced(Call::reduce_scatter_tensor, dense(input).detach().view(-1).clone(), output, each, options,
                         c10d::OpType::_REDUCE_SCATTER_BASE);
}

template <class Base>
auto Group<Base>::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) -> WorkPtr {
  Outputs received;
  at::Tensor movable_output = received.movable(output);
  at::Tensor movable_input = as_movable(input);
  constexpr Call call = Call::all_to_all_single;
  return after_gloo(gloo(call, {input}).alltoall_base(movable_output, movable_input, output_splits, input_splits, options),
                    call, c10d::OpType::ALLTOALL_BASE, {output}, [received] { received.write(); });
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
    flat.push_back(as_movable(input).view(-1));
    input_splits.push_back(flat.back().numel());
  }
  Outputs received;
  const Tensors parts = received.movable(outputs);
  std::int64_t total = 0;
  for (const at::Tensor& part : parts) {
    output_splits.push_back(part.numel());
    total += output_splits.back();
  }
  at::Tensor sent = at::cat(flat);
  at::Tensor all = at::empty({total}, sent.options());
  auto splits = output_splits;  // Gloo moves from its arguments
  const WorkPtr inner = gloo(Call::all_to_all, inputs).alltoall_base(all, sent, splits, input_splits, options);
  return after_gloo(inner, Call::all_to_all, c10d::OpType::ALLTOALL, outputs, [sent, all, output_splits, parts, received] {
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      copy_into(parts[i], all.narrow(0, offset, output_splits[i]).view(parts[i].sizes()));
      offset += output_splits[i];
    }
    received.write();
  });
}

template <class Base>
auto Group<Base>::send(Tensors& tensors, int to, int tag) -> WorkPtr {
  auto movable = as_movable(tensors);
  return gloo(Call::send, tensors).send(movable, to, tag);
}

template <class Base>
auto Group<Base>::recv(Tensors& tensors, int from, int tag) -> WorkPtr {
  Outputs received;
  auto movable = received.movable(tensors);
  return written(gloo(Call::recv, tensors).recv(movable, from, tag), received);
}

template <class Base>
auto Group<Base>::recvAnysource(Tensors& tensors, int tag) -> WorkPtr {
  Outputs received;
  auto movable = received.movable(tensors);
  return written(gloo(Call::recv, tensors).recvAnysource(movable, tag), received);
}

// A barrier waits for all operations issued before it, on the switch too.
template <class Base>
auto Group<Base>::barrier(const c10d::BarrierOptions& options) -> WorkPtr {
  if (queue_ && decision_.survivors) {  // the switch alone knows which ranks are left
    check_usable();
    counts_.add(Call::barrier, "", 0);
    Tensors nothing{at::zeros({1}, at::kInt)};
    std::vector<WorkPtr> before;
    for (const auto& work : queue_->last()) before.push_back(work);
    before.push_back(queue_->all_reduce(nothing, ReduceOp::sum, {given(options.timeout), {}}, c10d::OpType::BARRIER));
    return after(*threads_, before, this->getRank(), c10d::OpType::BARRIER, to_string(Call::barrier), {}, {});
  }
  Base& gloo = this->gloo(Call::barrier, {});
  std::function<void()> then;
  if (queue_) {
    then = [last = queue_->last()] {
      for (const auto& work : last) work->wait();
    };
  }
  return after_gloo(gloo.barrier(options), Call::barrier, c10d::OpType::BARRIER, {}, std::move(then));
}

template <class Base>
void Group<Base>::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  check_usable();
  gloo().monitoredBarrier(options, wait_all_ranks);
}

template <class Base>
void Group<Base>::setSequenceNumberForGroup() {
  check_usable();
  gloo().setSequenceNumberForGroup();
}

template <class Base>
uint64_t Group<Base>::getSequenceNumberForGroup() {
  check_usable();
  return gloo().getSequenceNumberForGroup();
}

template class Group<GroupBase>;

}  // namespace netsum::torch_backend
