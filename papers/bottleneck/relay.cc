#include "papers/bottleneck/relay.h"

#include <poll.h>
#include <sched.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

#include "papers/bottleneck/tun.h"

namespace netsum::bottleneck {
namespace {

constexpr int most_packets_at_once = 64;  // from one side, before the other has its turn

Time now() {
  return Time(std::chrono::steady_clock::now().time_since_epoch());
}

double seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

void print(const nlohmann::ordered_json& line) {
  if (std::printf("%s\n", line.dump().c_str()) < 0 || std::fflush(stdout) != 0) {
    throw std::runtime_error("cannot write statistics to stdout");
  }
}

struct Direction {
  const char* name;
  Tun& from;
  Tun& to;
  Link link;
  std::uint64_t refused = 0;
  Duration late{};  // the most since the last line

  void take_in() {
    for (int i = 0; i < most_packets_at_once; ++i) {
      const auto packet = from.read();
      if (packet.empty()) return;
      link.push(now(), packet);
    }
  }

  void hand_out() {
    for (;;) {
      const Time time = now();
      const Time due = link.due();
      const auto packet = link.pop(time);
      if (!packet) return;
      late = std::max(late, time - due);
      if (!to.write(*packet)) ++refused;
    }
  }

  void report() {
    const Time time = now();
    const auto& counters = link.counters();
    print({{"time", seconds(time.time_since_epoch())},
           {"direction", name},
           {"packets", counters.packets},
           {"bytes", counters.bytes},
           {"dropped", counters.dropped},
           {"marked", counters.marked},
           {"queue_bytes", link.queued_bytes(time)},
           {"queue_bytes_peak", link.take_peak(time)},
           {"overrun", from.overruns()},
           {"refused", refused},
           {"late_seconds_peak", seconds(std::exchange(late, Duration{}))}});
  }
};

// A link whose packets wait for a CPU measures the scheduler: beside other work, a time slice is milliseconds, which is a
// queue of its own. The timer's slack of 50 us would be half of a delay.
void be_on_time() {
  prctl(PR_SET_TIMERSLACK, 1);
  const sched_param priority{.sched_priority = 1};
  if (::sched_setscheduler(0, SCHED_RR, &priority) != 0) spdlog::warn("no real-time priority: packets may be late");
}

Descriptor open_stop_signals() {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGINT);
  sigaddset(&stop, SIGTERM);
  sigprocmask(SIG_BLOCK, &stop, nullptr);
  return Descriptor(::signalfd(-1, &stop, SFD_CLOEXEC));
}

}  // namespace

void relay(const RelaySettings& settings) {
  const Descriptor stop = open_stop_signals();
  std::signal(SIGPIPE, SIG_IGN);  // print() says it better

  Tun left(settings.left, settings.device, settings.mtu);
  Tun right(settings.right, settings.device, settings.mtu);
  std::array directions{Direction{"left-to-right", left, right, Link(settings.link)},
                        Direction{"right-to-left", right, left, Link(settings.link)}};
  nlohmann::ordered_json ready{{"ready", true},
                               {"left", settings.left},
                               {"right", settings.right},
                               {"device", settings.device},
                               {"bits_per_second", settings.link.bits_per_second},
                               {"delay_seconds", seconds(settings.link.delay)},
                               {"queue_bytes", settings.link.queue_bytes},
                               {"mark_bytes", nullptr}};
  if (settings.link.mark_bytes) ready["mark_bytes"] = *settings.link.mark_bytes;
  be_on_time();
  print(ready);
  spdlog::info("ready: {} and {} are joined", settings.left, settings.right);

  Time next_report = now() + settings.interval;
  for (;;) {
    for (Direction& direction : directions) direction.take_in();
    for (Direction& direction : directions) direction.hand_out();
    if (const Time time = now(); time >= next_report) {
      for (Direction& direction : directions) direction.report();
      next_report = std::max(next_report + settings.interval, time);  // none is made up for
    }

    const Time wake = std::min({next_report, directions[0].link.due(), directions[1].link.due()});
    const Duration wait = std::max(wake - now(), Duration::zero());
    const timespec timeout{wait.count() / Duration::period::den, wait.count() % Duration::period::den};
    std::array<pollfd, 3> events{
        {{left.descriptor(), POLLIN, 0}, {right.descriptor(), POLLIN, 0}, {stop.number(), POLLIN, 0}}};
    if (::ppoll(events.data(), events.size(), &timeout, nullptr) < 0 && errno != EINTR) {
      throw std::system_error(errno, std::generic_category(), "cannot wait for packets");
    }
    if (events[2].revents != 0) break;
  }
  for (Direction& direction : directions) direction.report();
  spdlog::info("stopped");
}

}  // namespace netsum::bottleneck
