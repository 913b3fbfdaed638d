#include "netsum/communicator.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <utility>

#include "base/failed_earlier.h"
#include "collective/call_plan.h"
#include "collective/connect.h"
#include "collective/join.h"
#include "collective/monitor.h"
#include "runtime/shared_engine.h"
#include "runtime/thread.h"
#include "runtime/worker_engine.h"
#include "stream/admittance.h"
#include "transport/addresses/switch_list.h"

namespace netsum {

using collective::Joined;
using collective::Monitor;
using runtime::PendingOperation;
using runtime::WorkerEngine;
using stream::Collective;
using stream::Operation;

namespace {

constexpr std::size_t default_recovery_memory = std::size_t{256} << 20;

// Longer operations run better on I/O threads than on the caller's: they use all of this rank's cores.
constexpr std::uint64_t most_for_callers = 16384;  // int32 words

// Like shared memory: zeroed, in separate pages, and found by address while it is lent.
TensorMemory ordinary_memory(const std::shared_ptr<runtime::Arenas>& arenas, std::uint32_t rank, std::size_t bytes) {
  const std::size_t whole = std::max<std::size_t>(bytes, 1);
  void* const memory = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(ErrorCode::bad_argument, "allocate: no memory for " + std::to_string(bytes) + " bytes");
  }
  std::shared_ptr<std::byte> owner(static_cast<std::byte*>(memory), [whole](std::byte* begin) { ::munmap(begin, whole); });
  static_cast<void>(arenas->take_hidden());  // no other rank needs to be told
  const std::uint32_t arena = arenas->reserve();
  if (arena == 0) throw collective::too_many_allocations(rank);
  std::shared_ptr<std::byte> shown(owner.get(), [owner, arenas, arena](std::byte*) { arenas->hide(arena); });
  arenas->show(arena, {shown.get(), whole}, shown);
  return {std::move(shown), bytes};
}

// The threads inside calls of a communicator. One atomic operation to enter and one to leave.
class Visitors {
 public:
  enum class Entry : std::uint8_t { entered, occupied, closed };

  // alone: one such visitor at a time.
  [[nodiscard]] Entry enter(bool alone) {
    std::uint32_t seen = state_.load(std::memory_order_relaxed);
    do {
      if ((seen & closing) != 0) return Entry::closed;
      if (alone && (seen & occupied) != 0) return Entry::occupied;
    } while (!state_.compare_exchange_weak(seen, seen + entry(alone), std::memory_order_acq_rel));
    return Entry::entered;
  }
  void leave(bool alone) {
    std::uint32_t seen = state_.load(std::memory_order_relaxed);
    while ((seen & closing) == 0) {
      if (state_.compare_exchange_weak(seen, seen - entry(alone), std::memory_order_acq_rel)) return;
    }
    const std::lock_guard lock(mutex_);  // wait_until_left() does not return before it is unlocked
    state_.fetch_sub(entry(alone), std::memory_order_acq_rel);
    left_.notify_all();
  }

  void close() { state_.fetch_or(closing, std::memory_order_acq_rel); }  // no thread enters any more
  void wait_until_left() {
    std::unique_lock lock(mutex_);
    left_.wait(lock, [this] { return !any(); });
  }
  [[nodiscard]] bool any() const { return state_.load(std::memory_order_acquire) >= visitor; }

 private:
  static constexpr std::uint32_t closing = 1, occupied = 2, visitor = 4;
  [[nodiscard]] static std::uint32_t entry(bool alone) { return visitor + (alone ? occupied : 0); }

  std::atomic<std::uint32_t> state_{0};
  std::mutex mutex_;  // for threads that leave after close()
  std::condition_variable left_;
};

}  // namespace

namespace {

// `summed`: as PendingOperation's.
RankSet of_both(const RankSet& all, const RankSet& summed) {
  return summed.empty() ? all : all.in_both(summed);
}
std::vector<std::uint32_t> listed(const RankSet& set) {
  std::vector<std::uint32_t> ranks;
  set.for_each([&](std::uint32_t rank) { ranks.push_back(rank); });
  return ranks;
}

// What an operation's owner can end it by.
class Abortable {
 public:
  virtual void abort(const std::string& reason) = 0;

 protected:
  ~Abortable() = default;
};

}  // namespace

