#include "runtime/shared_engine.h"

#include <algorithm>
#include <deque>
#include <thread>
#include <tuple>
#include <utility>

#include "protocol/shared/member.h"
#include "runtime/futex.h"
#include "runtime/thread.h"

namespace netsum::runtime {
namespace {

// The longest futex wait before all state is checked again.
constexpr Duration longest_sleep = std::chrono::milliseconds(10);

// A caller that has something to do while it waits does it after so many looks.
constexpr std::uint32_t looks_between = 64;

// Turns of waiting: polls of memory that is likely to change within a microsecond, then yields to threads that share the
// processor, then sleep.
struct Patience {
  std::uint32_t looks, yields;
};

Patience patience_of(Waiting waiting, bool crowded) {
  if (waiting == Waiting::futex) return {crowded ? 0U : 50U, 0};
  return {crowded ? 0U : 2000U, 1000};
}

MemoryThread::Rest rest_of(Waiting waiting, bool crowded, std::uint32_t turn) {
  const Patience patience = patience_of(waiting, crowded);
  if (turn < patience.looks) return MemoryThread::Rest::look_again;
  if (turn < patience.looks + patience.yields || waiting == Waiting::spin) return MemoryThread::Rest::yield;
  return MemoryThread::Rest::sleep;
}

void publish(Signal& own, std::uint32_t changes) {
  own.changes.store(changes, std::memory_order_seq_cst);
}

}  // namespace

// A part of every long operation, on one thread; lane 0 also has the short operations that must wait their turn.
class SharedEngine::Lane final : MemoryThread::Participant {
 public:
  Lane(SharedEngine& engine, std::uint32_t number, const shared::MemberConfig& config)
      : engine_(engine),
        number_(number),
        thread_(ProcessWide::get<MemoryThread>(
            {ProcessWide::Kind::memory, engine.config_.threads.set, number, engine.config_.threads.cpu(number)})),
        own_(engine.config_.own->lanes[number]),
        others_(config.world_size) {
    std::vector<shared::PeerMemory> peers;
    for (const SharedSegment* const peer : engine.config_.peers) {
      peers.push_back({peer->headers[number].data(), peer->staged[number].bytes.data(), peer->results[number].bytes.data()});
    }
    SharedSegment& own = *engine.config_.own;
    member_.emplace(
        config,
        shared::LaneMemory{own.headers[number].data(), own.staged[number].bytes.data(), own.results[number].bytes.data()},
        std::move(peers));
    thread_->add(*this);
  }

  ~Lane() { thread_->remove(*this); }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void submit(std::shared_ptr<PendingOperation> operation) {
    commands_.post([this, operation = std::move(operation)]() mutable { queue_.push_back(std::move(operation)); });
  }
  void submit_small(std::shared_ptr<PendingOperation> operation) {
    commands_.post([this, operation = std::move(operation)]() mutable { small_.push_back(std::move(operation)); });
  }

  void set_arena(std::uint32_t rank, std::uint32_t arena, std::span<const std::byte> memory) {
    commands_.call([&] {
      if (member_) member_->set_arena(rank, arena, memory);
    });
  }

  // Drops every operation; on return this thread touches no caller's memory again.
  void abandon() {
    commands_.call([this] {
      counted_before_ = count();
      member_.reset();
      queue_.clear();
      small_.clear();
    });
  }

  std::optional<shared::MemberStall> stall() {
    std::optional<shared::MemberStall> stall;
    commands_.call([&] {
      if (!member_) return;
      look();
      stall = member_->stall(others_);
    });
    return stall;
  }

  void add_totals(Totals& totals) {
    commands_.call([&] {
      const Counted counted = count();
      totals.bytes_copied += counted.bytes_copied;
      totals.protocol.underflow += counted.underflow;
    });
  }

 private:
  struct Counted {
    std::uint64_t bytes_copied = 0;
    stream::Underflow underflow;
  };

  // ---- on the thread

  bool serve() override {
    if (commands_.waiting()) commands_.run_all();
    if (!member_) return false;
    if (!step()) return false;
    turn_ = 0;
    return true;
  }

