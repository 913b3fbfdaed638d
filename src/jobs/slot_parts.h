// Which jobs own which parts of a switch's slots. Servers choose parts without knowing each other, or pools that they have
// not heard of; so the switch, which all of them tell of their jobs, detects parts that overlap.
#pragma once

#include <cstdint>
#include <map>
#include <string>
namespace netsum::jobs {

// A job's own slots of each pool; count 0: it shares all.
struct SlotPart {
  std::uint32_t first = 0, count = 0;
  bool operator==(const SlotPart&) const = default;
};

class SlotParts {
 public:
  explicit SlotParts(std::uint32_t pool_slots) : pool_slots_(pool_slots) {}

  // Empty, or why the job cannot have its part. A job without a part shares all slots, and may collide.
  [[nodiscard]] std::string take(std::uint64_t job_epoch, const std::string& job, const SlotPart& part) {
    if (part.count == 0) return "";
    const auto slots = [](const SlotPart& p) {
      return std::to_string(p.first) + " to " + std::to_string(std::uint64_t{p.first} + p.count - 1);
    };
    if (std::uint64_t{part.first} + part.count > pool_slots_) {
      return "its slots " + slots(part) + " do not exist here, because this switch has " + std::to_string(pool_slots_) +
             " slots: start all of the job's switches with the same --pool-slots";
    }
    for (const auto& [epoch, other] : taken_) {
      if (epoch == job_epoch || other.part.first >= part.first + part.count ||
          part.first >= other.part.first + other.part.count) {
        continue;
      }
      return "its slots " + slots(part) + " overlap with " + slots(other.part) + " of job '" + other.job +
             "' of another parameter server: give both servers the same --parts, and different --first-part";
    }
    taken_[job_epoch] = {job, part};
    return "";
  }
  void release(std::uint64_t job_epoch) { taken_.erase(job_epoch); }

 private:
  struct Taken {
    std::string job;
    SlotPart part;
  };
  const std::uint32_t pool_slots_;
  std::map<std::uint64_t, Taken> taken_;  // by job epoch
};

}  // namespace netsum::jobs