struct Work::State {
  State(pid_t o, std::weak_ptr<Abortable> of, Duration patience, std::uint32_t ranks)
      : owner(o), communicator(std::move(of)), unwinding_patience(patience), world_size(ranks) {}

  // In a child of fork() the operation never ends.
  void check_process() const {
    if (getpid() == owner) return;
    throw Error(ErrorCode::closed, "this operation was inherited through fork(): wait for it in the process that issued it");
  }

  [[nodiscard]] bool done() const {
    return std::all_of(pending.begin(), pending.end(), [](const auto& operation) { return operation->done(); });
  }
  // Whether all have ended.
  [[nodiscard]] bool wait_until(Time time) const {
    return std::all_of(pending.begin(), pending.end(), [&](const auto& operation) { return operation->wait_until(time); });
  }
  // Returns the error of the first operation that has one. The call's last step is the waiting thread's.
  std::shared_ptr<const Error> wait() {
    std::shared_ptr<const Error> error;
    for (const auto& operation : pending) {
      operation->wait();
      if (!error) error = operation->error();
    }
    if (!error) std::call_once(finished, [this] { plan.finish(); });
    return error;
  }
  void on_done(const std::function<void()>& then) const {
    if (pending.empty()) return then();
    const auto left = std::make_shared<std::atomic<std::size_t>>(pending.size());
    for (const auto& operation : pending) {
      operation->then([left, then] {
        if (left->fetch_sub(1, std::memory_order_acq_rel) == 1) then();
      });
    }
  }
  [[nodiscard]] std::vector<std::uint32_t> members() const {
    RankSet all = RankSet::first(world_size);
    for (const auto& operation : pending) all = of_both(all, operation->summed);
    return listed(all);
  }
  // Of a Work that is destroyed.
  void end() {
    if (std::uncaught_exceptions() > exceptions && !wait_until(after(runtime::now(), unwinding_patience))) {
      if (const auto whole = communicator.lock()) {
        whole->abort("an exception left the scope of an operation that other ranks had not begun");
      }
    }
    static_cast<void>(wait());
  }

  std::vector<std::shared_ptr<PendingOperation>> pending;
  collective::CallPlan plan;
  std::once_flag finished;
  std::shared_ptr<runtime::Wakeup> wakeup;  // once somebody has asked for a descriptor
  const pid_t owner;
  const int exceptions = std::uncaught_exceptions();
  const std::weak_ptr<Abortable> communicator;
  const Duration unwinding_patience;
  const std::uint32_t world_size;
};

namespace {

// With addresses in place of what is to be looked up.
Options with_addresses(Options options) {
  for (auto* const addresses : {&options.aggregators, &options.standbys}) {
    std::vector<std::string> found;
    for (const std::string& address : *addresses) {
      if (!transport::is_looked_up(address)) {
        found.push_back(address);
        continue;
      }
      const std::vector<std::string> more = transport::switch_list(address);
      found.insert(found.end(), more.begin(), more.end());
    }
    *addresses = std::move(found);
  }
  std::visit([](auto& own) { own.switch_address = transport::one_switch(own.switch_address); }, options.protocol);
  return options;
}

}  // namespace

struct Communicator::Impl final : Abortable, std::enable_shared_from_this<Communicator::Impl> {
  Impl(Options o, collective::MakeRank m) : options(std::move(o)), make(std::move(m)) {}

  ~Impl() {
    on_stop.reset();
    if (!monitor) return;
    // The others may still need packets from this rank (NetReduce: only it can retransmit them).
    if (engine && !engine->failure() && !engine->most_urgent()) {
      const Time until = after(runtime::now(), runtime::bounded(options.operation_deadline));
      engine->drain([&] { return runtime::now() >= until || engine->failure() || monitor->successor_has_left(); });
    }
    monitor->stop();
    const auto failure = engine ? engine->failure() : nullptr;
    engine.reset();
    monitor->leave(failure.get());
  }

  void connect() {
    monitor = std::make_unique<Monitor>(options, make);
    Joined joined = monitor->join();
    const stream::Resumption resumption = joined.resumption;
    start(std::move(joined));
    if (options.log) options.log(traits.placement);
    if (resumption.boundary) carry_out({options.rank, options.world_size, resumption}, {});
    on_stop.emplace(options.stop, [this] { abort("a stop was requested"); });
  }

