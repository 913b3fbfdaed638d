#include "runtime/worker_engine.h"

#include <sched.h>

#include <algorithm>
#include <deque>
#include <thread>
#include <tuple>
#include <utility>

#include "runtime/lateness.h"
#include "runtime/thread.h"

namespace netsum::runtime {
namespace {

constexpr int batches_per_turn = 64;  // per lane, before the other lanes and the mailbox get their turn
constexpr auto drain_poll = std::chrono::milliseconds(1);

}  // namespace

// Serves some of the lanes. Only this thread touches their state.
class WorkerEngine::IoThread {
 public:
  IoThread(WorkerEngine& engine, std::vector<std::pair<std::uint32_t, LaneSetup>> lanes, std::uint32_t index,
           const ThreadOptions& options, bool woken)
      : engine_(engine), busy_poll_(options.busy_poll, woken) {
    for (auto& [number, setup] : lanes) {
      lanes_.push_back({number, std::move(setup.transport), std::move(setup.worker), {}, false});
    }
    const SignalsBlocked blocked;
    thread_ = std::thread([this, index, pin = options.pin] {
      enter_thread("netsum-worker" + std::to_string(index), pin ? static_cast<int>(index) : -1);
      loop();
    });
  }

  ~IoThread() {
    mailbox_.post([this] { stopping_ = true; });
    thread_.join();
  }

  void submit(std::shared_ptr<PendingOperation> operation) {
    mailbox_.post([this, operation = std::move(operation)] {
      for (Lane& lane : lanes_) lane.queue.push_back(operation);
    });
  }

  // Drops every operation; on return this thread touches no caller's memory again.
  void abandon() {
    mailbox_.call([this] {
      for (Lane& lane : lanes_) {
        lane.worker.reset();
        lane.queue.clear();
      }
    });
  }

  std::optional<LaneStall> oldest_stall() {
    std::optional<LaneStall> oldest;
    mailbox_.call([&] {
      for (const Lane& lane : lanes_) {
        if (!lane.worker) continue;
        const auto stall = lane.worker->oldest_stall();
        if (stall &&
            (!oldest || std::tie(stall->operation, stall->chunk) < std::tie(oldest->stall.operation, oldest->stall.chunk))) {
          oldest = LaneStall{lane.number, *stall};
        }
      }
    });
    return oldest;
  }

  bool drained() {
    bool all = true;
    mailbox_.call([&] {
      for (const Lane& lane : lanes_) all &= !lane.worker || lane.worker->drained();
    });
    return all;
  }

  // A caller's turn: between borrow() and give_back() the caller's thread serves the lanes and the mailbox. No operation is
  // pending when it begins.
  void borrow() { turn_.lock(); }
  void begin(const std::shared_ptr<PendingOperation>& operation) {
    for (Lane& lane : lanes_) lane.queue.push_back(operation);
  }
  // Does not poll lanes on which the operation has nothing (left).
  bool serve_for_caller() {
    if (mailbox_.waiting()) mailbox_.run_all();
    bool any = false;
    for (Lane& lane : lanes_) any |= lane.busy() && serve(lane);
    return any;
  }
  void add_descriptors_for_caller(std::vector<pollfd>& descriptors) const {
    descriptors.push_back({mailbox_.descriptor(), POLLIN, 0});
    for (const Lane& lane : lanes_) {
      if (lane.busy()) descriptors.push_back({lane.transport->descriptor(), POLLIN, 0});
    }
  }
  [[nodiscard]] Time next_timeout() const {
    Time next = never;
    for (const Lane& lane : lanes_) {
      if (lane.worker) next = std::min(next, lateness_.over(lane.worker->next_timeout()));
    }
    return next;
  }
  void give_back() {
    lent_ = true;
    turn_.unlock();
  }
  void wake() {
    mailbox_.post([] {});
  }

