// One run of a collective call at the switch: within the call, or in the background, behind a request.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "base/copied.h"
#include "job.h"
#include "netsum/communicator.h"
#include "process.h"

namespace netsum::mpi {

// What a run in the background leaves for its end.
struct Background {
  std::optional<Work> work;
  std::function<void()> last;  // empty: nothing
  CopiedMemory scratch;
};

class Run {
 public:
  explicit Run(Job& job) : job_(job) {}
  Run(Job& job, Background& background) : job_(job), background_(&background) {}

  [[nodiscard]] const Job& job() const { return job_; }
  [[nodiscard]] Communicator& at_switch() { return job_.at_switch(); }

  // Memory for the run's copy of a tensor, aligned for every type; anything may be there.
  [[nodiscard]] std::byte* scratch(std::size_t bytes) {
    if (!background_) return job_.scratch(bytes);
    if (background_->scratch.size() < bytes) background_->scratch = CopiedMemory(Copied::into, bytes);
    return background_->scratch.data();
  }

  // A run makes one of these calls.
  void all_reduce(TensorView in, TensorView out, ReduceOp op) {
    background_ ? go_on(at_switch().all_reduce_async(in, out, op)) : at_switch().all_reduce(in, out, op, while_waiting());
  }
  void reduce(TensorView inout, ReduceOp op, std::uint32_t root) {
    background_ ? go_on(at_switch().reduce_async(inout, op, root)) : at_switch().reduce(inout, op, root, while_waiting());
  }
  void reduce_scatter(TensorView in, TensorView out, ReduceOp op) {
    background_ ? go_on(at_switch().reduce_scatter_async(in, out, op))
                : at_switch().reduce_scatter(in, out, op, while_waiting());
  }
  void broadcast(std::span<std::byte> bytes, std::uint32_t root) {
    background_ ? go_on(at_switch().broadcast_async(bytes, root)) : at_switch().broadcast(bytes, root, while_waiting());
  }
  void all_gather(std::span<const std::byte> in, std::span<std::byte> out) {
    background_ ? go_on(at_switch().all_gather_async(in, out)) : at_switch().all_gather(in, out, while_waiting());
  }
  void barrier() { background_ ? go_on(at_switch().barrier_async()) : at_switch().barrier(while_waiting()); }

  // After that call: what is to be done with its result.
  template <class What>
  void then(const What& what) {
    if (background_) {
      background_->last = what;
    } else {
      what();
    }
  }

 private:
  void go_on(Work work) { background_->work.emplace(std::move(work)); }

  static const CallOptions& while_waiting() {
    static const CallOptions call = [] {
      CallOptions options;
      options.while_waiting = [] { Process::get().progress(); };
      return options;
    }();
    return call;
  }

  Job& job_;
  Background* const background_ = nullptr;
};

}  // namespace netsum::mpi
