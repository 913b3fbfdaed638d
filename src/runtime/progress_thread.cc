#include "runtime/progress_thread.h"

#include <sched.h>

#include <algorithm>
#include <string>
#include <utility>

namespace netsum::runtime {

ProgressThread::ProgressThread(const Key& key) : ProcessWide(key) {
  const SignalsBlocked blocked;
  thread_ = std::thread([this] {
    const Key& own = this->key();
    enter_thread(own.kind == Kind::monitor ? "netsum-monitor" : "netsum-worker" + std::to_string(own.index), own.cpu);
    loop();
  });
}

ProgressThread::~ProgressThread() {
  mailbox_.post([this] { stopping_ = true; });
  thread_.join();
}

void ProgressThread::add(Participant& part) {
  mailbox_.post([this, &part] { parts_.push_back(&part); });
}

void ProgressThread::remove(Participant& part) {
  mailbox_.call([this, &part] { std::erase(parts_, &part); });
}

void ProgressThread::notify() {
  mailbox_.post([] {});
}

std::unique_ptr<Wakeup> ProgressThread::lend_wakeup() {
  {
    const std::lock_guard lock(mutex_);
    if (!wakeups_.empty()) {
      auto wakeup = std::move(wakeups_.back());
      wakeups_.pop_back();
      return wakeup;
    }
  }
  return std::make_unique<Wakeup>();
}

void ProgressThread::take_back(std::unique_ptr<Wakeup> wakeup) {
  wakeup->drain();
  const std::lock_guard lock(mutex_);
  wakeups_.push_back(std::move(wakeup));
}

void ProgressThread::loop() {
  Wait wait;
  while (true) {
    if (mailbox_.waiting()) mailbox_.run_all();
    if (stopping_) return;
    for (Participant* const part : parts_) part->serve();
    wait.descriptors.assign(1, {mailbox_.descriptor(), POLLIN, 0});
    wait.until = never;
    wait.again = wait.yields = false;
    for (Participant* const part : parts_) part->prepare(wait);
    if (mailbox_.waiting()) continue;
    if (!wait.again) {
      wait_for(wait.descriptors, wait.until);
    } else if (wait.yields) {
      sched_yield();
    }
  }
}

}  // namespace netsum::runtime