  MemoryThread::Rest rest() override {
    using Rest = MemoryThread::Rest;
    if (!member_) return Rest::nothing_to_wait_for;
    const bool small_waits = !small_.empty() && !small_failed_;
    waits_for_small_alone_ = member_->idle() || member_->failure();
    if (waits_for_small_alone_ && !small_waits) return Rest::nothing_to_wait_for;
    const Rest rest =
        waits_for_small_alone_ ? engine_.rest_of_small(turn_) : rest_of(engine_.config_.waiting, engine_.crowded_, turn_);
    if (!waits_for_small_alone_ && rest == Rest::yield && turn_ % 4096 == 4095) give_reasons();
    ++turn_;
    return rest;
  }

  std::optional<Awaited> before_sleep() override {
    if (waits_for_small_alone_) return engine_.before_sleep_of_small(longest_sleep);
    // Read its futex word before its progress: a change in between ends the wait.
    const auto stall = member_->stall(others_);
    if (!stall || stall->missing.empty()) return std::nullopt;
    const SharedSegment& peer = *engine_.config_.peers[stall->missing.front()];
    const std::atomic<std::uint32_t>& word = peer.lanes[number_].signal.changes;
    const std::uint32_t seen = word.load(std::memory_order_acquire);
    own_.signal.sleeping.store(1, std::memory_order_seq_cst);
    look();
    const auto again = member_->stall(others_);
    if (!again || !again->missing.contains(stall->missing.front()) || word.load(std::memory_order_seq_cst) != seen) {
      return std::nullopt;
    }
    return Awaited{&word, seen, small_.empty() ? longest_sleep : longest_sleep / 10};
  }

  void after_sleep() override {
    if (waits_for_small_alone_) return engine_.after_sleep_of_small();
    own_.signal.sleeping.store(0, std::memory_order_release);
    give_reasons();
  }

  bool step() {
    while (!queue_.empty()) {
      const PendingOperation& next = *queue_.front();
      if (!member_->submit({next.operation, next.place.arena, next.place.offset})) break;
      queue_.pop_front();
    }
    look();
    bool moved = member_->advance(others_);
    show();
    while (const auto number = member_->take_completed()) {
      engine_.lane_done(*number);
      moved = true;
    }
    if (const auto& failure = member_->failure()) engine_.report(number_, *failure);
    return step_small() || moved;
  }

  bool step_small() {
    if (small_.empty() || small_failed_) return false;
    if (!std::exchange(small_posted_, true)) engine_.post_small(small_.front()->operation);
    if (!engine_.finish_small()) {
      if (const auto& failure = engine_.small_.failure()) {
        small_failed_ = true;
        engine_.report(0, *failure);
      }
      return false;
    }
    const std::uint64_t number = small_.front()->operation.number;
    small_.pop_front();
    small_posted_ = false;
    engine_.small_queued_.fetch_sub(1, std::memory_order_release);
    engine_.lane_done(number);
    return true;
  }

  void look() {
    const auto& peers = engine_.config_.peers;
    for (std::uint32_t rank = 0; rank < peers.size(); ++rank) {
      if (rank == engine_.config_.rank) continue;
      const LaneState& state = peers[rank]->lanes[number_];
      others_[rank] = {state.staged.load(std::memory_order_acquire), state.summed.load(std::memory_order_acquire),
                       state.taken.load(std::memory_order_acquire)};
    }
  }

  void show() {
    const shared::Progress& now = member_->progress();
    if (now == shown_) return;
    shown_ = now;
    own_.staged.store(now.staged, std::memory_order_release);
    own_.summed.store(now.summed, std::memory_order_release);
    own_.taken.store(now.taken, std::memory_order_release);
    publish(own_.signal, ++changes_);
    const auto& peers = engine_.config_.peers;
    for (std::uint32_t rank = 0; rank < peers.size(); ++rank) {
      if (rank == engine_.config_.rank) continue;
      if (peers[rank]->lanes[number_].signal.sleeping.load(std::memory_order_seq_cst) != 0) {
        wake_all(own_.signal.changes);
        return;
      }
    }
  }

  void give_reasons() {
    look();
    if (const auto stall = member_->stall(others_)) {
      engine_.look_for_reasons(number_, stall->operation, stall->missing);
    }
  }

  [[nodiscard]] Counted count() const {
    return member_ ? Counted{member_->bytes_copied(), member_->underflow()} : counted_before_;
  }

