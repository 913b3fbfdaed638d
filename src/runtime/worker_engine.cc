#include "runtime/worker_engine.h"

#include <sched.h>

#include <algorithm>
#include <deque>
#include <thread>
#include <tuple>
#include <utility>

#include "runtime/lateness.h"
#include "runtime/progress_thread.h"
#include "runtime/thread.h"

namespace netsum::runtime {
namespace {

constexpr int batches_per_turn = 64;  // per lane, before the other lanes and the mailbox get their turn
constexpr auto drain_poll = std::chrono::milliseconds(1);

}  // namespace

// The lanes that one thread serves, or a caller in its place. Only whoever has the turn touches their state.
class WorkerEngine::Share final : ProgressThread::Participant {
 public:
  Share(WorkerEngine& engine, std::vector<std::pair<std::uint32_t, LaneSetup>> lanes, std::uint32_t index, bool woken)
      : engine_(engine),
        thread_(ProcessWide::get<ProgressThread>(
            {ProcessWide::Kind::packets, engine.thread_options_.set, index, engine.thread_options_.cpu(index)})),
        busy_poll_(engine.thread_options_.busy_poll, woken) {
    for (auto& [number, setup] : lanes) {
      lanes_.push_back({number, std::move(setup.transport), std::move(setup.worker), {}, false});
    }
    thread_->add(*this);
  }

  ~Share() { thread_->remove(*this); }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;

  void submit(std::shared_ptr<PendingOperation> operation) {
    commands_.post([this, operation = std::move(operation)] {
      for (Lane& lane : lanes_) lane.queue.push_back(operation);
    });
  }

  // Drops every operation; on return nobody touches a caller's memory again.
  void abandon() {
    commands_.call([this] {
      for (Lane& lane : lanes_) {
        lane.worker.reset();
        lane.queue.clear();
      }
    });
  }

