#include "sequencer.h"

#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "bindings/staging/staged_reducer.h"
#include "routes.h"
#include "torch_device.h"

namespace netsum::torch_backend {
namespace {

using Clock = std::chrono::steady_clock;
using staging::Staged;

constexpr std::chrono::microseconds pause{20};  // between looks at a device: it has no way to wake a thread

class SumNetwork final : public staging::Network {
 public:
  explicit SumNetwork(Sequencer::Sum sum) : sum_(std::move(sum)) {}
  [[nodiscard]] std::unique_ptr<Pending> all_reduce(TensorView inout, ReduceOp op) override {
    return staging::pending(sum_(inout, op));
  }

 private:
  const Sequencer::Sum sum_;
};

// What one device does for the group.
struct Stage {
  Stage(c10::Device at, staging::Network& network)
      : place(at), device(at), out(device.begin_stream()), in(device.begin_stream()), reducer(device, network, {}) {}

  const c10::Device place;
  TorchDevice device;
  const TorchDevice::Stream out, in;  // of calls that are not staged in chunks
  staging::StagedReducer reducer;
};

// An event at a device; forgotten with this object.
struct Mark {
  Mark(Stage& at, TorchDevice::Event mark) : stage(&at), event(mark) {}
  Mark(Mark&& from) noexcept : stage(from.stage), event(std::exchange(from.event, 0)) {}
  Mark& operator=(Mark&& from) noexcept {
    std::swap(stage, from.stage);
    std::swap(event, from.event);
    return *this;
  }
  ~Mark() {
    if (event != 0) stage->device.forget(event);
  }
  [[nodiscard]] bool has_happened() const { return stage->device.has_happened(event); }

  Stage* stage;
  TorchDevice::Event event;
};

bool have_happened(const std::vector<Mark>& marks) {
  return std::all_of(marks.begin(), marks.end(), [](const Mark& mark) { return mark.has_happened(); });
}

// An event on the current stream of each device.
struct Ready {
  c10::Device place;
  c10::Event event;
};

std::vector<Ready> ready_at(const std::vector<c10::Device>& devices) {
  std::vector<Ready> ready;
  for (const c10::Device device : devices) {
    c10::Event event(device.type());
    event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    ready.push_back({device, std::move(event)});
  }
  return ready;
}

struct Reduction {
  std::vector<at::Tensor> tensors;
  ReduceOp op;
  std::function<void()> begun;
};

struct HostCall {
  HostTwins twins;
  bool behind_all;
  Sequencer::Issue issue;
};

struct Entry {
  std::variant<Reduction, HostCall> what;
  c10::intrusive_ptr<GroupWork> work;
  std::vector<Ready> ready;  // when its inputs are written
};

// An entry whose turn has not come; its inputs are copied out.
struct Turn {
  Entry entry;
  std::vector<Mark> copied;  // a call's inputs; a reduction's are written
};

// A reduction whose chunks are on their way.
struct Reducing {
  Stage* stage;
  std::vector<Mark> ready;
  std::vector<at::Tensor> tensors;
  std::vector<std::shared_ptr<Staged>> staged;
  c10::intrusive_ptr<GroupWork> work;  // until it has ended
};

// A call that has ended at the host; `error`: it failed.
struct Returned {
  HostTwins twins;
  c10::intrusive_ptr<GroupWork> work;
  std::exception_ptr error;
};

// Twins from and to which a device may still copy.
struct Retired {
  HostTwins twins;
  std::vector<Mark> marks;
};

std::exception_ptr pointer_to(const Error& error) {
  return std::make_exception_ptr(error);
}

}  // namespace

// Its members are the thread's, but for those that the mutex guards.
class Sequencer::Line : public std::enable_shared_from_this<Line> {
 public:
  Line(Sum sum, CallbackThreads& threads, std::chrono::milliseconds patience)
      : network_(std::move(sum)), threads_(threads), patience_(patience) {}

  void push(Entry entry) {
    const std::lock_guard lock(mutex_);
    if (closed_) throw Error(ErrorCode::closed, "the process group was destroyed");
    arrived_.push_back(std::move(entry));
    ++unissued_;
    idle_ = false;
    wake_.notify_all();
  }