  void start(Joined joined) {
    const auto on_failure = [this](std::uint32_t lane, const protocol::LaneFailure& failure) {
      monitor->lane_failed(lane, failure);
    };
    traits = joined.traits;
    if (joined.local) {
      local = joined.local;
      runtime::SharedEngineConfig config;
      config.rank = options.rank;
      config.world_size = options.world_size;
      config.threads = thread_options();
      config.waiting = traits.spin         ? runtime::Waiting::spin
                       : options.busy_poll ? runtime::Waiting::adaptive
                                           : runtime::Waiting::futex;
      config.own = &local->own();
      config.peers = local->segments();
      config.arenas = arenas = local->arenas();
      config.waits = [this](Time deadline) { monitor->watch(deadline); };
      auto of_memory = std::make_unique<runtime::SharedEngine>(std::move(config), on_failure);
      shared = of_memory.get();
      lanes = shared->lanes();
      engine = std::move(of_memory);
      monitor->start(*engine, nullptr);
      return;
    }
    packet_elements = joined.packet_elements;
    slots = joined.slots;
    lanes = static_cast<std::uint32_t>(joined.lanes.size());
    std::optional<stream::OperationLog> log;
    if (options.recovery.count() > 0) {
      // Ranks are at most a window apart: so much is enough for ranks that did not die, whatever recovery_memory is.
      const std::size_t window = std::size_t{slots} * packet_elements * sizeof(float);
      const bool forgets = options.survivors != 0 && options.straggler_deadline.count() == 0;
      const std::size_t memory = forgets ? 0 : default_recovery_memory;
      log.emplace(std::max(options.recovery_memory.value_or(memory), window));
      static_cast<void>(log->resume(joined.resumption));
      next_operation = log->next_issue();
    }
    const bool recovers = log.has_value();
    runtime::ThreadOptions threads = thread_options();
    threads.node = joined.node;
    auto packets = std::make_unique<WorkerEngine>(std::move(joined.lanes), options.threads, threads, on_failure,
                                                  std::move(log), joined.late_ranks);
    WorkerEngine* const recovering = recovers ? packets.get() : nullptr;
    engine = std::move(packets);
    monitor->start(*engine, recovering);
  }

  std::vector<std::uint32_t> admit(const CallOptions& call) {
    if (options.survivors == 0)
      throw Error(ErrorCode::bad_argument, "admit() requires survivors: set Options::survivors above 0");
    while (const auto pending = engine->most_urgent()) pending->wait();
    carry_out({options.rank, options.world_size}, call);
    return members;
  }
  void carry_out(stream::Admittance admittance, CallOptions call) {
    call.waits_for_all = true;
    while (!admittance.done()) {
      if (admittance.lets_in()) {
        monitor->let_in();
        admittance.next();
        continue;
      }
      std::vector<std::int32_t> values = admittance.values(monitor->knocked());
      const TensorView sums{values.data(), values.size(), DType::int32};
      run(values.empty() ? collective::CollectiveCall{}
                         : collective::CollectiveCall{.collective = Collective::all_reduce,
                                                      .op = ReduceOp::sum,
                                                      .in = sums,
                                                      .out = sums},
          call);
      admittance.next(values);
    }
    RankSet here;
    for (const std::uint32_t rank : members) here.insert(rank);
    newcomers = listed(admittance.newcomers(here));
  }

  void abort(const std::string& reason) override {
    engine->fail(Error(ErrorCode::closed, reason));
    monitor->engine_failed();
  }

  [[nodiscard]] runtime::ThreadOptions thread_options() const {
    return {options.cpus, options.pin_threads, options.busy_poll, options.thread_set, {}};
  }

  // A child of fork() has none of the threads, and shares its parent's sockets: it must not touch them.
  void check_process() const {
    if (getpid() == owner) return;
    throw Error(ErrorCode::closed,
                "this communicator was inherited through fork(): use it in the process that connected it");
  }

  [[nodiscard]] collective::Caller caller() const {
    return {options.rank, options.world_size, traits, options.recovery.count() == 0};
  }

  [[nodiscard]] std::shared_ptr<PendingOperation> issue(Operation operation, const CallOptions& call) {
    if (const auto failure = engine->failure()) throw failed_earlier("the communicator", *failure);
    operation.number = next_operation++;
    operation.tag += call.tag;
    const Time issued = runtime::now();
    auto pending = std::make_shared<PendingOperation>(operation, issued, after(issued, patience_of(call)));
    pending->waits_for_all = call.waits_for_all;
    pending->meanwhile = call.while_waiting;
    return pending;
  }

