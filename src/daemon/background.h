// A thread for what may wait, beside one that must not: it runs what it is handed, and looks around from time to time.
#pragma once

#include <functional>
#include <thread>
#include <utility>

#include "base/time.h"
#include "runtime/thread.h"

namespace netsum::daemon {

class Background {
 public:
  // Called on the thread: `after` when commands have run, `tick` once in each `period`.
  Background(Duration period, std::function<void()> after, std::function<void()> tick);
  ~Background();  // all commands have run
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  void post(std::function<void()> command) { mailbox_.post(std::move(command)); }
  void call(const std::function<void()>& command) { mailbox_.call(command); }  // returns when it has run

 private:
  void run();

  const Duration period_;
  const std::function<void()> after_, tick_;
  runtime::Mailbox mailbox_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace netsum::daemon
