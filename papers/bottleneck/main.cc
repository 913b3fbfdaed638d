// A link between two network namespaces, with a rate, a delay, and a queue that drops and marks. Exit codes: 0 done (SIGINT
// or SIGTERM), 1 failed, 2 bad usage. Statistics go to stdout, logs and errors to stderr.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include "base/quantity.h"
#include "papers/bottleneck/relay.h"

namespace {

using namespace netsum::bottleneck;

constexpr auto footer =
    "Creates a TUN device in each of two network namespaces, which must exist, and carries every IP packet (v4 and v6) from "
    "one\n"
    "to the other. Each direction has a queue of its own. A packet that does not fit into it is dropped; one that is "
    "ECN-capable\n"
    "and finds more than --mark before it is delivered with \"congestion experienced\". Addresses and routes are yours to "
    "set, once\n"
    "the first line is there; papers/bottleneck/testbed does all of it. Needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN).\n"
    "\n"
    "stdout is JSON lines. First {\"ready\": true, ...}; then, for each direction at the interval and once more at the end "
    "(SIGINT\n"
    "or SIGTERM), all counted from the start but for the peaks, which are since the line before:\n"
    "  time               seconds of CLOCK_MONOTONIC, which is the same for all processes of this machine\n"
    "  direction          left-to-right or right-to-left\n"
    "  packets, bytes     delivered; bytes of IP packets, as --rate counts them\n"
    "  dropped, marked    by the queue\n"
    "  queue_bytes, queue_bytes_peak\n"
    "  overrun            packets the kernel dropped before we read them: this machine is too slow for what is sent\n"
    "  refused            packets the kernel did not take from us\n"
    "  late_seconds_peak  how long after its time a packet was delivered: because another process ran\n"
    "\n"
    "Example:\n"
    "  ip netns add a; ip netns add b\n"
    "  bottleneck --left a --right b --rate 1gbit --delay 100us --queue 256kB --mark 64kB &\n"
    "  ip -n a addr add 10.0.0.1 peer 10.0.0.2 dev bottle0; ip -n b addr add 10.0.0.2 peer 10.0.0.1 dev bottle0\n"
    "  ip netns exec a ping 10.0.0.2";

int fail(int code, std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  std::fprintf(stderr, "bottleneck: %s\n", text.c_str());
  return code;
}

// An option whose text `parse` reads.
template <class Set>
CLI::Option* add_quantity(CLI::App& app, const std::string& name, const char* type, const char* help, Set set) {
  const auto read = [name, set](const std::string& text) {
    try {
      set(text);
    } catch (const std::invalid_argument& error) {
      throw CLI::ValidationError(name, error.what());
    }
  };
  return app.add_option_function<std::string>(name, read, help)->type_name(type);
}

int run(int argc, char** argv) {
  RelaySettings settings;
  LinkSettings& link = settings.link;
  link.queue_bytes = 256'000;
  CLI::App app{"Joins two network namespaces by a link with a rate, a delay and a queue that drops and marks.",
               "bottleneck"};
  app.footer(footer);
  app.add_option("--left", settings.left, "Network namespace: a name of `ip netns`, or a path")
      ->type_name("NAMESPACE")
      ->required();
  app.add_option("--right", settings.right, "The other one")->type_name("NAMESPACE")->required();
  add_quantity(app, "--rate", "RATE", "Of each direction: 100mbit, 1.5gbit", [&](auto& text) {
    link.bits_per_second = netsum::parse_rate(text);
  })->required();
  add_quantity(app, "--delay", "TIME", "From a packet's last bit to its delivery, one way: 100us, 5ms (default 0s)",
               [&](auto& text) { link.delay = netsum::parse_duration(text); });
  add_quantity(app, "--queue", "SIZE", "Capacity of each direction's queue (default 256kB)",
               [&](auto& text) { link.queue_bytes = netsum::parse_bytes(text); });
  add_quantity(app, "--mark", "SIZE", "Mark ECN-capable packets that find more than this in the queue (default: none)",
               [&](auto& text) { link.mark_bytes = netsum::parse_bytes(text); });
  add_quantity(app, "--interval", "TIME", "Between lines of statistics (default 1s)", [&](auto& text) {
    settings.interval = netsum::parse_duration(text);
    if (settings.interval == netsum::Duration::zero()) throw std::invalid_argument("0 is no interval");
  });
  app.add_option("--device", settings.device, "Name of the two devices (default bottle0)")->type_name("NAME");
  app.add_option("--mtu", settings.mtu, "Of the two devices (default 1500)")
      ->type_name("BYTES")
      ->check(CLI::Range(1280, 65535));
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    return fail(2, std::string(error.what()) + " (see bottleneck --help)");
  }
  if (settings.device.empty() || settings.device.size() > 15) return fail(2, "--device: a name has 1 to 15 characters");
  if (link.queue_bytes < settings.mtu) return fail(2, "--queue: no packet of --mtu bytes would ever fit");
  relay(settings);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  auto logger = spdlog::stderr_color_mt("bottleneck");
  logger->set_pattern("%H:%M:%S.%e %n[%P] %^%l%$ %v");
  spdlog::set_default_logger(logger);
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    return fail(1, error.what());
  }
}