  void run() {
    std::unique_lock lock(mutex_);
    last_progress_ = Clock::now();
    while (true) {
      std::deque<Entry> arrived = std::exchange(arrived_, {});
      std::deque<Returned> returned = std::exchange(returned_, {});
      const bool closed = closed_;
      lock.unlock();
      bool anything = !arrived.empty() || !returned.empty();
      for (Entry& each : arrived) take(std::move(each));
      for (Returned& each : returned) finish(std::move(each));
      if (closed) fail(Error(ErrorCode::closed, "the process group was destroyed"));
      anything = step() || anything;
      const bool nothing_left =
          turns_.empty() && reducing_.empty() && retired_.empty() && outside_ == 0 && stages_are_idle();
      look_at_time(anything);
      lock.lock();
      idle_ = nothing_left && arrived_.empty() && returned_.empty();
      if (closed_ && arrived_.empty() && turns_.empty() && reducing_.empty() && stages_are_idle()) return;
      if (idle_ || (!anything && outside_only())) {
        wake_.wait(lock, [this] { return closed_ || !arrived_.empty() || !returned_.empty(); });
        last_progress_ = Clock::now();
      } else if (!anything) {
        wake_.wait_for(lock, pause);
      }
    }
  }

  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    wake_.notify_all();
  }

