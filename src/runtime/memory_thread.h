// A thread that serves parts of several owners which wait for other processes on words of shared memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/time.h"
#include "runtime/futex.h"
#include "runtime/process_wide.h"
#include "runtime/thread.h"

namespace netsum::runtime {

class MemoryThread final : public ProcessWide {
 public:
  // What the thread does while no part moves: the first of these that one wants.
  enum class Rest : std::uint8_t { look_again, yield, sleep, nothing_to_wait_for };

  // Called on the thread, in turn with others: none may wait.
  class Participant {
   public:
    virtual bool serve() = 0;  // all that there is to do now; whether anything moved
    virtual Rest rest() = 0;   // once in a turn that moved nothing
    // Before the thread sleeps, if rest() was `sleep`: what the part waits for, after another look; none: no sleep.
    virtual std::optional<Awaited> before_sleep() = 0;
    virtual void after_sleep() = 0;

   protected:
    ~Participant() = default;
  };

  explicit MemoryThread(const Key& key);
  ~MemoryThread() override;

  void add(Participant& part);
  void remove(Participant& part);  // on return the thread does not touch it. Not from this thread.
  void notify();                   // all parts are served soon. Any thread's.

 private:
  void loop();
  void sleep(std::uint32_t told);
  void wait() const;  // on `awaited_`
  [[nodiscard]] bool waits_for_all() const;

  const bool waits_on_any_ = can_wait_on_any();
  Commands commands_{[this] { notify(); }};
  std::atomic<std::uint32_t> told_{0};                                 // a futex
  std::atomic<const std::atomic<std::uint32_t>*> asleep_on_{nullptr};  // where a wake-up ends the sleep
  std::vector<Participant*> parts_;                                    // the thread's own, like the following
  std::vector<Participant*> sleepers_;
  std::vector<Awaited> awaited_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace netsum::runtime