  void add_totals(Totals& totals) {
    mailbox_.call([&] {
      for (const Lane& lane : lanes_) {
        const transport::Counters t = lane.transport->counters();
        totals.transport.packets_sent += t.packets_sent;
        totals.transport.packets_received += t.packets_received;
        totals.transport.wire_bytes_sent += t.wire_bytes_sent;
        totals.transport.wire_bytes_received += t.wire_bytes_received;
        totals.transport.dropped_injected += t.dropped_injected;
        totals.transport.send_failures += t.send_failures;
        totals.transport.truncated += t.truncated;
        if (!lane.worker) continue;
        const protocol::LaneTotals p = lane.worker->totals();
        totals.protocol.retransmissions += p.retransmissions;
        totals.protocol.window += p.window;
        totals.protocol.underflow += p.underflow;
      }
      totals.busy_nanoseconds += static_cast<std::uint64_t>(busy_.count());
    });
  }

 private:
  struct Lane {
    std::uint32_t number;
    std::unique_ptr<transport::Transport> transport;
    std::unique_ptr<protocol::WorkerLane> worker;         // null once abandoned
    std::deque<std::shared_ptr<PendingOperation>> queue;  // not yet taken by the worker
    bool failure_told;

    [[nodiscard]] bool busy() const { return !queue.empty() || (worker && worker->next_timeout() != never); }
  };

  void loop() {
    std::vector<pollfd> mailbox_alone, all;
    all.reserve(1 + lanes_.size());
    mailbox_alone.push_back({mailbox_.descriptor(), POLLIN, 0});
    all.push_back(mailbox_alone.front());
    for (const Lane& lane : lanes_) all.push_back({lane.transport->descriptor(), POLLIN, 0});
    std::unique_lock turn(turn_);
    while (!stopping_) {
      const Time next = lent_ ? never : next_timeout();
      if (next != never && !mailbox_.waiting() && busy_poll_.look_again(now())) {
        if (busy_poll_.yields()) sched_yield();
      } else if (!mailbox_.waiting()) {
        std::vector<pollfd>& descriptors = lent_ ? mailbox_alone : all;
        const Time until = lent_ ? next : busy_poll_.until(next, now());
        turn.unlock();  // from here a caller may change what is above
        wait_for(descriptors, until);
        turn.lock();
      }
      if (mailbox_.waiting()) {
        lent_ = false;
        mailbox_.run_all();
      }
      if (!lent_ && serve()) busy_poll_.found();
    }
  }

  // Whether any packet came.
  bool serve() {
    bool any = false;
    for (Lane& lane : lanes_) any |= serve(lane);
    return any;
  }

  bool serve(Lane& lane) {
    Sink& sink = lane.transport->sink();
    bool any = false;
    const Time began = now();
    Time looked = began;
    Time all_read = looked;  // what had come by then is read below: a whole turn takes more than a socket holds
    for (int batch = 0; batch < batches_per_turn; ++batch) {
      const std::span<const RxView> packets = lane.transport->receive();
      if (packets.empty()) {
        all_read = looked;
        break;
      }
      any = true;
      const Time time = now();
      if (lane.worker) lane.worker->on_packets(packets, time, sink);
      sink.flush();
      looked = now();
      lateness_.sent(time, looked);
    }
    if (!lane.worker) return any;
    Time told = never;
    // No time-out is over before what had come by then is read: it may be the answer.
    if (all_read >= lateness_.over(lane.worker->next_timeout())) {
      told = all_read;
      lane.worker->on_timer(told, sink);
    }
    report_completed(lane);
    if (!lane.queue.empty()) told = std::min(told, now());
    // An operation with nothing on this lane may end as it is submitted, and make room for more.
    do {
      while (!lane.queue.empty() && lane.worker->submit(lane.queue.front()->sent, now(), sink)) lane.queue.pop_front();
    } while (report_completed(lane) && !lane.queue.empty());
    sink.flush();
    if (told != never) {
      looked = now();
      lateness_.sent(told, looked);
    }
    if (any || told != never) busy_ += looked - began;
    if (lane.failure_told) return any;
    if (const auto failure = lane.worker->failure()) {
      lane.failure_told = true;
      engine_.on_failure_(lane.number, *failure);
    }
    return any;
  }

  bool report_completed(Lane& lane) {
    const std::vector<std::uint64_t> completed = lane.worker->take_completed();
    for (const std::uint64_t number : completed) engine_.lane_done(number);
    return !completed.empty();
  }