  [[nodiscard]] bool has_issued_all() const { return unissued_.load() == 0; }
  [[nodiscard]] bool is_idle() const {
    const std::lock_guard lock(mutex_);
    return idle_;
  }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_.load(); }

 private:
  Stage& stage_at(c10::Device place) {
    for (Stage& stage : stages_) {
      if (stage.place == place) return stage;
    }
    return stages_.emplace_back(place, network_);
  }

  [[nodiscard]] bool stages_are_idle() const {
    return std::all_of(stages_.begin(), stages_.end(), [](const Stage& stage) { return stage.reducer.is_idle(); });
  }
  // Calls that were issued are on their way, and nothing else is: one of them will wake the thread.
  [[nodiscard]] bool outside_only() const {
    return turns_.empty() && reducing_.empty() && retired_.empty() && stages_are_idle();
  }

  // Begins to copy what a call reads.
  void take(Entry entry) {
    try {
      if (failure_) throw Error(*failure_);
      std::vector<Mark> marks;
      for (Ready& each : entry.ready) {
        Stage& stage = stage_at(each.place);
        marks.emplace_back(stage, TorchDevice::adopt(std::move(each.event)));
      }
      if (const auto* const call = std::get_if<HostCall>(&entry.what)) {
        for (Mark& mark : marks) {
          Stage& stage = *mark.stage;
          stage.device.wait(stage.out, mark.event);
          const c10::StreamGuard current(stage.device.stream_of(stage.out));
          call->twins.copy_out(stage.place);
          mark = Mark(stage, stage.device.record(stage.out));
        }
        bytes_ += call->twins.bytes();
      }
      turns_.push_back({std::move(entry), std::move(marks)});
    } catch (...) {
      const std::exception_ptr error = std::current_exception();
      if (auto* const call = std::get_if<HostCall>(&entry.what)) keep(std::move(call->twins), &Stage::out);
      --unissued_;
      end(entry.work, error);
    }
  }

  // Of a call that failed while the device may still copy from or to them, on those streams.
  void keep(HostTwins twins, const TorchDevice::Stream Stage::*stream) {
    try {
      std::vector<Mark> marks;
      for (const c10::Device place : twins.devices()) {
        Stage& stage = stage_at(place);
        marks.emplace_back(stage, stage.device.record(stage.*stream));
      }
      retired_.push_back({std::move(twins), std::move(marks)});
    } catch (...) {
      keep_for_ever(std::move(twins));
    }
  }
  // The device does not say until when it uses them.
  static void keep_for_ever(HostTwins twins) { static_cast<void>(new HostTwins(std::move(twins))); }

  bool step() {
    bool anything = false;
    try {
      for (Stage& stage : stages_) anything = stage.reducer.progress() || anything;
      anything = end_reductions() || anything;
      while (!turns_.empty() && issue_next()) anything = true;
      anything = free_retired() || anything;
    } catch (const Error& error) {
      fail(error);
      anything = true;
    }
    return anything;
  }

  bool free_retired() {
    bool anything = false;
    for (Retired& each : std::exchange(retired_, {})) {
      try {
        if (have_happened(each.marks)) {
          anything = true;
        } else {
          retired_.push_back(std::move(each));
        }
      } catch (const Error& error) {
        keep_for_ever(std::move(each.twins));
        fail(error);
        anything = true;
      }
    }
    return anything;
  }

  // Whether the reductions of all stages but `but` have been issued whole.
  bool reductions_are_issued(const Stage* but) const {
    return std::all_of(stages_.begin(), stages_.end(),
                       [but](const Stage& stage) { return &stage == but || stage.reducer.has_issued_all(); });
  }

  bool issue_next() {
    Turn& turn = turns_.front();
    if (auto* const reduction = std::get_if<Reduction>(&turn.entry.what)) {
      Stage& stage = *turn.copied.front().stage;
      if (!reductions_are_issued(&stage)) return false;
      Reducing next{&stage, std::move(turn.copied), std::move(reduction->tensors), {}, turn.entry.work};
      const ReduceOp op = reduction->op;
      reduction->begun();
      turns_.pop_front();
      begin(reducing_.emplace_back(std::move(next)), op);
      return true;
    }
    HostCall& call = std::get<HostCall>(turn.entry.what);
    if (!reductions_are_issued(nullptr) || !have_happened(turn.copied)) return false;
    if (call.behind_all && !(reducing_.empty() && retired_.empty() && outside_ == 0)) return false;
    Turn issued = std::move(turn);
    turns_.pop_front();
    issue(std::move(std::get<HostCall>(issued.entry.what)), issued.entry.work);
    --unissued_;
    return true;
  }

  void begin(Reducing& reducing, ReduceOp op) {
    try {
      for (const at::Tensor& tensor : reducing.tensors) {
        bytes_ += tensor.nbytes();
        const auto elements = static_cast<std::size_t>(tensor.numel());
        reducing.staged.push_back(reducing.stage->reducer.all_reduce(
            static_cast<std::byte*>(tensor.data_ptr()), elements, *switch_dtype(tensor), op, reducing.ready.front().event));
      }
    } catch (...) {  // an earlier one has failed
      --unissued_;
      end(std::exchange(reducing.work, {}), std::current_exception());
    }
  }

  void issue(HostCall call, const c10::intrusive_ptr<GroupWork>& work) {
    try {
      const WorkPtr inner = call.issue(call.twins);
      ++outside_;
      inner->getFuture()->addCallback(
          [line = weak_from_this(), twins = std::move(call.twins), work](c10::ivalue::Future& ended) {
            const std::exception_ptr error = ended.hasError() ? ended.exception_ptr() : nullptr;
            if (const auto still = line.lock()) {
              still->come_back({twins, work, error});
            } else {
              work->fail(error ? error : pointer_to(Error(ErrorCode::closed, "the process group was destroyed")));
            }
          });
    } catch (...) {
      end(work, std::current_exception());
    }
  }

  void come_back(Returned returned) {
    const std::lock_guard lock(mutex_);
    returned_.push_back(std::move(returned));
    wake_.notify_all();
    if (closed_) {  // the thread may be gone
      for (Returned& each : returned_) {
        end(each.work, pointer_to(Error(ErrorCode::closed, "the process group was destroyed")));
      }
      returned_.clear();
    }
  }

  // Copies in what a call has written, and ends its work behind the copies.
  void finish(Returned returned) {
    --outside_;
    std::exception_ptr error = returned.error;
    std::vector<c10::Stream> streams;
    std::vector<Mark> marks;
    try {
      if (error == nullptr) {
        for (const c10::Device place : returned.twins.devices()) {
          Stage& stage = stage_at(place);
          const c10::Stream stream = stage.device.stream_of(stage.in);
          const c10::StreamGuard current(stream);
          returned.twins.copy_in(place);
          marks.emplace_back(stage, stage.device.record(stage.in));
          streams.push_back(stream);
        }
      }
    } catch (...) {
      error = std::current_exception();
    }
    end(returned.work, error, std::move(streams));
    if (error != nullptr && returned.error == nullptr) {
      keep(std::move(returned.twins), &Stage::in);
    } else if (!marks.empty()) {
      retired_.push_back({std::move(returned.twins), std::move(marks)});
    }
  }

  bool end_reductions() {
    bool anything = false;
    for (Reducing& each : reducing_) {
      if (each.work && all_of(each, [](const Staged& staged) { return staged.is_enqueued() || staged.has_ended(); })) {
        end_work_of(each);
        anything = true;
      }
    }
    const auto before = reducing_.size();
    reducing_.remove_if([this](const Reducing& each) {
      return !each.work && all_of(each, [](const Staged& staged) { return staged.has_ended(); });
    });
    return anything || reducing_.size() != before;
  }

  template <class Predicate>
  static bool all_of(const Reducing& reducing, Predicate predicate) {
    return std::all_of(reducing.staged.begin(), reducing.staged.end(), [&](const auto& each) { return predicate(*each); });
  }

  void end_work_of(Reducing& each) {
    std::exception_ptr error;
    for (const auto& staged : each.staged) {
      if (staged->error()) error = pointer_to(*staged->error());
    }
    std::vector<c10::Stream> streams;
    try {
      if (!error) {
        for (const auto& staged : each.staged) staged->wait_on(each.stage->in);
        streams.push_back(each.stage->device.stream_of(each.stage->in));
      }
    } catch (...) {
      error = std::current_exception();
    }
    --unissued_;
    end(std::exchange(each.work, {}), error, std::move(streams));
  }

  // On a thread where callbacks may wait; `streams` are current then, so that the future's events come behind their copies.
  void end(c10::intrusive_ptr<GroupWork> work, std::exception_ptr error, std::vector<c10::Stream> streams = {}) {
    threads_.post([work = std::move(work), error, streams = std::move(streams)] {
      if (error) return work->fail(error);
      const c10::MultiStreamGuard current(streams);
      work->complete();
    });
  }

  void fail(const Error& error) {
    if (!failure_) failure_ = error;
    for (Stage& stage : stages_) stage.reducer.fail(*failure_);
    for (Turn& turn : turns_) {
      --unissued_;
      end(turn.entry.work, pointer_to(*failure_));
      if (auto* const call = std::get_if<HostCall>(&turn.entry.what)) {  // its inputs may be on their way
        retired_.push_back({std::move(call->twins), std::move(turn.copied)});
      }
    }
    turns_.clear();
  }

  // What the communicator and Gloo do has deadlines of its own, and ends.
  void look_at_time(bool anything) {
    const auto now = Clock::now();
    if (anything || outside_only()) {
      last_progress_ = now;
    } else if (now - last_progress_ > patience_ + grace) {
      const Error error(ErrorCode::deadline, "the device of the tensors has made no progress for " +
                                                 std::to_string(patience_.count()) + " ms, with copies waiting");
      fail(error);
      for (Stage& stage : stages_) stage.reducer.give_up(error);
      for (Retired& each : retired_) keep_for_ever(std::move(each.twins));
      retired_.clear();
    }
  }
  static constexpr std::chrono::seconds grace{5};  // operations' deadlines come first

  SumNetwork network_;
  CallbackThreads& threads_;
  const std::chrono::milliseconds patience_;
  std::list<Stage> stages_;
  std::deque<Turn> turns_;
  std::list<Reducing> reducing_;
  std::vector<Retired> retired_;
  std::size_t outside_ = 0;  // calls that were issued and have not come back
  std::optional<Error> failure_;
  Clock::time_point last_progress_;
  std::atomic<std::uint64_t> unissued_{0};  // calls; a reduction counts until its work has ended
  std::atomic<std::uint64_t> bytes_{0};

  mutable std::mutex mutex_;  // guards the four below
  std::condition_variable wake_;
  std::deque<Entry> arrived_;
  std::deque<Returned> returned_;
  bool closed_ = false, idle_ = true;
};

