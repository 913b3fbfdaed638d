// All-reduces of tensors in a device's memory. A tensor goes through pinned host memory in chunks: while one is copied out,
// others are summed, and sums of earlier ones are copied in.
//
//   copy out        event?        all-reduce       done?         copy in         event?
//   ────────► begun ──────► read ───────────► issued ────► summed ──────► returning ──────► its buffer is free
//
// Chunks pass each of these steps in order, so that all ranks issue the same all-reduces in the same order, and the buffers
// are a ring. Nothing waits: progress() does what can be done, and one thread calls it again and again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "bindings/staging/device.h"
#include "netsum/communicator.h"

namespace netsum::staging {

// What sums host memory: a communicator, or a test.
class Network {
 public:
  class Pending {
   public:
    virtual ~Pending() = default;  // the memory is lent until then
    [[nodiscard]] virtual bool done() const = 0;
    virtual void finish() = 0;  // once done; throws Error if it failed
  };
  virtual ~Network() = default;
  [[nodiscard]] virtual std::unique_ptr<Pending> all_reduce(TensorView inout, ReduceOp op) = 0;
};

// An all-reduce that a communicator has begun.
[[nodiscard]] std::unique_ptr<Network::Pending> pending(Work work);

class CommunicatorNetwork final : public Network {
 public:
  explicit CommunicatorNetwork(Communicator& communicator) : communicator_(communicator) {}
  [[nodiscard]] std::unique_ptr<Pending> all_reduce(TensorView inout, ReduceOp op) override;

 private:
  Communicator& communicator_;
};

// Equal on all ranks. The parts in which a tensor is reduced are the same wherever it is: a rank whose tensor is in host
// memory issues for_each_chunk()'s.
struct StagingConfig {
  std::size_t chunk_bytes = std::size_t{2} << 20;  // a multiple of 16
  std::size_t buffers = 8;                         // of a chunk each: all host memory that is used
  std::uint32_t lanes = 2;                         // each has a stream for either direction
};

// Gives `use` the chunks of a tensor in host memory, in order; one without elements has none.
template <class Use>
void for_each_chunk(TensorView tensor, Use use) {
  const std::size_t most = StagingConfig{}.chunk_bytes / bytes_of(tensor.dtype);
  for (std::size_t from = 0; from < tensor.elements; from += most) {
    use(TensorView{static_cast<std::byte*>(tensor.data) + from * bytes_of(tensor.dtype),
                   std::min(most, tensor.elements - from), tensor.dtype});
  }
}

// One tensor on its way. Its memory is lent until has_ended().
class Staged {
 public:
  // Whether all copies into the tensor have been given to the device: what else is given to it may now be made to wait.
  [[nodiscard]] bool is_enqueued() const { return enqueued_; }
  // Makes a stream of the caller's wait for them, without waiting here. Only if is_enqueued().
  void wait_on(Device::Stream stream) const;
  [[nodiscard]] bool has_ended() const { return ended_; }
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }  // once it has ended

  ~Staged();
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;

 private:
  friend class StagedReducer;
  explicit Staged(Device& device) : device_(device) {}

  Device& device_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0, begun_ = 0;  // begun_: bytes that chunks were made of
  DType dtype_{};
  ReduceOp op_{};
  Device::Event ready_{};
  std::vector<Device::Event> finished_;  // of each lane
  bool enqueued_ = false, ended_ = false;
  std::optional<Error> error_;
};

// One thread at a time calls it. Device and network outlive it.
class StagedReducer {
 public:
  StagedReducer(Device& device, Network& network, const StagingConfig& config);  // throws Error: bad_argument
  // is_idle(), or the pinned memory is never freed: the device or the network may still use it.
  ~StagedReducer();
  StagedReducer(const StagedReducer&) = delete;
  StagedReducer& operator=(const StagedReducer&) = delete;

  // In place, once `ready` has happened, which is the caller's event and may be forgotten once the first chunks have begun,
  // so: when the call has ended. Calls are in the same order on all ranks.
  [[nodiscard]] std::shared_ptr<Staged> all_reduce(std::byte* data, std::size_t elements, DType dtype, ReduceOp op,
                                                   Device::Event ready);

  // Whether anything was done. After a failure it ends everything with that error, as soon as no copy or all-reduce that is
  // under way can touch memory any more.
  bool progress();
  void fail(const Error& error);  // as a failure of the network would
  // The same, when the device hangs: it does not wait for it, and never frees the pinned memory.
  void give_up(const Error& error);
  // Whether the network has all chunks of all calls.
  [[nodiscard]] bool has_issued_all() const { return issued_ == begun_ && waiting_.empty(); }
  [[nodiscard]] bool is_idle() const { return returned_ == begun_ && waiting_.empty(); }

 private:
  struct Chunk {
    std::shared_ptr<Staged> of;
    std::size_t offset = 0, bytes = 0;
    Device::Event event{};                      // after its last copy
    std::unique_ptr<Network::Pending> pending;  // while it is summed
    [[nodiscard]] bool is_last() const { return offset + bytes == of->bytes_; }
  };

  [[nodiscard]] Chunk& chunk(std::uint64_t number) { return ring_[number % ring_.size()]; }
  [[nodiscard]] std::byte* buffer(std::uint64_t number) const {
    return memory_.get() + number % ring_.size() * config_.chunk_bytes;
  }
  [[nodiscard]] std::size_t lane(std::uint64_t number) const { return number % outward_.size(); }
  bool begin_chunk();
  bool issue_chunk();
  bool return_chunk();
  bool free_chunk();
  bool abandon_chunk();
  void end(Staged& staged);

  Device& device_;
  Network& network_;
  const StagingConfig config_;
  std::shared_ptr<std::byte> memory_;
  std::vector<Device::Stream> outward_, inward_;  // one of each a lane
  std::vector<Chunk> ring_;
  // How many chunks have passed each step: returned_ <= summed_ <= issued_ <= begun_ <= returned_ + buffers.
  std::uint64_t begun_ = 0, issued_ = 0, summed_ = 0, returned_ = 0;
  std::deque<std::shared_ptr<Staged>> waiting_;  // of which not all chunks have begun
  std::optional<Error> failure_;
  bool device_has_failed_ = false;
};

}  // namespace netsum::staging
