// `netsum bench parallel` on one machine: a process per GPU, shared memory for machines, and loopback for links.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include "command.h"
#include "local_job.h"
#include "parallel.h"
#include "progress.h"

namespace netsum::app {
namespace {

std::vector<Program> daemons_of(const ParallelBenchOptions& options) {
  if (!options.in_network()) return {};
  std::vector<Program> daemons;
  for (const LocalDaemons& each : options.protocol_value().local_daemons(options)) {
    daemons.push_back(
        {each.name, {each.command, "--listen", "127.0.0.1:0", "--threads", std::to_string(options.switch_threads)}});
  }
  return daemons;
}

std::vector<Program> workers_of(const ParallelBenchOptions& options, const std::string& job, const std::string& peers,
                                const std::vector<std::string>& daemons) {
  const auto kinds = options.protocol_value().local_daemons(options);
  std::vector<Program> workers;
  for (std::uint32_t machine = 0; machine < options.machines; ++machine) {
    for (std::uint32_t gpu = 0; gpu < options.gpus; ++gpu) {
      std::vector<std::string> arguments{"bench", "parallel", "--rank-report"};
      const auto add = [&](const char* flag, const std::string& value) {
        arguments.push_back(std::string("--") + flag);
        arguments.push_back(value);
      };
      add("pattern", options.pattern);
      add("machines", std::to_string(options.machines));
      add("gpus", std::to_string(options.gpus));
      add("machine", std::to_string(machine));
      add("gpu", std::to_string(gpu));
      add("job", job);
      if (!peers.empty()) add("peers", peers);
      if (options.in_network()) {
        add("protocol", options.protocol);
        for (std::size_t i = 0; i < kinds.size(); ++i) add(kinds[i].flag, daemons[i]);
        add("threads", std::to_string(options.threads));
        add("packet-elements", std::to_string(options.packet_elements));
        add("slots", std::to_string(options.slots));
        add("message-packets", std::to_string(options.message_packets));
      }
      add("elements", std::to_string(options.elements));
      add("iterations", std::to_string(options.iterations));
      add("warmup", std::to_string(options.warmup));
      add("seed", std::to_string(options.seed));
      add("connect-deadline", std::to_string(options.connect_deadline_seconds));
      add("deadline", std::to_string(options.deadline_seconds));
      workers.push_back({"GPU " + std::to_string(gpu) + " of machine " + std::to_string(machine), std::move(arguments)});
    }
  }
  return workers;
}

}  // namespace

std::vector<MemberReport> run_members(const ParallelBenchOptions& options, int& exit_code) {
  const std::string job = "bench-" + std::to_string(getpid());
  // Reserves the children's ports.
  std::vector<parallel::TcpSocket> ports;
  std::string peers;
  for (std::uint32_t rank = 0; options.pattern != "pn" && rank < options.ranks(); ++rank) {
    ports.push_back(parallel::TcpSocket::bound_to("127.0.0.1:0"));
    peers += (peers.empty() ? "" : ",") + ports.back().local_address();
  }
  const Progress progress(options.iterations);
  std::vector<MemberReport> reports;
  unsigned long long furthest = 0;
  const auto on_line = [&](const std::string& line) {
    constexpr std::string_view iteration = "iteration ";
    if (line.starts_with(iteration)) {
      furthest = std::max(furthest, std::stoull(line.substr(iteration.size())));
      progress.show(furthest);
    } else {
      reports.push_back(MemberReport::parse(line));
    }
  };
  exit_code = LocalJob().run(
      daemons_of(options), std::chrono::duration<double>(options.connect_deadline_seconds),
      [&](const auto& daemons) { return workers_of(options, job, peers, daemons); }, on_line);
  if (exit_code == exit_done && reports.size() != options.ranks()) {
    std::fprintf(stderr, "netsum: every process ended, but not with a report\n");
    exit_code = exit_failed;
  }
  if (exit_code != exit_done) return {};
  std::sort(reports.begin(), reports.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return reports;
}

}  // namespace netsum::app
