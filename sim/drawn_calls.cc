#include "sim/drawn_calls.h"

#include <algorithm>
#include <utility>

#include "sim/tensors.h"

namespace netsum::sim {

Time DrawnCalls::next(std::uint64_t number, std::size_t pending, Time now, Random& random) {
  if (number == plan_.calls.size() || pending >= plan_.window) return never;
  Duration gap = random.between(Duration::zero(), plan_.gap);
  if (random.chance(plan_.straggle) && kinds_.contains(Fault::straggle)) {
    witness_.straggled();
    gap += plan_.straggle_for;
  }
  if (late_ != Duration::zero()) {  // once for a call, however many lives of the job begin meanwhile
    if (std::exchange(asked_, number) != number) ready_ = now + gap + late_;
    return std::max(now, ready_);
  }
  return now + gap;
}

Program::Call DrawnCalls::make(std::uint64_t number, std::uint32_t process) {
  Call next;
  next.operation = plan_.calls[number];
  if (const auto& mismatch = plan_.mismatch; mismatch && mismatch->rank == rank_ && mismatch->call.number == number) {
    next.operation = mismatch->call;
    tally_.count(Fault::mismatch);
  }
  next.tensor = tensor_of(plan_, next.operation, rank_, process);
  next.operation.data = next.tensor.data();
  return next;
}

}  // namespace netsum::sim