  WorkerEngine& engine_;
  Mailbox mailbox_;
  // Held by the thread that serves the lanes: this one except while it sleeps, or a caller in run().
  std::mutex turn_;
  std::vector<Lane> lanes_;
  BusyPoll busy_poll_;
  Lateness lateness_;
  Duration busy_{};    // Engine::Totals::busy_nanoseconds
  bool lent_ = false;  // a caller has served the lanes and left no work: sleep until a message in the mailbox
  bool stopping_ = false;
  std::thread thread_;
};

WorkerEngine::WorkerEngine(std::vector<LaneSetup> lanes, std::uint32_t threads, const ThreadOptions& thread_options,
                           std::function<void(std::uint32_t, const protocol::LaneFailure&)> on_failure,
                           std::optional<stream::OperationLog> log)
    : threads_wanted_(threads), thread_options_(thread_options), on_failure_(std::move(on_failure)), log_(std::move(log)) {
  start(std::move(lanes));
}

void WorkerEngine::start(std::vector<LaneSetup> lanes) {
  lanes_ = static_cast<std::uint32_t>(lanes.size());
  const bool woken =
      std::all_of(lanes.begin(), lanes.end(), [](const LaneSetup& lane) { return lane.transport->descriptor() >= 0; });
  caller_poll_ = BusyPoll(thread_options_.busy_poll, woken);
  lendable_ =
      std::none_of(lanes.begin(), lanes.end(), [](const LaneSetup& lane) { return lane.worker->answers_when_idle(); });
  const auto count = std::min<std::size_t>(std::max(1U, threads_wanted_), lanes.size());
  std::vector<std::vector<std::pair<std::uint32_t, LaneSetup>>> shares(count);
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    shares[i % count].emplace_back(static_cast<std::uint32_t>(i), std::move(lanes[i]));
  }
  for (std::size_t i = 0; i < count; ++i) {
    threads_.push_back(
        std::make_unique<IoThread>(*this, std::move(shares[i]), static_cast<std::uint32_t>(i), thread_options_, woken));
  }
}

WorkerEngine::~WorkerEngine() {
  fail(Error(ErrorCode::closed, "the communicator was closed"));
}

void WorkerEngine::submit(const std::shared_ptr<PendingOperation>& operation) {
  const std::lock_guard threads_lock(threads_mutex_);
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw *failure_;
    under_way_.emplace(operation->operation.number, operation);
    if (log_) operation->sent = log_->issue(operation->operation);
  }
  if (suspended_) return;
  operation->lanes_remaining = lanes_;
  for (const auto& thread : threads_) thread->submit(operation);
}

// All lanes, while a caller serves them. Without a log, the set of threads does not change.
class WorkerEngine::Borrowed {
 public:
  explicit Borrowed(const std::vector<std::unique_ptr<IoThread>>& threads) : threads_(threads) {
    for (const auto& thread : threads_) thread->borrow();
  }
  ~Borrowed() {
    for (const auto& thread : threads_) thread->give_back();
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

 private:
  const std::vector<std::unique_ptr<IoThread>>& threads_;
};

bool WorkerEngine::run(const std::shared_ptr<PendingOperation>& operation) {
  std::optional<Borrowed> borrowed;
  {
    const std::lock_guard threads_lock(threads_mutex_);
    {
      const std::lock_guard lock(mutex_);
      if (failure_) throw *failure_;
      if (log_ || !lendable_ || !under_way_.empty()) return false;
      under_way_.emplace(operation->operation.number, operation);
    }
    operation->lanes_remaining = lanes_;
    borrowed.emplace(threads_);
  }
  const DefaultFloatingPoint environment;
  for (const auto& thread : threads_) thread->begin(operation);
  while (true) {
    bool found = false;
    for (const auto& thread : threads_) found |= thread->serve_for_caller();
    if (operation->done()) break;
    if (!found && operation->meanwhile) operation->meanwhile();
    if (found) {
      caller_poll_.found();
    } else if (caller_poll_.look_again(now())) {
      if (caller_poll_.yields()) sched_yield();
    } else {
      caller_descriptors_.clear();
      Time next = operation->meanwhile ? now() + meanwhile_every : never;
      for (const auto& thread : threads_) {
        thread->add_descriptors_for_caller(caller_descriptors_);
        next = std::min(next, thread->next_timeout());
      }
      wait_for(caller_descriptors_, caller_poll_.until(next, now()));
    }
  }
  return true;
}

void WorkerEngine::drain(const std::function<bool()>& enough) {
  while (true) {
    {
      const std::lock_guard lock(threads_mutex_);
      if (std::all_of(threads_.begin(), threads_.end(), [](const auto& thread) { return thread->drained(); })) return;
    }
    if (enough()) return;
    std::this_thread::sleep_for(drain_poll);
  }
}

void WorkerEngine::suspend() {
  const std::lock_guard lock(threads_mutex_);
  suspended_ = true;
  for (const auto& thread : threads_) {
    thread->add_totals(past_);
    thread->abandon();
  }
  past_.protocol.window = 0;
  threads_.clear();
}

stream::Progress WorkerEngine::progress() const {
  const std::lock_guard lock(mutex_);
  return log_->progress();
}

void WorkerEngine::resume(std::vector<LaneSetup> lanes, const stream::Resumption& resumption) {
  const std::lock_guard threads_lock(threads_mutex_);
  std::vector<std::shared_ptr<PendingOperation>> operations;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    for (const stream::Operation& sent : log_->resume(resumption)) {
      std::shared_ptr<PendingOperation>& operation = under_way_[sent.number];
      if (!operation) {
        operation = std::make_shared<PendingOperation>(sent, now(), never);
        operation->called = false;
      }
      operation->sent = sent;
      operation->lanes_remaining = static_cast<std::uint32_t>(lanes.size());
      operations.push_back(operation);
    }
  }
  suspended_ = false;
  start(std::move(lanes));
  for (const auto& operation : operations) {
    for (const auto& thread : threads_) thread->submit(operation);
  }
}