Sequencer::Sequencer(Sum sum, CallbackThreads& threads, std::chrono::milliseconds patience)
    : line_(std::make_shared<Line>(std::move(sum), threads, patience)), thread_([line = line_] { line->run(); }) {}

Sequencer::~Sequencer() {
  close();
}

void Sequencer::close() {
  line_->close();
  if (thread_.joinable()) thread_.join();
}

bool Sequencer::has_issued_all() const {
  return line_->has_issued_all();
}

bool Sequencer::is_idle() const {
  return line_->is_idle();
}

std::uint64_t Sequencer::bytes() const {
  return line_->bytes();
}

void Sequencer::all_reduce(std::vector<at::Tensor> tensors, ReduceOp op, std::function<void()> begun,
                           c10::intrusive_ptr<GroupWork> work) {
  auto ready = ready_at({tensors.front().device()});
  line_->push({Reduction{std::move(tensors), op, std::move(begun)}, std::move(work), std::move(ready)});
}

void Sequencer::call(HostTwins twins, bool behind_all, Issue issue, c10::intrusive_ptr<GroupWork> work) {
  auto ready = ready_at(twins.devices());
  line_->push({HostCall{std::move(twins), behind_all, std::move(issue)}, std::move(work), std::move(ready)});
}

}  // namespace netsum::torch_backend
