#include "call_counts.h"

#include <utility>

namespace netsum::torch_backend {
namespace {

constexpr std::uint64_t worth_a_warning = 1 << 20;  // bytes

struct Largest {
  std::string what;
  std::uint64_t bytes = 0;
};

}  // namespace

void CallCounts::add(Call call, const std::string& reason, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  Paths& paths = counts_[to_string(call)];
  Count& count = reason.empty() ? paths.by_switch : paths.by_gloo[reason];
  ++count.calls;
  count.bytes += bytes;
  ++calls_;
}

CallCounts::Counts CallCounts::all() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

std::optional<std::string> CallCounts::warning(bool last) {
  const std::lock_guard lock(mutex_);
  if (warned_ || (!last && calls_ < next_look_)) return std::nullopt;
  next_look_ = 2 * calls_;
  std::uint64_t by_switch = 0, by_gloo = 0;
  Largest largest;
  for (const auto& [collective, paths] : counts_) {
    by_switch += paths.by_switch.bytes;
    for (const auto& [reason, count] : paths.by_gloo) {
      by_gloo += count.bytes;
      if (count.bytes > largest.bytes) largest = {collective + " (" + reason + ")", count.bytes};
    }
  }
  if (by_gloo <= by_switch || by_gloo < worth_a_warning) return std::nullopt;
  warned_ = true;
  const std::uint64_t all = by_switch + by_gloo;
  return std::to_string(100 * by_gloo / all) + " % of the bytes went over Gloo instead of the switch, the largest part in " +
         largest.what + "; netsum.torch.statistics()[\"collectives\"] has all reasons";
}

}  // namespace netsum::torch_backend