  // The options of the next job of some of these ranks, or of all.
  [[nodiscard]] Options of_group(const std::string& kind, std::uint32_t rank, std::uint32_t world_size) {
    Options group = options;
    group.job += "/" + kind + std::to_string(groups++);
    group.rank = rank;
    group.world_size = world_size;
    group.first_operation.reset();
    return group;
  }

  [[nodiscard]] Duration patience_of(const CallOptions& call) const {
    return call.deadline ? *call.deadline : runtime::bounded(options.operation_deadline);
  }

  [[nodiscard]] std::shared_ptr<PendingOperation> begin(const Operation& operation, const CallOptions& call) {
    auto pending = issue(operation, call);
    pending->memory = {arenas->find(operation.data, 1, 1).memory, arenas->find(operation.out, 1, 1).memory};
    engine->submit(pending);
    monitor->watch(pending->deadline);
    return pending;
  }

  Work submit(const collective::CollectiveCall& what, const CallOptions& call) {
    return submit(collective::plan_of(what, caller(), call.factor), call);
  }
  Work submit(collective::CallPlan plan, const CallOptions& call) {
    const auto state = std::make_shared<Work::State>(owner, weak_from_this(), runtime::bounded(options.heartbeat_timeout),
                                                     options.world_size);
    // Waits for what has begun if the rest cannot: the lanes have the plan's memory, and the caller's.
    Work work(state);
    for (const Operation& operation : plan.operations) state->pending.push_back(begin(operation, call));
    state->plan = std::move(plan);
    return work;
  }

  void run(const collective::CollectiveCall& what, const CallOptions& call) {
    run(collective::plan_of(what, caller(), call.factor), call);
  }
  void run(collective::CallPlan plan, const CallOptions& call) {
    if (plan.operations.size() != 1) {
      Work work = submit(std::move(plan), call);
      work.wait();
      if (options.survivors != 0) members = work.members();
      return;
    }
    run(plan.operations.front(), call);
    plan.finish();
  }

  TensorMemory allocate(std::size_t bytes, const CallOptions& call) {
    if (!local) return ordinary_memory(arenas, options.rank, bytes);
    if (const auto failure = engine->failure()) throw failed_earlier("the communicator", *failure);
    const Duration patience = patience_of(call);
    try {
      Operation operation;
      operation.collective = Collective::allocate;
      return local->allocate(bytes, after(runtime::now(), patience), *shared, [&] { run(operation, call); });
    } catch (const Error& error) {
      // The others wait for data that this rank does not have.
      engine->fail(error);
      monitor->engine_failed();
      throw;
    }
  }

  // Short operations run on the caller: cheaper than handing them to another thread and being woken.
  void run(const Operation& operation, const CallOptions& call) {
    const auto pending = issue(operation, call);
    monitor->watch(pending->deadline);
    if (stream::wire_elements(operation) * operation.parts > most_for_callers || !engine->run(pending)) {
      engine->submit(pending);
      pending->wait();
    }
    if (const auto error = pending->error()) throw *error;
    if (options.survivors != 0) members = listed(of_both(RankSet::first(options.world_size), pending->summed));
  }

  // No thread may enter; calls inside fail and leave.
  void close() {
    visitors.close();
    if (!visitors.any()) return;
    abort("the communicator of job '" + options.job + "', rank " + std::to_string(options.rank) +
          ", was destroyed during a call on another thread: destroy it after all calls have returned");
    visitors.wait_until_left();
  }

  const Options options;
  const collective::MakeRank make;
  const pid_t owner = getpid();
  Visitors visitors;
  std::uint64_t next_operation = 0;
  std::vector<std::uint32_t> members = listed(RankSet::first(options.world_size));  // of the latest blocking call
  std::vector<std::uint32_t> newcomers;                                             // of the latest admit(), or connect()
  std::uint32_t groups = 0;  // made of these ranks: counted by all of them
  std::uint32_t packet_elements = 0, slots = 0, lanes = 0;
  collective::RankTraits traits;
  std::shared_ptr<collective::LocalRanks> local;  // outlives monitor and engine: its end without a goodbye counts as a death
  std::shared_ptr<runtime::Arenas> arenas = std::make_shared<runtime::Arenas>();  // the local ranks', if there are some
  std::unique_ptr<Monitor> monitor;  // outlives the engine, whose threads call it
  std::unique_ptr<runtime::Engine> engine;
  runtime::SharedEngine* shared = nullptr;  // the same engine, if ranks share memory
  std::optional<std::stop_callback<std::function<void()>>> on_stop;
};

