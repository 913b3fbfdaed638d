#include "bindings/staging/staged_reducer.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

namespace netsum::staging {
namespace {

class Sum final : public Network::Pending {
 public:
  explicit Sum(Work work) : work_(std::move(work)) {}
  [[nodiscard]] bool done() const override { return work_.done(); }
  void finish() override { work_.wait(); }

 private:
  Work work_;
};

// Memory that a device may use until the process ends.
void keep_for_ever(const std::shared_ptr<std::byte>& memory) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::shared_ptr<std::byte>>;
  const std::lock_guard lock(mutex);
  kept.push_back(memory);
}

}  // namespace

std::unique_ptr<Network::Pending> pending(Work work) {
  return std::make_unique<Sum>(std::move(work));
}

std::unique_ptr<Network::Pending> CommunicatorNetwork::all_reduce(TensorView inout, ReduceOp op) {
  return pending(communicator_.all_reduce_async(inout, op));
}

void Staged::wait_on(Device::Stream stream) const {
  for (const Device::Event event : finished_) device_.wait(stream, event);
}

Staged::~Staged() {
  for (const Device::Event event : finished_) device_.forget(event);
}

StagedReducer::StagedReducer(Device& device, Network& network, const StagingConfig& config)
    : device_(device), network_(network), config_(config) {
  if (config.chunk_bytes == 0 || config.chunk_bytes % 16 != 0 || config.buffers == 0 || config.lanes == 0) {
    throw Error(ErrorCode::bad_argument, "staging needs buffers of a multiple of 16 bytes, and a lane");
  }
  memory_ = device_.pinned(config.chunk_bytes * config.buffers);
  ring_.resize(config.buffers);
  for (std::uint32_t each = 0; each < config.lanes; ++each) {
    outward_.push_back(device_.begin_stream());
    inward_.push_back(device_.begin_stream());
  }
}

StagedReducer::~StagedReducer() {
  if (!is_idle()) keep_for_ever(memory_);
  for (const Device::Stream each : outward_) device_.end_stream(each);
  for (const Device::Stream each : inward_) device_.end_stream(each);
}

std::shared_ptr<Staged> StagedReducer::all_reduce(std::byte* data, std::size_t elements, DType dtype, ReduceOp op,
                                                  Device::Event ready) {
  if (failure_) throw Error(*failure_, std::string("staging failed earlier: ") + failure_->what());
  if (data == nullptr && elements != 0) throw Error(ErrorCode::bad_argument, "all_reduce at a null pointer");
  std::shared_ptr<Staged> staged(new Staged(device_));
  staged->data_ = data;
  staged->bytes_ = elements * bytes_of(dtype);
  staged->dtype_ = dtype;
  staged->op_ = op;
  staged->ready_ = ready;
  if (staged->bytes_ == 0) {
    staged->enqueued_ = staged->ended_ = true;
  } else {
    waiting_.push_back(staged);
  }
  return staged;
}

// From the end of a chunk's way to its beginning, so that what becomes free is used at once.
bool StagedReducer::progress() {
  bool anything = false;
  try {
    if (!failure_) {
      while (free_chunk()) anything = true;
      while (return_chunk()) anything = true;
      while (issue_chunk()) anything = true;
      while (begin_chunk()) anything = true;
    }
  } catch (const Error& error) {
    fail(error);
    anything = true;
  }
  if (failure_) {
    while (abandon_chunk()) anything = true;
  }
  return anything;
}

bool StagedReducer::begin_chunk() {
  if (waiting_.empty() || begun_ - returned_ == ring_.size()) return false;
  Staged& staged = *waiting_.front();
  const Device::Stream stream = outward_[lane(begun_)];
  Chunk next{waiting_.front(), staged.begun_, std::min(config_.chunk_bytes, staged.bytes_ - staged.begun_), {}, nullptr};
  // Each lane's first chunk of the tensor waits; a stream's order does for those behind it.
  if (next.offset / config_.chunk_bytes < outward_.size()) device_.wait(stream, staged.ready_);
  device_.copy_out(stream, buffer(begun_), staged.data_ + next.offset, next.bytes);
  next.event = device_.record(stream);
  staged.begun_ += next.bytes;
  if (next.is_last()) waiting_.pop_front();
  chunk(begun_++) = std::move(next);
  return true;
}

bool StagedReducer::issue_chunk() {
  if (issued_ == begun_) return false;
  Chunk& next = chunk(issued_);
  if (!device_.has_happened(next.event)) return false;
  const Staged& of = *next.of;
  next.pending = network_.all_reduce({buffer(issued_), next.bytes / bytes_of(of.dtype_), of.dtype_}, of.op_);
  device_.forget(next.event);
  ++issued_;
  return true;
}

bool StagedReducer::return_chunk() {
  if (summed_ == issued_) return false;
  Chunk& next = chunk(summed_);
  if (!next.pending->done()) return false;
  next.pending->finish();
  const Device::Stream stream = inward_[lane(summed_)];
  device_.copy_in(stream, next.of->data_ + next.offset, buffer(summed_), next.bytes);
  next.event = device_.record(stream);
  next.pending.reset();
  ++summed_;
  if (next.is_last()) {
    for (const Device::Stream each : inward_) next.of->finished_.push_back(device_.record(each));
    next.of->enqueued_ = true;
  }
  return true;
}

bool StagedReducer::free_chunk() {
  if (returned_ == summed_) return false;
  Chunk& next = chunk(returned_);
  if (!device_.has_happened(next.event)) return false;
  device_.forget(next.event);
  if (next.is_last()) next.of->ended_ = true;
  next.of.reset();
  ++returned_;
  return true;
}

void StagedReducer::fail(const Error& error) {
  if (!failure_) failure_ = error;
}

void StagedReducer::give_up(const Error& error) {
  fail(error);
  device_has_failed_ = true;
  keep_for_ever(memory_);
}

// After a failure: the oldest chunk goes, once nothing touches its memory; and tensors go when none of their chunks is left.
bool StagedReducer::abandon_chunk() {
  if (returned_ == begun_) {
    if (waiting_.empty()) return false;
    end(*waiting_.front());
    waiting_.pop_front();
    return true;
  }
  Chunk& next = chunk(returned_);
  if (next.pending) {
    if (!next.pending->done()) return false;
    next.pending.reset();
  } else if (!device_has_failed_) {
    try {
      if (!device_.has_happened(next.event)) return false;
      device_.forget(next.event);
    } catch (const Error&) {
      device_has_failed_ = true;  // and carries out nothing any more
    }
  }
  if (next.is_last()) end(*next.of);
  next.of.reset();
  ++returned_;
  summed_ = std::max(summed_, returned_);
  issued_ = std::max(issued_, returned_);
  return true;
}

void StagedReducer::end(Staged& staged) {
  if (!staged.enqueued_ || device_has_failed_) staged.error_ = failure_;
  staged.ended_ = true;
}

}  // namespace netsum::staging
