#include "stream/admittance.h"

namespace netsum::stream {

std::vector<std::int32_t> Admittance::values(bool knocked) const {
  if (step_ == Step::flag) return {knocked ? 1 : 0};
  if (step_ != Step::introduction) return {};
  std::vector<std::int32_t> here_before(world_size_);  // each says who it is, but those that are new
  here_before[rank_] = is_new_ ? 0 : 1;
  return here_before;
}

void Admittance::next(std::span<const std::int32_t> sums) {
  switch (step_) {
    case Step::flag:
      step_ = sums.front() == 0 ? Step::done : Step::barrier;
      break;
    case Step::barrier:
      step_ = is_new_ ? Step::introduction : Step::letting_in;
      break;
    case Step::letting_in:
      step_ = Step::introduction;
      break;
    case Step::introduction:
      for (std::uint32_t rank = 0; rank < world_size_; ++rank) {
        if (sums[rank] != 0) here_before_.insert(rank);
      }
      introduced_ = true;
      step_ = Step::done;
      break;
    case Step::done:
      break;
  }
}

}  // namespace netsum::stream