Work::Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
Work::Work(Work&&) noexcept = default;

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    Work old(std::move(*this));
    state_ = std::move(other.state_);
  }
  return *this;
}

Work::~Work() {
  if (!state_) return;
  if (getpid() == state_->owner) {
    state_->end();
  } else {
    // Locks that another thread held at fork() stay locked: left to the exit.
    static_cast<void>(new std::shared_ptr<State>(std::move(state_)));
  }
}

Work::State& Work::state() const {
  if (!state_) throw Error(ErrorCode::closed, "this operation was moved from: use the Work that it was moved to");
  state_->check_process();
  return *state_;
}

bool Work::done() const {
  return state().done();
}

bool Work::wait_for(std::chrono::nanoseconds patience) {
  if (!state().wait_until(after(runtime::now(), patience))) return false;
  wait();
  return true;
}

void Work::on_done(std::function<void()> then) {
  state().on_done(then);
}

std::vector<std::uint32_t> Work::members() const {
  return state().members();
}

int Work::descriptor() {
  auto& wakeup = state().wakeup;
  if (!wakeup) {
    wakeup = std::make_shared<runtime::Wakeup>();
    on_done([wakeup] { wakeup->notify(); });
  }
  return wakeup->descriptor();
}

void Work::wait() {
  if (const auto error = state().wait()) throw *error;
}

