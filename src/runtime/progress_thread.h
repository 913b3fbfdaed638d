// A thread that serves parts of several owners: sockets with packets, or connections with answers.
#pragma once

#include <poll.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/time.h"
#include "runtime/process_wide.h"
#include "runtime/thread.h"

namespace netsum::runtime {

class ProgressThread final : public ProcessWide {
 public:
  // What ends a turn of the thread: the first of these.
  struct Wait {
    std::vector<pollfd> descriptors;
    Time until = never;
    bool again = false;   // a part looks again at once,
    bool yields = false;  // and lets other threads run before
  };

  // Called on the thread, in turn with others: neither may wait.
  class Participant {
   public:
    virtual void serve() = 0;              // all that there is to do now
    virtual void prepare(Wait& wait) = 0;  // adds what it waits for

   protected:
    ~Participant() = default;
  };

  explicit ProgressThread(const Key& key);
  ~ProgressThread() override;

  void add(Participant& part);
  void remove(Participant& part);  // on return the thread does not touch it. Not from this thread.
  void notify();                   // all parts are served soon. Any thread's.

  // For callers that sleep in the thread's place: as many as callers sleep at a time, kept for the next.
  [[nodiscard]] std::unique_ptr<Wakeup> lend_wakeup();
  void take_back(std::unique_ptr<Wakeup> wakeup);

 private:
  void loop();

  Mailbox mailbox_;
  std::vector<Participant*> parts_;  // the thread's own
  bool stopping_ = false;            // likewise
  std::mutex mutex_;                 // of the next one
  std::vector<std::unique_ptr<Wakeup>> wakeups_;
  std::thread thread_;
};

}  // namespace netsum::runtime
