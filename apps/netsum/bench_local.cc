// `netsum bench COLLECTIVE` on one machine: aggregators and workers as separate processes, over real sockets.
#include <spdlog/fmt/fmt.h>

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <span>

#include "bench.h"
#include "command.h"
#include "netsum/daemon_options.h"
#include "netsum/error.h"
#include "progress.h"
#include "transport/system/random.h"
#include "transport/system/socket.h"

namespace netsum::app {
namespace {

std::string boolean(bool value) {
  return value ? "true" : "false";
}

std::string number(double value) {
  return fmt::format("{}", value);
}

// Of the groups [first, last).
std::vector<Program> daemons_of(const BenchOptions& options, std::size_t first, std::size_t last) {
  std::vector<std::string> common{"--listen", "127.0.0.1:0",        "--threads",   std::to_string(options.switch_threads),
                                  "--loss",   number(options.loss), "--busy-poll", boolean(options.busy_poll)};
  if (options.threads > options.switch_threads) common.insert(common.end(), {"--lanes", std::to_string(options.threads)});
  if (options.pin) common.emplace_back("--pin");
  struct Kind {
    std::uint64_t seed;  // of its next daemon
    std::vector<std::string> arguments;
  };
  std::map<std::string, Kind> kinds{
      {"switch",
       {options.loss_seed + 1000,
        {"--slots", std::to_string(options.switch_slots), "--pool-slots", std::to_string(options.pool_slots),
         "--pool-elements", std::to_string(options.pool_elements), "--multicast", options.multicast, "--profile",
         options.profile}}},
      {"ps", {options.loss_seed + 2000, {"--scaling", options.scaling}}}};
  if (options.chip_value()) {
    kinds.at("switch").arguments.emplace_back("--allow-fcs-only");  // of the loopback device
    kinds.at("ps").arguments.insert(kinds.at("ps").arguments.end(), {"--rules", "chip", "--allow-fcs-only"});
  }
  std::vector<Program> daemons;
  const auto groups = options.protocol_value().local_daemons(options);
  for (std::size_t number = 0; number < std::min(last, groups.size()); ++number) {
    const LocalDaemons& group = groups[number];
    Kind& kind = kinds.at(group.command);
    for (std::uint32_t i = 0; i < group.count; ++i) {
      Program daemon{group.name + " " + std::to_string(i), {group.command, "--seed", std::to_string(kind.seed++)}};
      for (const auto& some : {common, kind.arguments}) {
        daemon.arguments.insert(daemon.arguments.end(), some.begin(), some.end());
      }
      if (number >= first) daemons.push_back(std::move(daemon));
    }
  }
  return daemons;
}

// The roots of a tree with a level of switches between them and the racks. `addresses`: of the racks' switches and of those
// between.
std::vector<Program> roots_of(const BenchOptions& options, const std::vector<std::string>& addresses) {
  const auto [racks, rows] = options.levels();
  std::string parents;
  for (std::size_t rack = 0; rack < racks; ++rack) {
    parents += (rack == 0 ? "" : ",") + addresses[rack] + "=" + addresses[racks + rack * rows / racks];
  }
  std::vector<Program> roots = daemons_of(options, 0, 1);
  for (Program& root : roots) root.arguments.insert(root.arguments.end(), {"--switch-parent", parents});
  return roots;
}

std::string joined(std::span<const std::string> addresses) {
  std::string list;
  for (const std::string& each : addresses) list += (list.empty() ? "" : ",") + each;
  return list;
}

// A secret of the workers of one run, in a file that ends with it.
class JobKey {
 public:
  JobKey() {
    std::array<std::byte, 32> drawn{};
    transport::random_bytes(drawn);
    std::string text;
    for (const std::byte byte : drawn) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
    const transport::Descriptor file(::mkstemp(path_.data()));
    if (file.number() < 0 || ::write(file.number(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      throw Error(ErrorCode::internal, "cannot write the job key to " + path_ + ": " + transport::errno_text());
    }
  }
  JobKey(const JobKey&) = delete;
  JobKey& operator=(const JobKey&) = delete;
  ~JobKey() { ::unlink(path_.c_str()); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_ = (std::filesystem::temp_directory_path() / "netsum-key-XXXXXX").string();
};

// `addresses`: of daemons_of().
std::vector<Program> workers_of(const BenchOptions& options, const std::vector<std::string>& addresses,
                                const std::optional<JobKey>& key) {
  const auto groups = options.protocol_value().local_daemons(options);
  std::vector<Program> workers;
  for (std::uint32_t rank = 0; rank < options.workers; ++rank) {
    std::vector<std::string> arguments{"bench", to_string(options.collective), "--rank-report"};
    const auto add = [&](const char* flag, const std::string& value) {
      arguments.push_back(std::string("--") + flag);
      arguments.push_back(value);
    };
    add("protocol", options.protocol);
    std::span<const std::string> others = addresses;
    for (std::size_t i = 0; i < std::min<std::size_t>(2, groups.size()); ++i) {
      const auto group = others.first(groups[i].count);
      others = others.subspan(groups[i].count);
      // Neighbours in the ring share a rack.
      add(groups[i].flag, i == 0 ? joined(group) : group[std::size_t{rank} * group.size() / options.workers]);
    }
    add("job", options.job);
    add("rank", std::to_string(rank));
    add("world-size", std::to_string(options.workers));
    add("elements", std::to_string(options.elements));
    add("dtype", options.dtype);
    add("wire", options.wire);
    add("rounding", options.rounding);
    add("profile", options.profile);
    add("op", options.op);
    add("scaling", options.scaling);
    add("magnitude", std::to_string(options.magnitude));
    add("iterations", std::to_string(options.iterations));
    add("warmup", std::to_string(options.warmup));
    add("warmup-elements", std::to_string(options.warmup_elements));
    add("seed", std::to_string(options.seed));
    add("loss", number(options.loss));
    add("loss-seed", std::to_string(options.loss_seed + rank));
    add("threads", std::to_string(options.threads));
    add("packet-elements", std::to_string(options.packet_elements));
    add("slots", std::to_string(options.slots));
    add("congestion-control", boolean(options.congestion_control));
    add("busy-poll", boolean(options.busy_poll));
    add("message-packets", std::to_string(options.message_packets));
    add("first-psn", options.first_psn);
    add("transport", options.transport);
    add("connect-deadline", number(options.connect_deadline_seconds));
    add("deadline", number(options.deadline_seconds));
    if (key) {
      arguments.emplace_back("--private");
      add("job-key-file", key->path());
      add("fixed-scale", options.fixed_scale);
    }
    if (options.allocate) arguments.emplace_back("--allocate");
    if (options.back_to_back) arguments.emplace_back("--back-to-back");
    if (options.local_checksums) arguments.emplace_back("--local-checksums");
    if (options.pin) arguments.emplace_back("--pin");
    if (options.spin) arguments.emplace_back("--spin");
    workers.push_back({"worker rank " + std::to_string(rank), arguments});
  }
  return workers;
}

}  // namespace

std::vector<RankReport> run_programs(const BenchOptions& options, const std::vector<Program>& daemons,
                                     const LocalJob::MakePrograms& make_workers, const LocalJob::MakePrograms& make_above,
                                     int& exit_code) {
  const Progress progress(options.iterations);
  std::vector<RankReport> reports;
  unsigned long long slowest_done = 0;
  const auto on_worker_line = [&](const std::string& line) {
    constexpr std::string_view iteration = "iteration ";
    if (line.starts_with(iteration)) {
      slowest_done = std::max(slowest_done, std::stoull(line.substr(iteration.size())));
      progress.show(slowest_done);
    } else {
      reports.push_back(RankReport::parse(line));
    }
  };
  const std::chrono::duration<double> patience(options.connect_deadline_seconds);
  exit_code = LocalJob().run(daemons, patience, make_workers, on_worker_line, make_above);
  if (exit_code == exit_done && reports.size() != options.workers) {
    std::fprintf(stderr, "netsum: every process ended, but not with a report\n");
    exit_code = exit_failed;
  }
  if (exit_code != exit_done) return {};
  std::sort(reports.begin(), reports.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return reports;
}

std::vector<RankReport> run_local(const BenchOptions& options, int& exit_code) {
  std::optional<JobKey> key;
  if (options.private_sums) key.emplace();
  if (options.levels().rows == 0) {
    return run_programs(
        options, daemons_of(options, 0, SIZE_MAX),
        [&](const auto& addresses) { return workers_of(options, addresses, key); }, {}, exit_code);
  }
  const std::size_t below = options.levels().racks + options.levels().rows;
  return run_programs(
      options, daemons_of(options, 1, SIZE_MAX),
      [&](std::vector<std::string> addresses) {
        std::rotate(addresses.begin(), addresses.begin() + static_cast<std::ptrdiff_t>(below), addresses.end());
        return workers_of(options, addresses, key);
      },
      [&](const auto& addresses) { return roots_of(options, addresses); }, exit_code);
}

}  // namespace netsum::app