Communicator::Communicator(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Communicator::Communicator(Communicator&&) noexcept = default;

Communicator& Communicator::operator=(Communicator&& other) noexcept {
  if (this != &other) {
    const Communicator old(std::move(*this));
    impl_ = std::move(other.impl_);
  }
  return *this;
}

Communicator::~Communicator() {
  if (!impl_) return;
  if (getpid() == impl_->owner) {
    impl_->close();
  } else {
    // A child of fork() has no threads to join and no own connections to close: left to the exit.
    static_cast<void>(new std::shared_ptr<Impl>(std::move(impl_)));
  }
}

Communicator::Impl& Communicator::impl() const {
  if (impl_) return *impl_;
  throw Error(ErrorCode::closed, "this communicator was moved from: use the communicator that it was moved to");
}

// A pending call, in the process that may make it.
class Communicator::Call {
 public:
  enum Threads : bool { any, one };

  explicit Call(Impl& impl, Threads threads = one) : impl_(impl), alone_(threads == one) {
    impl_.check_process();
    const auto who = [&] { return "job '" + impl_.options.job + "', rank " + std::to_string(impl_.options.rank) + ": "; };
    switch (impl_.visitors.enter(alone_)) {
      case Visitors::Entry::entered:
        return;
      case Visitors::Entry::occupied:
        throw Error(
            ErrorCode::bad_argument,
            who() +
                "another thread is using this communicator: call it from one thread at a time, or give each thread a dup()");
      case Visitors::Entry::closed:
        throw Error(ErrorCode::closed, who() + "this communicator is being destroyed by another thread");
    }
  }
  ~Call() { impl_.visitors.leave(alone_); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Impl* operator->() const { return &impl_; }

 private:
  Impl& impl_;
  const bool alone_;
};

Communicator Communicator::connect(const Options& options) {
  return collective::Connector::connect(options, &collective::rank_protocol);
}

Communicator collective::Connector::connect(const Options& options, MakeRank make) {
  auto impl = std::make_shared<Communicator::Impl>(with_addresses(options), std::move(make));
  impl->connect();
  return Communicator(std::move(impl));
}

std::uint32_t Communicator::rank() const {
  return impl().options.rank;
}
std::uint32_t Communicator::world_size() const {
  return impl().options.world_size;
}
std::vector<std::uint32_t> Communicator::admit(const CallOptions& call) {
  return Call(impl())->admit(call);
}
std::vector<std::uint32_t> Communicator::members() const {
  return impl().members;
}
std::uint64_t Communicator::behind() const {
  return Call(impl(), Call::any)->monitor->behind();
}
std::vector<std::uint32_t> Communicator::newcomers() const {
  return impl().newcomers;
}
std::uint64_t Communicator::next_operation() const {
  return Call(impl())->next_operation;
}

namespace {

// Only read where it is not also the output.
TensorView borrowed(const ConstTensorView& view) {
  return {const_cast<void*>(view.data), view.elements, view.dtype};
}

collective::CollectiveCall to_all_reduce(const TensorView& in, const TensorView& out, ReduceOp op) {
  return {.collective = Collective::all_reduce, .op = op, .in = in, .out = out};
}
collective::CollectiveCall to_reduce(const TensorView& inout, ReduceOp op, std::uint32_t root) {
  return {.collective = Collective::reduce, .op = op, .in = inout, .out = inout, .root = root};
}
collective::CollectiveCall to_reduce_scatter(const ConstTensorView& in, const TensorView& out, ReduceOp op) {
  return {.collective = Collective::reduce_scatter, .op = op, .in = borrowed(in), .out = out};
}
collective::CollectiveCall to_broadcast(const TensorView& inout, std::uint32_t root) {
  return {.collective = Collective::broadcast, .in = inout, .out = inout, .root = root};
}
collective::CollectiveCall to_all_gather(const ConstTensorView& in, const TensorView& out) {
  return {.collective = Collective::all_gather, .in = borrowed(in), .out = out};
}
collective::CollectiveCall with(collective::CollectiveCall what, std::span<const std::size_t> counts) {
  what.counts = counts;
  return what;
}

}  // namespace

// Each call exists in two forms, which differ only in the thread that waits.
void Communicator::all_reduce(TensorView inout, ReduceOp op, const CallOptions& call) {
  Call(impl())->run(to_all_reduce(inout, inout, op), call);
}
void Communicator::all_reduce(ConstTensorView in, TensorView out, ReduceOp op, const CallOptions& call) {
  Call(impl())->run(to_all_reduce(borrowed(in), out, op), call);
}
void Communicator::all_reduce_coalesced(std::span<const TensorView> inout, ReduceOp op, const CallOptions& call) {
  const Call here(impl());
  here->run(collective::plan_of(inout, op, here->caller(), call.factor), call);
}
void Communicator::reduce(TensorView inout, ReduceOp op, std::uint32_t root, const CallOptions& call) {
  Call(impl())->run(to_reduce(inout, op, root), call);
}
void Communicator::reduce_scatter(ConstTensorView in, TensorView out, ReduceOp op, const CallOptions& call) {
  Call(impl())->run(to_reduce_scatter(in, out, op), call);
}
void Communicator::broadcast(TensorView inout, std::uint32_t root, const CallOptions& call) {
  Call(impl())->run(to_broadcast(inout, root), call);
}
void Communicator::all_gather(ConstTensorView in, TensorView out, const CallOptions& call) {
  Call(impl())->run(to_all_gather(in, out), call);
}
void Communicator::reduce_scatter_v(ConstTensorView in, TensorView out, ReduceOp op, std::span<const std::size_t> counts,
                                    const CallOptions& call) {
  Call(impl())->run(with(to_reduce_scatter(in, out, op), counts), call);
}
void Communicator::all_gather_v(ConstTensorView in, TensorView out, std::span<const std::size_t> counts,
                                const CallOptions& call) {
  Call(impl())->run(with(to_all_gather(in, out), counts), call);
}
void Communicator::barrier(const CallOptions& call) {
  Call(impl())->run(collective::CollectiveCall{}, call);
}

Work Communicator::all_reduce_async(TensorView inout, ReduceOp op, const CallOptions& call) {
  return Call(impl())->submit(to_all_reduce(inout, inout, op), call);
}
Work Communicator::all_reduce_async(ConstTensorView in, TensorView out, ReduceOp op, const CallOptions& call) {
  return Call(impl())->submit(to_all_reduce(borrowed(in), out, op), call);
}
Work Communicator::all_reduce_coalesced_async(std::span<const TensorView> inout, ReduceOp op, const CallOptions& call) {
  const Call here(impl());
  return here->submit(collective::plan_of(inout, op, here->caller(), call.factor), call);
}
Work Communicator::reduce_async(TensorView inout, ReduceOp op, std::uint32_t root, const CallOptions& call) {
  return Call(impl())->submit(to_reduce(inout, op, root), call);
}
Work Communicator::reduce_scatter_async(ConstTensorView in, TensorView out, ReduceOp op, const CallOptions& call) {
  return Call(impl())->submit(to_reduce_scatter(in, out, op), call);
}
Work Communicator::broadcast_async(TensorView inout, std::uint32_t root, const CallOptions& call) {
  return Call(impl())->submit(to_broadcast(inout, root), call);
}
Work Communicator::all_gather_async(ConstTensorView in, TensorView out, const CallOptions& call) {
  return Call(impl())->submit(to_all_gather(in, out), call);
}
Work Communicator::reduce_scatter_v_async(ConstTensorView in, TensorView out, ReduceOp op,
                                          std::span<const std::size_t> counts, const CallOptions& call) {
  return Call(impl())->submit(with(to_reduce_scatter(in, out, op), counts), call);
}
Work Communicator::all_gather_v_async(ConstTensorView in, TensorView out, std::span<const std::size_t> counts,
                                      const CallOptions& call) {
  return Call(impl())->submit(with(to_all_gather(in, out), counts), call);
}
Work Communicator::barrier_async(const CallOptions& call) {
  return Call(impl())->submit(collective::CollectiveCall{}, call);
}

TensorMemory Communicator::allocate(std::size_t bytes, const CallOptions& call) {
  return Call(impl())->allocate(bytes, call);
}

Communicator Communicator::dup() {
  const Call here(impl());
  const Options& own = here->options;
  return collective::Connector::connect(here->of_group("dup", own.rank, own.world_size), here->make);
}

std::optional<Communicator> Communicator::split(std::optional<std::uint32_t> color, std::int32_t key) {
  const Call here(impl());
  if (here->options.recovery.count() > 0) {
    throw Error(ErrorCode::bad_argument,
                "split: a job with recovery cannot be split, since a rank that is started again could not repeat the call: "
                "connect() each group as a job of its own");
  }
  const std::uint32_t rank = here->options.rank;
  const std::int64_t own_color = color ? std::int64_t{*color} : -1;
  const std::int64_t own[] = {own_color, key};
  std::vector<std::int64_t> all(std::size(own) * here->options.world_size);
  here->run(to_all_gather(own, all), {});
  std::uint32_t ranks = 0, before = 0;
  for (std::uint32_t other = 0; other < here->options.world_size; ++other) {
    if (all[2 * other] != own_color) continue;
    ++ranks;
    before += std::pair(all[2 * other + 1], other) < std::pair(std::int64_t{key}, rank) ? 1 : 0;
  }
  const Options group = here->of_group("split" + std::to_string(own_color) + ".", before, ranks);
  if (!color) return std::nullopt;
  return collective::Connector::connect(group, here->make);
}

void Communicator::abort(const std::string& reason) {
  Call(impl(), Call::any)->abort(reason);
}

std::optional<Error> Communicator::failure() const {
  const auto failure = Call(impl(), Call::any)->engine->failure();
  return failure ? std::optional(*failure) : std::nullopt;
}

bool Communicator::can_reduce(ReduceOp op, DType dtype) const {
  return collective::can_reduce(Call(impl(), Call::any)->traits, op, dtype);
}

bool Communicator::has_own_collectives() const {
  return collective::has_own_collectives(Call(impl(), Call::any)->caller());
}

Statistics Communicator::statistics() const {
  const Call here(impl(), Call::any);
  const runtime::Engine::Totals totals = here->engine->totals();
  Statistics statistics;
  statistics.packets_sent = totals.transport.packets_sent;
  statistics.packets_received = totals.transport.packets_received;
  statistics.packets_retransmitted = totals.protocol.retransmissions;
  statistics.packets_dropped_down = totals.transport.dropped_injected;
  statistics.wire_bytes_sent = totals.transport.wire_bytes_sent;
  statistics.wire_bytes_received = totals.transport.wire_bytes_received;
  statistics.operations = here->engine->operations_completed();
  statistics.lanes = here->lanes;
  statistics.slots = here->slots;
  statistics.packet_elements = here->packet_elements;
  statistics.window = totals.protocol.window;
  statistics.shared_memory = here->local != nullptr;
  statistics.values_examined = totals.protocol.underflow.examined;
  statistics.values_underflowed = totals.protocol.underflow.underflowed;
  statistics.values_clamped = totals.protocol.underflow.clamped;
  statistics.bytes_copied = totals.bytes_copied;
  statistics.busy_nanoseconds = totals.busy_nanoseconds;
  return statistics;
}

std::string Communicator::placement() const {
  return impl().traits.placement;
}

}  // namespace netsum
