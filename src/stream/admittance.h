// The calls by which ranks let new processes in, one after the other: those of Communicator::admit(), and of a new process's
// connect() beside it.
//
// A flag first: ranks hear of new processes at different times. Then a barrier: a rank that has its result knows that the
// others have the flag's, so each of them joins again with the barrier's result, or in need of it. Then each lets in, and
// joins again if it has heard of somebody. No rank can end the introduction before all have joined again, as one that hears
// of a new process has left the lanes when it begins it. No operation may be pending before the flag: a new process begins
// with the barrier, or the introduction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bitmap.h"
#include "stream/operation_log.h"

namespace netsum::stream {

class Admittance {
 public:
  // Of a rank in the job.
  Admittance(std::uint32_t rank, std::uint32_t world_size) : rank_(rank), world_size_(world_size) {}
  // Of a new process, which was let in: some others may lack the barrier's result.
  Admittance(std::uint32_t rank, std::uint32_t world_size, const Resumption& resumption)
      : rank_(rank),
        world_size_(world_size),
        is_new_(true),
        step_(resumption.replays.contains(resumption.first) ? Step::barrier : Step::introduction) {}

  [[nodiscard]] bool done() const { return step_ == Step::done; }
  // What is next: let in who waits, session::Rank::let_in(). Or else the sum of these values, int32; or, of none, a barrier.
  [[nodiscard]] bool lets_in() const { return step_ == Step::letting_in; }
  [[nodiscard]] std::vector<std::int32_t> values(bool knocked) const;  // `knocked`: this rank has heard of a new process
  // That has happened. `sums`: the sum of values().
  void next(std::span<const std::int32_t> sums = {});

  // Those of `members` that came in.
  [[nodiscard]] RankSet newcomers(const RankSet& members) const {
    return introduced_ ? members.minus(here_before_) : RankSet();
  }

 private:
  enum class Step : std::uint8_t { flag, barrier, letting_in, introduction, done };

  std::uint32_t rank_, world_size_;
  bool is_new_ = false, introduced_ = false;
  Step step_ = Step::flag;
  RankSet here_before_;
};

}  // namespace netsum::stream
