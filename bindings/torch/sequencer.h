// The calls of one group with tensors in a device's memory, and those that come behind them: they reach the communicator and
// Gloo in the order in which they were made, whenever the device is done with what comes before them. So all ranks issue the
// same operations in the same order, however fast their devices are.
//
//   made ──► its inputs copied out ──► all before it issued ──► issued ──► ended ──► its outputs copied in, and the work
//   ended
//
// An all-reduce by the switch goes through in chunks instead (staging/staged_reducer.h).
#pragma once

#include <c10/core/Event.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "callback_threads.h"
#include "host_twins.h"
#include "netsum/communicator.h"
#include "work.h"

namespace netsum::torch_backend {

class Sequencer {
 public:
  using Sum = std::function<Work(TensorView inout, ReduceOp op)>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Issue = std::function<WorkPtr(const HostTwins& twins)>;

  // `sum` issues an all-reduce. Works end on `threads`, which outlive it. Everything fails once a device has carried out
  // nothing for `patience` although it has something to do.
  Sequencer(Sum sum, CallbackThreads& threads, std::chrono::milliseconds patience);
  ~Sequencer();
  Sequencer(const Sequencer&) = delete;
  Sequencer& operator=(const Sequencer&) = delete;

  // Whether a call that is made now may be issued at once: all those before it have been.
  [[nodiscard]] bool has_issued_all() const;
  // Whether a call that is made now finds all those before it ended, at the device too.
  [[nodiscard]] bool is_idle() const;

  // Contiguous tensors in one device's memory, in place, once the current stream has come to this point. `begun` is called
  // when it is this call's turn to be issued.
  void all_reduce(std::vector<at::Tensor> tensors, ReduceOp op, std::function<void()> begun,
                  c10::intrusive_ptr<GroupWork> work);
  // Copies what the call reads, calls `issue`, and copies what it writes once the work that `issue` returns has ended. With
  // `behind_all`: issues it when all before it have ended.
  void call(HostTwins twins, bool behind_all, Issue issue, c10::intrusive_ptr<GroupWork> work);

  [[nodiscard]] std::uint64_t bytes() const;  // of tensors that went through host memory

  // Fails what has not ended; later calls fail. `sum`'s operations end soon: their communicator has been aborted.
  void close();

 private:
  class Line;
  const std::shared_ptr<Line> line_;  // a call that ends late looks whether it is still there
  std::thread thread_;
};

}  // namespace netsum::torch_backend