  SharedEngine& engine_;
  const std::uint32_t number_;
  const std::shared_ptr<MemoryThread> thread_;
  Commands commands_{[this] { thread_->notify(); }};
  LaneState& own_;
  std::uint32_t turn_ = 0;  // since anything moved
  bool waits_for_small_alone_ = false;
  std::uint32_t changes_ = 0;
  shared::Progress shown_;
  std::vector<shared::Progress> others_;
  std::optional<shared::Member> member_;  // none once abandoned
  std::deque<std::shared_ptr<PendingOperation>> queue_, small_;
  bool small_posted_ = false, small_failed_ = false;
  Counted counted_before_;
};

namespace {

std::vector<const shared::SmallSlot*> slots_of(const std::vector<const SharedSegment*>& peers) {
  std::vector<const shared::SmallSlot*> slots;
  for (const SharedSegment* const peer : peers) slots.push_back(peer->small_slots.data());
  return slots;
}

}  // namespace

SharedEngine::SharedEngine(SharedEngineConfig config, OnFailure on_failure)
    : config_(std::move(config)),
      on_failure_(std::move(on_failure)),
      small_(config_.rank, config_.world_size, config_.own->small_slots.data(), slots_of(config_.peers)),
      posted_(config_.world_size) {
  // All ranks read the same values.
  std::uint32_t threads = most_shared_lanes, processors = ~0U;
  for (const SharedSegment* const peer : config_.peers) {
    threads = std::clamp(shared::once(peer->threads), 1U, threads);
    processors = std::clamp(shared::once(peer->processors), 1U, processors);
  }
  lanes_count_ = threads;
  crowded_ = std::uint64_t{lanes_count_} * config_.world_size > processors;
  shared::MemberConfig member;
  member.rank = config_.rank;
  member.world_size = config_.world_size;
  member.lanes = lanes_count_;
  member.rotate = !crowded_;
  const Rows rows = rows_of(crowded_);
  member.window = rows.window;
  member.row_bytes = rows.bytes;
  for (std::uint32_t lane = 0; lane < lanes_count_; ++lane) {
    member.lane = lane;
    lanes_.push_back(std::make_unique<Lane>(*this, lane, member));
  }
}

SharedEngine::~SharedEngine() {
  fail(Error(ErrorCode::closed, "the communicator was closed"));
}

void SharedEngine::check_failed() const {
  if (!failed_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  throw Error(*failure_);
}

void SharedEngine::set_arena(std::uint32_t rank, std::uint32_t arena, std::span<const std::byte> memory) {
  for (const auto& lane : lanes_) lane->set_arena(rank, arena, memory);
}

Arenas::Place SharedEngine::place_of(const stream::Operation& operation) const {
  const std::size_t width = operation.collective == stream::Collective::broadcast ? 1 : bytes_of(operation.dtype);
  return config_.arenas->find(operation.data, operation.elements * width, width);
}

bool SharedEngine::is_small(const stream::Operation& operation) const {
  return shared::is_small(operation, config_.world_size);
}

void SharedEngine::show_call(const stream::Operation& operation) {
  ShownCall& shown = config_.own->calls[operation.number % calls_shown];
  shown.number_and_one.store(0, std::memory_order_relaxed);
  shown.signature.store(stream::signature_of(operation, 0), std::memory_order_release);
  shown.number_and_one.store(operation.number + 1, std::memory_order_release);
}

void SharedEngine::submit(const std::shared_ptr<PendingOperation>& operation) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw Error(*failure_);
    under_way_.emplace(operation->operation.number, operation);
    const bool small = is_small(operation->operation);
    operation->lanes_remaining = small ? 1 : lanes_count_;
    if (!small && config_.arenas) operation->place = place_of(operation->operation);
    if (small) small_queued_.fetch_add(1, std::memory_order_relaxed);
  }
  show_call(operation->operation);
  if (is_small(operation->operation)) return lanes_.front()->submit_small(operation);
  for (const auto& lane : lanes_) lane->submit(operation);
}

void SharedEngine::lane_done(std::uint64_t number) {
  std::shared_ptr<PendingOperation> operation;
  {
    const std::lock_guard lock(mutex_);
    const auto found = under_way_.find(number);
    if (found == under_way_.end() || --found->second->lanes_remaining != 0) return;
    operation = std::move(found->second);
    under_way_.erase(found);
  }
  completed_.fetch_add(1, std::memory_order_relaxed);
  operation->end(nullptr);
}

// ---- short operations

void SharedEngine::post_small(const stream::Operation& operation) {
  small_.post(operation);
  SmallState& own = config_.own->small;
  own.posted.store(small_.posted(), std::memory_order_release);
  own.changes.store(static_cast<std::uint32_t>(small_.posted()), std::memory_order_seq_cst);
  for (std::uint32_t rank = 0; rank < config_.world_size; ++rank) {
    if (rank != config_.rank && config_.peers[rank]->small.sleeping.load(std::memory_order_seq_cst) != 0) {
      return wake_all(own.changes);
    }
  }
}

