// Sits between workers and a switch and does to their traffic whatever a network can do, and more:
//   hostile_proxy SWITCH SEED INTENSITY
// Prints "listening HOST:PORT" (workers name that as their switch), a line of JSON for each rank that is admitted, and after
// SIGTERM one with how often each fault was done. INTENSITY multiplies the probabilities; with 0 it forwards faithfully.
#include <csignal>
#include <cstdio>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "flows.h"
#include "relay.h"

namespace {

namespace hostile = netsum::hostile;

nlohmann::ordered_json json_of(const hostile::Counts& counts, bool control) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (std::size_t i = 0; i < hostile::fault_kinds; ++i) {
    const auto fault = static_cast<hostile::Fault>(i);
    if ((fault >= hostile::first_control_fault) == control) json[hostile::to_string(fault)] = counts[i];
  }
  return json;
}

int run(const std::string& aggregator, std::uint64_t seed, double intensity) {
  sigset_t stop;  // blocked before any thread starts, so that only sigwait() takes them
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);

  std::mutex output;
  const auto say = [&](const std::string& line) {
    const std::lock_guard lock(output);
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  };
  hostile::Flows flows(netsum::sim::derive(seed, 1), intensity);
  const hostile::Relay relay(aggregator, netsum::sim::derive(seed, 2), intensity, flows, say);
  say("listening " + relay.address());
  int signal = 0;
  sigwait(&stop, &signal);

  const auto totals = flows.totals();
  say(nlohmann::ordered_json{{"datagrams", {{"up", totals.forwarded[0]}, {"down", totals.forwarded[1]}}},
                             {"up", json_of(totals.counts[0], false)},
                             {"down", json_of(totals.counts[1], false)},
                             {"control", json_of(relay.counts(), true)}}
          .dump());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    return run(argv[1], std::stoull(argv[2]), std::stod(argv[3]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "hostile_proxy: %s\n", error.what());
    return 1;
  }
}