void WorkerEngine::lane_done(std::uint64_t number) {
  std::shared_ptr<PendingOperation> operation;
  {
    const std::lock_guard lock(mutex_);
    const auto found = under_way_.find(number);
    if (found == under_way_.end() || --found->second->lanes_remaining != 0) return;
    operation = std::move(found->second);
    under_way_.erase(found);
    if (log_) log_->finish(number);
    if (operation->called) ++completed_;
  }
  operation->end(nullptr);
}

void WorkerEngine::fail(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::make_shared<const Error>(error);
  }
  {
    const std::lock_guard lock(threads_mutex_);
    for (const auto& thread : threads_) thread->abandon();
  }
  std::map<std::uint64_t, std::shared_ptr<PendingOperation>> ended;
  std::shared_ptr<const Error> failure;
  {
    const std::lock_guard lock(mutex_);
    ended.swap(under_way_);
    failure = failure_;
  }
  for (const auto& [number, operation] : ended) operation->end(failure);
  // A caller in run() may sleep.
  const std::lock_guard lock(threads_mutex_);
  for (const auto& thread : threads_) thread->wake();
}

std::shared_ptr<const Error> WorkerEngine::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::shared_ptr<PendingOperation> WorkerEngine::most_urgent() const {
  const std::lock_guard lock(mutex_);
  const auto urgent = std::min_element(under_way_.begin(), under_way_.end(),
                                       [](const auto& a, const auto& b) { return a.second->deadline < b.second->deadline; });
  return urgent == under_way_.end() ? nullptr : urgent->second;
}

std::shared_ptr<PendingOperation> WorkerEngine::find(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = under_way_.find(number);
  return found == under_way_.end() ? nullptr : found->second;
}

std::optional<LaneStall> WorkerEngine::oldest_stall() {
  const std::lock_guard lock(threads_mutex_);
  std::optional<LaneStall> oldest;
  for (const auto& thread : threads_) {
    const auto stall = thread->oldest_stall();
    if (stall && (!oldest || std::tie(stall->stall.operation, stall->stall.chunk) <
                                 std::tie(oldest->stall.operation, oldest->stall.chunk))) {
      oldest = stall;
    }
  }
  return oldest;
}

std::uint64_t WorkerEngine::operations_completed() const {
  const std::lock_guard lock(mutex_);
  return completed_;
}

WorkerEngine::Totals WorkerEngine::totals() {
  const std::lock_guard lock(threads_mutex_);
  Totals totals = past_;
  for (const auto& thread : threads_) thread->add_totals(totals);
  return totals;
}

}  // namespace netsum::runtime
