#include "runtime/memory_thread.h"

#include <algorithm>
#include <string>

namespace netsum::runtime {
namespace {

constexpr Duration longest_idle = std::chrono::hours(1);
constexpr Duration between_looks = std::chrono::microseconds(100);

}  // namespace

MemoryThread::MemoryThread(const Key& key) : ProcessWide(key) {
  const SignalsBlocked blocked;
  thread_ = std::thread([this] {
    const Key& own = this->key();
    enter_thread("netsum-shared" + std::to_string(own.index), own.cpu);
    loop();
  });
}

MemoryThread::~MemoryThread() {
  commands_.post([this] { stopping_ = true; });
  thread_.join();
}

void MemoryThread::add(Participant& part) {
  commands_.post([this, &part] { parts_.push_back(&part); });
}

void MemoryThread::remove(Participant& part) {
  commands_.call([this, &part] { std::erase(parts_, &part); });
}

void MemoryThread::notify() {
  told_.fetch_add(1, std::memory_order_seq_cst);
  if (const auto* const word = asleep_on_.load(std::memory_order_seq_cst)) wake_all(*word);
}

void MemoryThread::loop() {
  while (true) {
    const std::uint32_t told = told_.load(std::memory_order_seq_cst);
    if (commands_.waiting()) commands_.run_all();
    if (stopping_) return;
    bool moved = false;
    for (Participant* const part : parts_) moved |= part->serve();
    if (moved) continue;
    Rest rest = Rest::nothing_to_wait_for;
    sleepers_.clear();
    for (Participant* const part : parts_) {
      const Rest one = part->rest();
      if (one == Rest::sleep) sleepers_.push_back(part);
      rest = std::min(rest, one);
    }
    if (rest == Rest::look_again) {
      relax();
    } else if (rest == Rest::yield) {
      std::this_thread::yield();
    } else {
      sleep(told);
    }
  }
}

void MemoryThread::sleep(std::uint32_t told) {
  awaited_.assign(1, {&told_, told, longest_idle});
  bool changed = false;
  for (Participant* const part : sleepers_) {
    if (const auto awaited = part->before_sleep()) {
      awaited_.push_back(*awaited);
    } else {
      changed = true;
    }
  }
  asleep_on_.store(waits_for_all() ? &told_ : awaited_.back().word, std::memory_order_seq_cst);
  if (!changed && told_.load(std::memory_order_seq_cst) == told) wait();
  asleep_on_.store(nullptr, std::memory_order_release);
  for (Participant* const part : sleepers_) part->after_sleep();
}

// A wait for one word is cheaper, and enough for the usual one communicator at work: notify() wakes from there too.
bool MemoryThread::waits_for_all() const {
  return waits_on_any_ && awaited_.size() > 2;
}

void MemoryThread::wait() const {
  Duration patience = longest_idle;
  for (const Awaited& awaited : awaited_) patience = std::min(patience, awaited.longest);
  if (waits_for_all()) return wait_on_any(awaited_, patience);
  wait_on(*awaited_.back().word, awaited_.back().seen, awaited_.size() <= 2 ? patience : std::min(patience, between_looks));
}

}  // namespace netsum::runtime
