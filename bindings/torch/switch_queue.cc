#include "switch_queue.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <regex>
#include <span>
#include <utility>

#include "bindings/staging/staged_reducer.h"
#include "dense.h"
#include "routes.h"

namespace netsum::torch_backend {

namespace {

void let_go(void* memory) {
  delete static_cast<TensorMemory*>(memory);
}

TensorView view_of(const at::Tensor& contiguous) {
  return {contiguous.data_ptr(), static_cast<std::size_t>(contiguous.numel()), *switch_dtype(contiguous)};
}

std::span<std::byte> bytes_of(const at::Tensor& contiguous) {
  return {static_cast<std::byte*>(contiguous.data_ptr()), contiguous.nbytes()};
}

template <class Transfer>
std::vector<Transfer> in_place(const std::vector<at::Tensor>& tensors) {
  std::vector<Transfer> transfers;
  for (const at::Tensor& tensor : tensors) transfers.push_back({tensor, tensor});
  return transfers;
}

std::vector<Work> one(Work work) {
  std::vector<Work> works;
  works.push_back(std::move(work));
  return works;
}

CallOptions call_of(std::optional<std::chrono::milliseconds> timeout, std::optional<double> factor = {},
                    bool waits_for_all = false) {
  CallOptions call;
  if (timeout) call.deadline = *timeout;
  call.factor = factor;
  call.waits_for_all = waits_for_all;
  return call;
}

}  // namespace

SwitchQueue::SwitchQueue(Communicator communicator, std::vector<int> world_ranks, Stopwatch& stopwatch,
                         CallbackThreads& threads)
    : communicator_(std::move(communicator)),
      world_ranks_(std::move(world_ranks)),
      stopwatch_(stopwatch),
      threads_(threads),
      has_come_in_(!communicator_.newcomers().empty()) {}

// "waits for ranks 0 and 1" of a group: "waits for ranks 0 (global rank 2) and 1 (global rank 3)".
Error SwitchQueue::named_in_world(const Error& error) const {
  static const std::regex list("\\branks? \\d+(?:(?:, | and )\\d+)*"), number("\\d+");
  const auto replace_all = [](const std::string& text, const std::regex& what, const auto& by) {
    std::string replaced;
    auto from = text.begin();
    for (std::sregex_iterator match(text.begin(), text.end(), what), end; match != end; ++match) {
      replaced.append(from, (*match)[0].first).append(by(match->str()));
      from = (*match)[0].second;
    }
    return replaced.append(from, text.end());
  };
  ErrorDetails details = error.details();
  const auto make_global = [&](std::uint32_t& rank) {
    if (rank < world_ranks_.size()) rank = static_cast<std::uint32_t>(world_ranks_[rank]);
  };
  for (std::uint32_t& rank : details.ranks) make_global(rank);
  for (RankCall& each : details.calls) make_global(each.rank);
  return {error.code(),
          replace_all(error.what(), list,
                      [&](const std::string& ranks) {
                        return replace_all(ranks, number, [&](const std::string& rank) {
                          const std::size_t of_group = rank.size() < 9 ? std::stoul(rank) : world_ranks_.size();
                          const bool differs =
                              of_group < world_ranks_.size() && world_ranks_[of_group] != static_cast<int>(of_group);
                          return differs ? rank + " (global rank " + std::to_string(world_ranks_[of_group]) + ")" : rank;
                        });
                      }),
          std::move(details)};
}

void SwitchQueue::abort(const std::string& why) {
  communicator_.abort(why);
}

SwitchQueue::~SwitchQueue() {
  abort();
  std::unique_lock lock(mutex_);
  all_ended_.wait(lock, [this] { return !reducing_.completing && !spreading_.completing; });
}

c10::intrusive_ptr<GroupWork> SwitchQueue::all_reduce(const std::vector<at::Tensor>& tensors, ReduceOp op,
                                                      const Settings& settings, c10d::OpType type) {
  return submit(in_place<Transfer>(tensors), std::string("all_reduce(") + to_string(op) + ")", type, true, settings.timeout,
                [&](const at::Tensor& tensor, const at::Tensor&) {
                  std::vector<Work> works;
                  staging::for_each_chunk(view_of(tensor), [&](TensorView chunk) {
                    works.push_back(communicator_.all_reduce_async(
                        chunk, op, call_of(settings.timeout, settings.factor, settings.waits_for_all)));
                  });
                  return works;
                });
}

c10::intrusive_ptr<GroupWork> SwitchQueue::reduce(const std::vector<at::Tensor>& tensors, ReduceOp op, std::uint32_t root,
                                                  const Settings& settings) {
  return submit(
      in_place<Transfer>(tensors), std::string("reduce(") + to_string(op) + ") to rank " + std::to_string(root),
      c10d::OpType::REDUCE, true, settings.timeout, [&](const at::Tensor& tensor, const at::Tensor&) {
        return one(communicator_.reduce_async(view_of(tensor), op, root, call_of(settings.timeout, settings.factor)));
      });
}

c10::intrusive_ptr<GroupWork> SwitchQueue::broadcast(const std::vector<at::Tensor>& tensors, std::uint32_t root,
                                                     Timeout timeout) {
  return submit(in_place<Transfer>(tensors), "broadcast from rank " + std::to_string(root), c10d::OpType::BROADCAST, false,
                timeout, [&](const at::Tensor& tensor, const at::Tensor&) {
                  return one(communicator_.broadcast_async(bytes_of(tensor), root, call_of(timeout)));
                });
}

c10::intrusive_ptr<GroupWork> SwitchQueue::reduce_scatter(const at::Tensor& in, const at::Tensor& out, const Counts& counts,
                                                          ReduceOp op, const Settings& settings, c10d::OpType type) {
  return submit({{in, out}}, std::string("reduce_scatter(") + to_string(op) + ")", type, true, settings.timeout,
                [&](const at::Tensor& whole, const at::Tensor& part) {
                  return one(communicator_.reduce_scatter_v_async(view_of(whole), view_of(part), op, counts,
                                                                  call_of(settings.timeout, settings.factor)));
                });
}

c10::intrusive_ptr<GroupWork> SwitchQueue::all_gather(const at::Tensor& in, const at::Tensor& out, Counts counts,
                                                      Timeout timeout, c10d::OpType type) {
  for (std::size_t& count : counts) count *= in.element_size();
  return submit({{in, out}}, "all_gather", type, false, timeout, [&](const at::Tensor& part, const at::Tensor& whole) {
    return one(communicator_.all_gather_v_async(bytes_of(part), bytes_of(whole), counts, call_of(timeout)));
  });
}

c10::intrusive_ptr<GroupWork> SwitchQueue::submit(const std::vector<Transfer>& transfers, std::string what,
                                                  c10d::OpType type, bool reduces, Timeout timeout, const Issue& issue) {
  std::vector<at::Tensor> inputs, outputs;
  for (const Transfer& transfer : transfers) {
    inputs.push_back(transfer.in);
    outputs.push_back(transfer.out);
  }
  Pending pending;
  pending.reduces = reduces;
  pending.work = c10::make_intrusive<GroupWork>(static_cast<int>(communicator_.rank()), type, what + describe(inputs),
                                                outputs, &inputs);
  const auto work = pending.work;
  const std::lock_guard issuing(issue_);
  pending.flight = flights_->begin(type, inputs, outputs, timeout ? std::optional(timeout->count()) : std::nullopt);
  for (const Transfer& transfer : transfers) {
    const bool apart = !transfer.in.is_same(transfer.out);
    at::Tensor in = dense(transfer.in).detach();
    at::Tensor out = !apart                   ? in
                     : is_dense(transfer.out) ? transfer.out.detach()
                                              : at::empty(transfer.out.sizes(), transfer.out.options());
    bytes_ += in.nbytes();
    ++operations_;
    std::vector<Work> works = [&] {
      try {
        return issue(in, out);
      } catch (const Error& thrown) {
        const Error named = named_in_world(thrown);
        flights_->end(pending.flight, std::make_exception_ptr(named));
        throw named;
      } catch (...) {
        flights_->end(pending.flight, std::current_exception());
        throw;
      }
    }();
    pending.loans.push_back({std::move(in), std::move(out), transfer.out.detach(), std::move(works)});
  }
  if (pending.reduces) stopwatch_.begin();
  {
    const std::lock_guard lock(mutex_);
    Line& line = reduces ? reducing_ : spreading_;
    line.last = work;
    line.pending.push_back(std::move(pending));
    if (!std::exchange(line.completing, true)) threads_.post([this, &line] { complete_next(line); });
  }
  return work;
}

std::vector<std::uint32_t> SwitchQueue::admit() {
  for (const auto& work : last()) work->wait();  // then members_ are the latest
  const std::lock_guard issuing(issue_);
  if (!std::exchange(has_come_in_, false)) {
    try {
      static_cast<void>(communicator_.admit());
    } catch (const Error& error) {
      failed_ = true;
      throw named_in_world(error);
    }
  }
  const std::lock_guard lock(mutex_);
  members_ = communicator_.members();
  return communicator_.newcomers();
}

Work SwitchQueue::all_reduce_memory(TensorView inout, ReduceOp op) {
  const std::lock_guard issuing(issue_);
  bytes_ += inout.elements * netsum::bytes_of(inout.dtype);
  ++operations_;
  return communicator_.all_reduce_async(inout, op);
}

void SwitchQueue::move_to_allocated(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  if (storage.data_ptr().get_deleter() == &let_go) return;
  const std::lock_guard issuing(issue_);
  auto memory = std::make_unique<TensorMemory>(communicator_.allocate(storage.nbytes()));
  std::byte* const begin = memory->data();
  if (storage.nbytes() != 0) std::memcpy(begin, storage.data(), storage.nbytes());
  storage.set_data_ptr(at::DataPtr(begin, memory.release(), &let_go, at::kCPU));
}

std::vector<std::uint32_t> SwitchQueue::members() const {
  const std::lock_guard lock(mutex_);
  return members_.empty() ? communicator_.members() : members_;
}

std::vector<c10::intrusive_ptr<GroupWork>> SwitchQueue::last() const {
  const std::lock_guard lock(mutex_);
  std::vector<c10::intrusive_ptr<GroupWork>> works;
  for (const Line* const line : {&reducing_, &spreading_}) {
    if (line->last) works.push_back(line->last);
  }
  return works;
}

GroupWork::Ranges SwitchQueue::left_out_of(const Loan& all_reduced) const {
  GroupWork::Ranges ranges;
  std::size_t first = 0;
  auto work = all_reduced.works.begin();
  staging::for_each_chunk(view_of(all_reduced.out), [&](TensorView chunk) {
    const std::vector<std::uint32_t> members = work++->members();
    const std::size_t last = first + chunk.elements;
    if (!std::binary_search(members.begin(), members.end(), communicator_.rank())) ranges.emplace_back(first, last);
    first = last;
  });
  return ranges;
}

// One thread of a line after the other: once a work has ended, and before any callbacks run, the next work's turn begins.
void SwitchQueue::complete_next(Line& line) {
  Pending next;
  {
    const std::lock_guard lock(mutex_);
    next = std::move(line.pending.front());
    line.pending.pop_front();
  }
  std::exception_ptr error;
  const auto attempt = [&](const auto& step) {
    try {
      step();
    } catch (const Error& thrown) {
      if (!error) error = std::make_exception_ptr(named_in_world(thrown));
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  };
  for (Loan& loan : next.loans) {
    for (Work& work : loan.works) attempt([&] { work.wait(); });  // all of them: they have the tensor until then
    if (!error && loan.out.data_ptr() != loan.target.data_ptr()) attempt([&] { write(loan.target, loan.out); });
  }
  if (next.reduces) stopwatch_.end();
  if (next.reduces && !error && !next.loans.empty() && !next.loans.back().works.empty()) {
    const std::lock_guard lock(mutex_);
    members_ = next.loans.back().works.back().members();
    if (next.work->retrieveOpType() == c10d::OpType::ALLREDUCE) next.work->leave_out(left_out_of(next.loans.front()));
  }
  if (error) failed_ = true;
  flights_->end(next.flight, error);
  const auto hand_over = [this, &line, work = next.work] {
    const std::lock_guard lock(mutex_);
    if (line.last == work) line.last.reset();  // it keeps tensors alive
    if (!line.pending.empty()) {
      threads_.post([this, &line] { complete_next(line); });
    } else {
      line.completing = false;
      all_ended_.notify_all();
    }
  };
  if (error) {
    next.work->fail(error, hand_over);
  } else {
    next.work->complete(hand_over);
  }
}

}  // namespace netsum::torch_backend
