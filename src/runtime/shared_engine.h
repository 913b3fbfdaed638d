// Operations of ranks on one host, in shared memory: each lane of protocol/shared is on a thread of its own, which the
// process's communicators share; short tensors run on the caller's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "protocol/shared/small_member.h"
#include "runtime/arenas.h"
#include "runtime/engine.h"
#include "runtime/memory_thread.h"
#include "runtime/shared_segment.h"
#include "runtime/thread.h"

namespace netsum::runtime {

enum class Waiting : std::uint8_t { adaptive, spin, futex };

struct SharedEngineConfig {
  std::uint32_t rank = 0, world_size = 1;
  Waiting waiting = Waiting::adaptive;
  ThreadOptions threads;
  SharedSegment* own = nullptr;
  std::vector<const SharedSegment*> peers;  // by rank, this rank's included; all outlive the engine
  std::shared_ptr<const Arenas> arenas;     // this rank's; null: none
  // run() has begun to wait for others: until then most_urgent() does not know of the operation, and whoever watches its
  // deadline may have looked in vain.
  std::function<void(Time deadline)> waits;
};

class SharedEngine final : public Engine {
 public:
  using OnFailure = std::function<void(std::uint32_t lane, const protocol::LaneFailure&)>;
  SharedEngine(SharedEngineConfig config, OnFailure on_failure);
  ~SharedEngine() override;  // ends pending operations with `closed`
  SharedEngine(const SharedEngine&) = delete;
  SharedEngine& operator=(const SharedEngine&) = delete;

  [[nodiscard]] std::uint32_t lanes() const { return lanes_count_; }

  // Where another rank's tensors may lie from now on; empty: the arena is gone. On return no thread reads the former memory.
  void set_arena(std::uint32_t rank, std::uint32_t arena, std::span<const std::byte> memory);

  void submit(const std::shared_ptr<PendingOperation>& operation) override;
  // Only a short operation with none queued before it.
  [[nodiscard]] bool run(const std::shared_ptr<PendingOperation>& operation) override;
  void fail(const Error& error) override;
  void drain(const std::function<bool()>& enough) override;
  [[nodiscard]] std::shared_ptr<const Error> failure() const override;
  [[nodiscard]] std::shared_ptr<PendingOperation> most_urgent() const override;
  [[nodiscard]] std::shared_ptr<PendingOperation> find(std::uint64_t number) const override;
  [[nodiscard]] std::optional<LaneStall> oldest_stall() override;
  [[nodiscard]] std::uint64_t operations_completed() const override;
  [[nodiscard]] Totals totals() override;

 private:
  class Lane;

  [[nodiscard]] Arenas::Place place_of(const stream::Operation& operation) const;
  [[nodiscard]] bool is_small(const stream::Operation& operation) const;
  void show_call(const stream::Operation& operation);
  void check_failed() const;
  void lane_done(std::uint64_t number);
  void post_small(const stream::Operation& operation);
  [[nodiscard]] bool finish_small();
  [[nodiscard]] RankSet small_missing() const;
  // For a long wait: did another rank issue a different call, or report ranks that did?
  void look_for_reasons(std::uint32_t lane, std::uint64_t operation, const RankSet& missing);
  void report(std::uint32_t lane, const shared::MemberFailure& failure);
  void wait_for_small(std::uint32_t turn, Duration longest);
  [[nodiscard]] MemoryThread::Rest rest_of_small(std::uint32_t turn) const;
  [[nodiscard]] std::optional<Awaited> before_sleep_of_small(Duration longest);
  void after_sleep_of_small();

  const SharedEngineConfig config_;
  const OnFailure on_failure_;
  std::uint32_t lanes_count_ = 1;
  bool crowded_ = false;  // more threads than processors

  shared::SmallMember small_;  // used by the caller, or by lane 0 while short operations are queued there
  std::atomic<std::uint64_t> small_examined_{0}, small_underflowed_{0};  // copied, for any thread
  std::vector<std::uint64_t> posted_;
  std::atomic<std::uint32_t> small_queued_{0};
  std::atomic<bool> failed_{false};
  std::atomic<std::uint64_t> completed_{0};
  std::atomic<bool> reported_{false};

  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<PendingOperation>> under_way_;
  std::shared_ptr<const Error> failure_;

  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace netsum::runtime