bool SharedEngine::finish_small() {
  for (std::uint32_t rank = 0; rank < config_.world_size; ++rank) {
    if (rank != config_.rank) posted_[rank] = config_.peers[rank]->small.posted.load(std::memory_order_acquire);
  }
  if (!small_.finish(posted_)) return false;
  small_examined_.store(small_.underflow().examined, std::memory_order_relaxed);
  small_underflowed_.store(small_.underflow().underflowed, std::memory_order_relaxed);
  return true;
}

RankSet SharedEngine::small_missing() const {
  RankSet missing;
  const std::uint64_t own = config_.own->small.posted.load(std::memory_order_acquire);
  for (std::uint32_t rank = 0; rank < config_.world_size; ++rank) {
    if (rank == config_.rank) continue;
    if (config_.peers[rank]->small.posted.load(std::memory_order_acquire) < own) missing.insert(rank);
  }
  return missing;
}

MemoryThread::Rest SharedEngine::rest_of_small(std::uint32_t turn) const {
  return rest_of(config_.waiting, config_.world_size > 2 || crowded_, turn);
}

std::optional<Awaited> SharedEngine::before_sleep_of_small(Duration longest) {
  const RankSet missing = small_missing();
  if (missing.empty()) return std::nullopt;
  const SmallState& peer = config_.peers[missing.front()]->small;
  const std::uint32_t seen = peer.changes.load(std::memory_order_acquire);
  config_.own->small.sleeping.store(1, std::memory_order_seq_cst);
  if (!small_missing().contains(missing.front()) || peer.changes.load(std::memory_order_seq_cst) != seen)
    return std::nullopt;
  return Awaited{&peer.changes, seen, longest};
}

void SharedEngine::after_sleep_of_small() {
  config_.own->small.sleeping.store(0, std::memory_order_release);
}

void SharedEngine::wait_for_small(std::uint32_t turn, Duration longest) {
  switch (rest_of_small(turn)) {
    case MemoryThread::Rest::look_again:
      return relax();
    case MemoryThread::Rest::yield:
      return std::this_thread::yield();
    case MemoryThread::Rest::sleep:
    case MemoryThread::Rest::nothing_to_wait_for:
      break;
  }
  if (const auto awaited = before_sleep_of_small(longest)) wait_on(*awaited->word, awaited->seen, awaited->longest);
  after_sleep_of_small();
}

bool SharedEngine::run(const std::shared_ptr<PendingOperation>& pending) {
  const stream::Operation& operation = pending->operation;
  if (!is_small(operation) || small_queued_.load(std::memory_order_acquire) != 0) return false;
  check_failed();
  const DefaultFloatingPoint environment;
  show_call(operation);
  post_small(operation);
  // Poll before the first sleep: no deadline is enforced until the operation is registered as pending.
  const Patience patience = patience_of(config_.waiting, config_.world_size > 2 || crowded_);
  const std::uint32_t soon = patience.looks + patience.yields;
  for (std::uint32_t turn = 0; turn < soon; ++turn) {
    if (finish_small()) {
      completed_.fetch_add(1, std::memory_order_relaxed);
      return true;
    }
    if (small_.failure()) break;
    if (pending->meanwhile && turn % looks_between == looks_between - 1) pending->meanwhile();
    wait_for_small(turn, longest_sleep);
  }
  // A rank is late or has failed.
  pending->lanes_remaining = 1;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw Error(*failure_);
    under_way_.emplace(operation.number, pending);
  }
  if (config_.waits) config_.waits(pending->deadline);
  while (!pending->done()) {
    if (!small_.failure() && finish_small()) {
      lane_done(operation.number);
      break;
    }
    if (const auto& failure = small_.failure()) report(0, *failure);
    look_for_reasons(0, operation.number, small_missing());
    if (small_.failure()) {
      pending->wait();  // the monitor was notified, and ends the operation with the error
    } else {
      if (pending->meanwhile) pending->meanwhile();
      wait_for_small(soon, pending->meanwhile ? meanwhile_every : longest_sleep);
    }
  }
  return true;
}

// ---- failures