  std::optional<LaneStall> oldest_stall() {
    std::optional<LaneStall> oldest;
    commands_.call([&] {
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
    commands_.call([&] {
      for (const Lane& lane : lanes_) all &= !lane.worker || lane.worker->drained();
    });
    return all;
  }

  // A caller's turn: between borrow() and give_back() the caller's thread serves the lanes and the commands. No operation is
  // pending when it begins.
  void borrow() { turn_.lock(); }
  void begin(const std::shared_ptr<PendingOperation>& operation) {
    for (Lane& lane : lanes_) lane.queue.push_back(operation);
  }
  // Does not poll lanes on which the operation has nothing (left).
  bool serve_for_caller() {
    if (commands_.waiting()) commands_.run_all();
    bool any = false;
    for (Lane& lane : lanes_) any |= lane.busy() && serve(lane);
    return any;
  }
  void wake_by(const Wakeup& wakeup) {
    commands_.hand_over([&wakeup] { wakeup.notify(); });
  }
  void add_descriptors_for_caller(std::vector<pollfd>& descriptors) const {
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
    commands_.hand_over([this] { thread_->notify(); });
  }
  void wake() {
    commands_.post([] {});
  }
  [[nodiscard]] ProgressThread& thread() { return *thread_; }

  void add_totals(Totals& totals) {
    commands_.call([&] {
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

  void serve() override {
    const std::unique_lock turn(turn_, std::try_to_lock);
    if (!turn) return;
    if (commands_.waiting()) {
      lent_ = false;
      commands_.run_all();
    }
    if (lent_) return;
    bool any = false;
    for (Lane& lane : lanes_) any |= serve(lane);
    if (any) busy_poll_.found();
  }

  void prepare(ProgressThread::Wait& wait) override {
    const std::unique_lock turn(turn_, std::try_to_lock);
    if (!turn || lent_) return;
    const Time next = next_timeout();
    if (commands_.waiting()) {
      wait.again = true;
    } else if (next != never && busy_poll_.look_again(now())) {
      wait.again = true;
      wait.yields |= busy_poll_.yields();
    } else {
      for (const Lane& lane : lanes_) wait.descriptors.push_back({lane.transport->descriptor(), POLLIN, 0});
      wait.until = std::min(wait.until, busy_poll_.until(next, now()));
    }
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
  const std::shared_ptr<ProgressThread> thread_;
  Commands commands_{[this] { thread_->notify(); }};
  std::mutex turn_;  // held by whoever serves the lanes: the thread, for a moment, or a caller in run()
  std::vector<Lane> lanes_;
  BusyPoll busy_poll_;
  Lateness lateness_;
  Duration busy_{};    // Engine::Totals::busy_nanoseconds
  bool lent_ = false;  // a caller has served the lanes and left no work: the thread need not, until a command comes
};

WorkerEngine::WorkerEngine(std::vector<LaneSetup> lanes, std::uint32_t threads, const ThreadOptions& thread_options,
                           std::function<void(std::uint32_t, const protocol::LaneFailure&)> on_failure,
                           std::optional<stream::OperationLog> log, bool late_ranks)
    : threads_wanted_(threads),
      thread_options_(thread_options),
      on_failure_(std::move(on_failure)),
      log_(std::move(log)),
      late_ranks_(late_ranks) {
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
  std::vector<std::vector<std::pair<std::uint32_t, LaneSetup>>> divided(count);
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    divided[i % count].emplace_back(static_cast<std::uint32_t>(i), std::move(lanes[i]));
  }
  for (std::size_t i = 0; i < count; ++i) {
    shares_.push_back(std::make_unique<Share>(*this, std::move(divided[i]), static_cast<std::uint32_t>(i), woken));
  }
}

WorkerEngine::~WorkerEngine() {
  fail(Error(ErrorCode::closed, "the communicator was closed"));
}

void WorkerEngine::submit(const std::shared_ptr<PendingOperation>& operation) {
  const std::lock_guard shares_lock(shares_mutex_);
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw *failure_;
    under_way_.emplace(operation->operation.number, operation);
    if (log_) operation->sent = log_->issue(operation->operation);
  }
  if (suspended_) return;
  operation->lanes_remaining = lanes_;
  hand_over(operation);
}

// `has_result`: at some rank; the lanes replay it.
void WorkerEngine::hand_over(const std::shared_ptr<PendingOperation>& operation, bool has_result) {
  holding_ = holding_ || (late_ranks_ && operation->waits_for_all && !has_result);
  if (holding_) return;
  for (const auto& share : shares_) share->submit(operation);
}

// All lanes, while a caller serves them. Without a log, the set of shares does not change.
class WorkerEngine::Borrowed {
 public:
  explicit Borrowed(const WorkerEngine& engine) : shares_(engine.shares_) { take(); }
  ~Borrowed() {
    give_back();
    if (wakeup_) shares_.front()->thread().take_back(std::move(wakeup_));
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  // What the caller does meanwhile may wait for others (a lock, another rank), and they for the lanes.
  void without(const std::function<void()>& meanwhile) {
    give_back();
    meanwhile();
    take();
  }

  // The caller is about to sleep: this is readable once commands wait. woken() when it was.
  [[nodiscard]] int wakes() {
    if (!wakeup_) wakeup_ = shares_.front()->thread().lend_wakeup();
    if (!std::exchange(told_, true)) {
      for (const auto& share : shares_) share->wake_by(*wakeup_);
    }
    return wakeup_->descriptor();
  }
  void woken() { wakeup_->drain(); }

 private:
  void take() {
    for (const auto& share : shares_) share->borrow();
  }
  void give_back() {
    for (const auto& share : shares_) share->give_back();
    told_ = false;
  }

  const std::vector<std::unique_ptr<Share>>& shares_;
  std::unique_ptr<Wakeup> wakeup_;  // once the caller has slept
  bool told_ = false;               // commands go to `wakeup_`
};

bool WorkerEngine::run(const std::shared_ptr<PendingOperation>& operation) {
  std::optional<Borrowed> borrowed;
  {
    const std::lock_guard shares_lock(shares_mutex_);
    {
      const std::lock_guard lock(mutex_);
      if (failure_) throw *failure_;
      if (log_ || !lendable_ || !under_way_.empty()) return false;
      under_way_.emplace(operation->operation.number, operation);
    }
    operation->lanes_remaining = lanes_;
    borrowed.emplace(*this);
  }
  const DefaultFloatingPoint environment;
  for (const auto& share : shares_) share->begin(operation);
  while (true) {
    bool found = false;
    for (const auto& share : shares_) found |= share->serve_for_caller();
    if (operation->done()) break;
    if (!found && operation->meanwhile) {
      borrowed->without(operation->meanwhile);
      if (operation->done()) break;
    }
    if (found) {
      caller_poll_.found();
    } else if (caller_poll_.look_again(now())) {
      if (caller_poll_.yields()) sched_yield();
    } else {
      caller_descriptors_.assign(1, {borrowed->wakes(), POLLIN, 0});
      Time next = operation->meanwhile ? now() + meanwhile_every : never;
      for (const auto& share : shares_) {
        share->add_descriptors_for_caller(caller_descriptors_);
        next = std::min(next, share->next_timeout());
      }
      wait_for(caller_descriptors_, caller_poll_.until(next, now()));
      if (caller_descriptors_.front().revents != 0) borrowed->woken();
    }
  }
  return true;
}

void WorkerEngine::drain(const std::function<bool()>& enough) {
  while (true) {
    {
      const std::lock_guard lock(shares_mutex_);
      const bool idle = [this] {  // or else another rank may need a replay
        const std::lock_guard inner(mutex_);
        return under_way_.empty();
      }();
      if (idle && std::all_of(shares_.begin(), shares_.end(), [](const auto& share) { return share->drained(); })) return;
    }
    if (enough()) return;
    std::this_thread::sleep_for(drain_poll);
  }
}

void WorkerEngine::suspend() {
  const std::lock_guard lock(shares_mutex_);
  suspended_ = true;
  for (const auto& share : shares_) {
    share->add_totals(past_);
    share->abandon();
  }
  past_.protocol.window = 0;
  shares_.clear();
}

stream::Progress WorkerEngine::progress() const {
  const std::lock_guard lock(mutex_);
  return log_->progress();
}

WorkerEngine::Pace WorkerEngine::pace() const {
  const std::lock_guard lock(mutex_);
  const auto first =
      std::find_if(under_way_.begin(), under_way_.end(), [](const auto& entry) { return entry.second->called; });
  if (first == under_way_.end()) return {std::nullopt, log_->next_issue(), free_since_};
  return {first->second->waits_for_all ? now() : first->second->issued, first->first, free_since_};
}

std::uint64_t WorkerEngine::behind() const {
  const std::lock_guard lock(mutex_);
  return log_ ? log_->behind() : 0;
}

void WorkerEngine::resume(std::vector<LaneSetup> lanes, const stream::Resumption& resumption, bool late_ranks) {
  const std::lock_guard shares_lock(shares_mutex_);
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
  suspended_ = holding_ = false;
  late_ranks_ = late_ranks;
  start(std::move(lanes));
  for (const auto& operation : operations) hand_over(operation, resumption.replays.contains(operation->operation.number));
}

void WorkerEngine::lane_done(std::uint64_t number) {
  std::shared_ptr<PendingOperation> operation;
  {
    const std::lock_guard lock(mutex_);
    const auto found = under_way_.find(number);
    if (found == under_way_.end() || --found->second->lanes_remaining != 0) return;
    operation = std::move(found->second);
    under_way_.erase(found);
    if (log_) operation->summed = log_->finish(number);
    if (operation->called) ++completed_;
    if (operation->called && log_) free_since_ = now();
  }
  operation->end(nullptr);
}

void WorkerEngine::fail(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::make_shared<const Error>(error);
  }
  {
    const std::lock_guard lock(shares_mutex_);
    for (const auto& share : shares_) share->abandon();
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
  const std::lock_guard lock(shares_mutex_);
  for (const auto& share : shares_) share->wake();
}

std::shared_ptr<const Error> WorkerEngine::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::shared_ptr<PendingOperation> WorkerEngine::most_urgent() const {
  const std::lock_guard lock(mutex_);
  const auto urgent = std::min_element(under_way_.begin(), under_way_.end(),
                                       [](const auto& a, const auto& b) { return a.second->deadline < b.second->deadline; });
  return urgent == under_way_.end() || !urgent->second->called ? nullptr : urgent->second;
}

std::shared_ptr<PendingOperation> WorkerEngine::find(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = under_way_.find(number);
  return found == under_way_.end() ? nullptr : found->second;
}

std::optional<LaneStall> WorkerEngine::oldest_stall() {
  const std::lock_guard lock(shares_mutex_);
  std::optional<LaneStall> oldest;
  for (const auto& share : shares_) {
    const auto stall = share->oldest_stall();
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
  const std::lock_guard lock(shares_mutex_);
  Totals totals = past_;
  for (const auto& share : shares_) share->add_totals(totals);
  return totals;
}

}  // namespace netsum::runtime
