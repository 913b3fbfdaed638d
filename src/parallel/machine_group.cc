#include "parallel/machine_group.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "base/failed_earlier.h"
#include "kernels/kernels.h"
#include "runtime/futex.h"
#include "runtime/thread.h"

namespace netsum::parallel {
namespace {

constexpr std::size_t block = 256;  // of pieces: a following sum's exponent blocks are the same as without pieces
constexpr std::size_t elements_at_once = 4096;  // of a sum: these stay in the first-level cache
// How often a waiting member checks that the others live; a changed word wakes it at once.
constexpr Duration look_interval = std::chrono::milliseconds(50);
constexpr int looks_before_sleep = 64;

constexpr std::uint32_t state_bits = 3;

MemberState state_of(std::uint32_t word) {
  return static_cast<MemberState>(word & state_bits);
}

}  // namespace

Piece piece_of(std::size_t elements, std::uint32_t index, std::uint32_t pieces) {
  const std::size_t blocks = (elements + block - 1) / block;
  const auto at = [&](std::size_t i) { return std::min(elements, blocks * i / pieces * block); };
  return {at(index), at(std::size_t{index} + 1)};
}

MachineGroup::MachineGroup(std::string name, std::shared_ptr<GroupMemory> memory, std::uint32_t rank, Time deadline)
    : name_(std::move(name)), memory_(std::move(memory)), rank_(rank) {
  meet(Step::join, tensor().size(), deadline);
  if (rank == 0) memory_->close_door();  // the others may be threads that use the same object
}

MachineGroup::~MachineGroup() {
  if (!failure_) publish(MemberState::left);
}

const char* MachineGroup::name_of(Step step) {
  constexpr std::array names{"joining", "barrier",   "reduce-scatter",         "all-gather",
                             "reduce",  "broadcast", "the end of a collective"};
  return names[std::min(static_cast<std::size_t>(step), names.size() - 1)];
}

void MachineGroup::publish(MemberState state) {
  std::atomic<std::uint32_t>& word = memory_->slot(rank_).word;
  word.store(calls_ << 2 | static_cast<std::uint32_t>(state), std::memory_order_release);
  runtime::wake_all(word);
}

bool MachineGroup::has_come(std::uint32_t member) const {
  const std::uint32_t word = memory_->slot(member).word.load(std::memory_order_acquire);
  return static_cast<std::int32_t>((word & ~state_bits) - (calls_ << 2)) >= 0 && state_of(word) != MemberState::absent;
}

void MachineGroup::meet(Step step, std::size_t elements, Time deadline) {
  if (failure_) throw failed_earlier("machine group '" + name_ + "'", *failure_);
  ++calls_;
  const std::uint64_t call = std::uint64_t{static_cast<std::uint8_t>(step)} << 56 | elements;
  memory_->slot(rank_).calls[calls_ % 2].store(call, std::memory_order_relaxed);
  publish(MemberState::here);
  for (std::uint32_t member = 0; member < size(); ++member) await(member, step, deadline);
  for (std::uint32_t member = 0; member < size(); ++member) check_call(member, call);
}

void MachineGroup::await(std::uint32_t member, Step step, Time deadline) {
  const std::atomic<std::uint32_t>& word = memory_->slot(member).word;
  for (int looks = 0; looks < looks_before_sleep; ++looks) {
    if (has_come(member)) return;
  }
  Time next_look = runtime::now() + look_interval;
  for (;;) {
    const std::uint32_t seen = word.load(std::memory_order_acquire);
    if (has_come(member)) return;
    const Time now = runtime::now();
    const bool look = now >= next_look;
    if (look) next_look = now + look_interval;
    check_members(step, look, now >= deadline);
    runtime::wait_on(word, seen, std::min(next_look, deadline) - now);
  }
}

// Checks all members: the cause may be another member than the one awaited now.
void MachineGroup::check_members(Step step, bool look, bool too_late) {
  std::string missing;
  for (std::uint32_t member = 0; member < size(); ++member) {
    const auto state = [&] { return state_of(memory_->slot(member).word.load(std::memory_order_acquire)); };
    // In this order: the member may join, come or leave meanwhile, and one that has come may leave at once.
    const bool left = state() == MemberState::left;
    const bool dead = look && state() == MemberState::here && !memory_->alive(member) && state() == MemberState::here;
    const std::string who = "member " + std::to_string(member);
    if (state() == MemberState::failed) {  // even if it has reached this step: another has not, and this one no longer waits
      // The member writes this memory, and may not have terminated the text.
      const auto& reason = memory_->slot(member).reason;
      fail(ErrorCode::worker_lost, who + " failed: " + std::string(reason.data(), ::strnlen(reason.data(), reason.size())));
    }
    if (has_come(member)) continue;
    if (left) fail(ErrorCode::worker_lost, who + " left before the others");
    if (dead) fail(ErrorCode::worker_lost, who + " died");
    missing += (missing.empty() ? "" : ", ") + std::to_string(member);
  }
  if (too_late && !missing.empty()) {
    fail(ErrorCode::deadline, std::string(name_of(step)) + " did not end in time: it waits for member " + missing);
  }
}

void MachineGroup::check_call(std::uint32_t member, std::uint64_t mine) {
  const std::uint64_t theirs = memory_->slot(member).calls[calls_ % 2].load(std::memory_order_relaxed);
  if (theirs == mine) return;
  const auto describe = [](std::uint64_t call) {
    return std::string(name_of(static_cast<Step>(call >> 56))) + " of " + std::to_string(call & ~std::uint64_t{0} >> 8) +
           " elements";
  };
  fail(ErrorCode::mismatch, "member " + std::to_string(member) + " is in " + describe(theirs) + ", member " +
                                std::to_string(rank_) + " in " + describe(mine));
}

void MachineGroup::barrier(Time deadline) {
  meet(Step::barrier, 0, deadline);
}

void MachineGroup::sum_piece(std::span<float> out, std::size_t elements) {
  const Piece piece = piece_of(elements, rank_, size());
  std::vector<const std::byte*> sources(size());
  alignas(64) std::array<std::byte, elements_at_once * sizeof(float)> sum;  // not in `out`, which is a source
  for (std::size_t at = piece.begin; at < piece.end; at += elements_at_once) {
    const std::size_t count = std::min(elements_at_once, piece.end - at);
    for (std::uint32_t member = 0; member < size(); ++member) {
      sources[member] = std::as_bytes(memory_->tensor(member)).data() + at * sizeof(float);
    }
    kernels::sum_in_order(DType::float32, sum.data(), sources, count);
    std::memcpy(out.data() + at, sum.data(), count * sizeof(float));
  }
}

void MachineGroup::reduce_scatter(std::size_t elements, Time deadline) {
  if (size() == 1) return;
  meet(Step::reduce_scatter, elements, deadline);
  sum_piece(tensor(), elements);
}

void MachineGroup::all_gather(std::size_t elements, Time deadline) {
  if (size() == 1) return;
  meet(Step::all_gather, elements, deadline);
  // From the next member on, so that not all of them read the same one.
  for (std::uint32_t i = 1; i < size(); ++i) {
    const std::uint32_t member = (rank_ + i) % size();
    const Piece piece = piece_of(elements, member, size());
    std::memcpy(tensor().data() + piece.begin, memory_->tensor(member).data() + piece.begin, piece.size() * sizeof(float));
  }
  meet(Step::end, elements, deadline);  // before a member overwrites data that others may still read
}

void MachineGroup::reduce(std::size_t elements, Time deadline) {
  if (size() == 1) return;
  meet(Step::reduce, elements, deadline);
  sum_piece(memory_->tensor(0), elements);
  meet(Step::end, elements, deadline);
}

void MachineGroup::broadcast(std::size_t elements, Time deadline) {
  if (size() == 1) return;
  meet(Step::broadcast, elements, deadline);
  if (rank_ != 0) std::memcpy(tensor().data(), memory_->tensor(0).data(), elements * sizeof(float));
  meet(Step::end, elements, deadline);
}

void MachineGroup::abort(const std::string& reason) {
  if (!failure_) end(Error(ErrorCode::closed, reason), reason);
}

void MachineGroup::end(const Error& error, const std::string& reason) {
  failure_ = error;
  auto& text = memory_->slot(rank_).reason;
  std::memcpy(text.data(), reason.data(), std::min(reason.size(), text.size() - 1));
  publish(MemberState::failed);
}

void MachineGroup::fail(ErrorCode code, const std::string& what) {
  end(Error(code, "machine group '" + name_ + "', member " + std::to_string(rank_) + ": " + what), what);
  throw Error(*failure_);
}

}  // namespace netsum::parallel