void SharedEngine::report(std::uint32_t lane, const shared::MemberFailure& failure) {
  if (reported_.exchange(true)) return;
  ShownFailure& shown = config_.own->failure;
  shown.operation.store(failure.operation, std::memory_order_relaxed);
  shown.first_rank.store(failure.first_rank, std::memory_order_relaxed);
  shown.second_rank.store(failure.second_rank, std::memory_order_relaxed);
  shown.valid.store(1, std::memory_order_release);
  on_failure_(lane, {protocol::LaneFailure::Kind::mismatch, failure.operation, failure.first_rank, failure.second_rank, {}});
}

void SharedEngine::look_for_reasons(std::uint32_t lane, std::uint64_t operation, const RankSet& missing) {
  const ShownCall& own = config_.own->calls[operation % calls_shown];
  for (std::uint32_t rank = 0; rank < config_.world_size; ++rank) {
    if (rank == config_.rank) continue;
    const ShownFailure& failure = config_.peers[rank]->failure;
    if (failure.valid.load(std::memory_order_acquire) != 0) {
      return report(lane, {failure.operation.load(std::memory_order_relaxed),
                           failure.first_rank.load(std::memory_order_relaxed) % config_.world_size,
                           failure.second_rank.load(std::memory_order_relaxed) % config_.world_size});
    }
    const ShownCall& other = config_.peers[rank]->calls[operation % calls_shown];
    if (!missing.contains(rank) || other.number_and_one.load(std::memory_order_acquire) != operation + 1) continue;
    const std::uint32_t signature = other.signature.load(std::memory_order_acquire);
    if (other.number_and_one.load(std::memory_order_acquire) == operation + 1 &&
        own.number_and_one.load(std::memory_order_acquire) == operation + 1 &&
        signature != own.signature.load(std::memory_order_acquire)) {
      return report(lane, {operation, config_.rank, rank});
    }
  }
}

void SharedEngine::fail(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::make_shared<const Error>(error);
    failed_.store(true, std::memory_order_release);
  }
  for (const auto& lane : lanes_) lane->abandon();
  std::map<std::uint64_t, std::shared_ptr<PendingOperation>> ended;
  std::shared_ptr<const Error> failure;
  {
    const std::lock_guard lock(mutex_);
    ended.swap(under_way_);
    failure = failure_;
  }
  for (const auto& [number, operation] : ended) operation->end(failure);
}

void SharedEngine::drain(const std::function<bool()>&) {
  // An operation that has ended needs this rank no more: the other ranks keep its memory mapped.
}

std::shared_ptr<const Error> SharedEngine::failure() const {
  if (!failed_.load(std::memory_order_acquire)) return nullptr;
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::shared_ptr<PendingOperation> SharedEngine::most_urgent() const {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<PendingOperation> urgent;
  for (const auto& [number, operation] : under_way_) {
    if (!urgent || operation->deadline < urgent->deadline) urgent = operation;
  }
  return urgent;
}

std::shared_ptr<PendingOperation> SharedEngine::find(std::uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const auto found = under_way_.find(number);
  return found == under_way_.end() ? nullptr : found->second;
}

std::optional<LaneStall> SharedEngine::oldest_stall() {
  std::shared_ptr<PendingOperation> oldest;
  {
    const std::lock_guard lock(mutex_);
    if (under_way_.empty()) return std::nullopt;
    oldest = under_way_.begin()->second;
  }
  if (is_small(oldest->operation)) {
    return LaneStall{0, {oldest->operation.number, 0, small_missing(), now()}};
  }
  std::optional<LaneStall> found;
  for (std::uint32_t lane = 0; lane < lanes_count_; ++lane) {
    const auto stall = lanes_[lane]->stall();
    if (!stall || stall->missing.empty()) continue;
    if (found && std::tie(found->stall.operation, found->stall.chunk) <= std::tie(stall->operation, stall->row)) continue;
    found = LaneStall{lane, {stall->operation, static_cast<std::uint32_t>(stall->row), stall->missing, now()}};
  }
  return found;
}

std::uint64_t SharedEngine::operations_completed() const {
  return completed_.load(std::memory_order_relaxed);
}

Engine::Totals SharedEngine::totals() {
  Totals totals;
  for (const auto& lane : lanes_) lane->add_totals(totals);
  totals.protocol.underflow +=
      {small_examined_.load(std::memory_order_relaxed), small_underflowed_.load(std::memory_order_relaxed)};
  return totals;
}

}  // namespace netsum::runtime
