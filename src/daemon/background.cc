#include "daemon/background.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace netsum::daemon {

Background::Background(Duration period, std::function<void()> after, std::function<void()> tick)
    : period_(period), after_(std::move(after)), tick_(std::move(tick)) {
  const runtime::SignalsBlocked blocked;
  thread_ = std::thread([this] {
    runtime::enter_thread("netsum-bump");
    run();
  });
}

Background::~Background() {
  mailbox_.post([this] { stopping_ = true; });
  thread_.join();
}

void Background::run() {
  pollfd posted{mailbox_.descriptor(), POLLIN, 0};
  Time next = runtime::now() + period_;
  while (!stopping_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - runtime::now());
    poll(&posted, 1, static_cast<int>(std::max<std::int64_t>(0, left.count())));
    if (mailbox_.waiting()) {
      mailbox_.run_all();
      after_();
    }
    if (runtime::now() < next) continue;
    next = runtime::now() + period_;
    tick_();
  }
}

}  // namespace netsum::daemon
