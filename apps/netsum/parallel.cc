// `netsum bench parallel`: flags, and the choice of how to run.
#include "parallel.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>

#include "command.h"
#include "netsum/error.h"

namespace netsum::app {
namespace {

constexpr std::uint64_t most_elements = std::uint64_t{1} << 40;
constexpr std::uint64_t most_ranks = 256;

class ParallelCommand final : public Command {
 public:
  ParallelCommand(CLI::App& app, Sections& sections) : Command(app, "bench.parallel", sections) {
    Settings& s = settings();
    s.add("pattern", options_.pattern, "NAME",
          "fr: one flat ring; ta: reduce to masters, their ring, broadcast; pn: n rings through the network's aggregator; "
          "pr: n "
          "plain rings");
    s.add("protocol", options_.protocol, "NAME", "pn: netreduce, switchml or atp");
    s.add("machines", options_.machines, "M", "Machines").between(1, 256);
    s.add("gpus", options_.gpus, "n", "GPUs of each machine: processes that share memory").between(1, 256);
    s.add("elements", options_.elements, "E", "Elements of the tensor, float32");
    s.add("iterations", options_.iterations, "I", "Timed all-reduces").between(1, 1'000'000);
    s.add("warmup", options_.warmup, "W", "Untimed all-reduces before the timed ones");
    s.add("seed", options_.seed, "S", "Seed of the inputs");
    s.add("connect-deadline", options_.connect_deadline_seconds, "SECONDS", "Deadline for all processes to connect")
        .between(0.001, 1e6);
    s.add("deadline", options_.deadline_seconds, "SECONDS", "Deadline of one all-reduce").between(0.001, 1e6);
    s.add_flag("json", options_.json, "Print one JSON object in place of a table");
    const auto network = "pn";
    s.add("threads", options_.threads, "T", "I/O threads of a process").between(1, 64).group(network);
    s.add("packet-elements", options_.packet_elements, "P",
          "Elements per packet, as in bench all-reduce; 0: as many as the MTU allows")
        .group(network);
    s.add("slots", options_.slots, "N",
          "Window of each lane, as in bench all-reduce; 0: from the measured bandwidth-delay product")
        .group(network);
    s.add("message-packets", options_.message_packets, "L",
          "NetReduce: packets per message; 0: a quarter of the measured window")
        .between(0, 4096)
        .group(network);
    s.add("switch-threads", options_.switch_threads, "T", "I/O threads of the aggregator, where it runs here")
        .between(1, 64)
        .group(network);
    const auto across = "One process, across hosts";
    s.add("machine", options_.machine, "K", "Machine number of this process").group(across);
    s.add("gpu", options_.gpu, "I", "GPU number of this process").group(across);
    s.add("job", options_.job, "NAME",
          "Name of the job, the same on all processes; no other running job on the machine may have it")
        .group(across);
    s.add("peers", options_.peers, "HOST:PORT[,...]", "fr, ta, pr: where each process listens, machine by machine")
        .group(across);
    s.add("token-file", options_.token_file, "FILE",
          "File with the secret of the ring's processes and of the aggregators in its first line")
        .group(across);
    s.add("switch", options_.switches, "HOST:PORT[,...]", "pn: the aggregators; ATP: this machine's switch").group(across);
    s.add("ps", options_.servers, "HOST:PORT[,...]", "pn with ATP: the parameter servers").group(across);
    s.add("tls-ca", options_.tls_ca, "FILE", "pn: PEM file of trusted CAs: use TLS on the control channel").group(across);
    s.add_flag("rank-report", options_.rank_report, "Tell a parent: which iteration ended, and what failed").group("");
    footer(
        "Machines of several GPUs, in the patterns of NetReduce's section 3.4 (docs/parallel.md). Every result of every\n"
        "iteration in every process is compared with the exact sum, which the benchmark computes itself; `wrong` must be\n"
        "0. With --machine and --gpu it is one process of a job across hosts, and prints what it measured as one line of\n"
        "JSON.\n"
        "Examples:\n"
        "  netsum bench parallel --pattern pn --machines 4 --gpus 2 --elements 1000000 --json\n"
        "  netsum bench parallel --pattern fr --machines 4 --gpus 2");
  }

  int run() override {
    check();
    if (is_one()) return run_one();
    int exit_code = exit_done;
    const std::vector<MemberReport> members = run_members(options_, exit_code);
    if (members.empty()) return exit_code;
    const ParallelReport report(options_, members);
    std::fputs(options_.json ? report.json(options_).c_str() : report.table(options_).c_str(), stdout);
    return judge(report.verdict.wrong, report.bit_identical);
  }

 private:
  [[nodiscard]] bool given(const char* name) { return !settings().origin(name).empty(); }
  [[nodiscard]] bool is_one() { return given("machine"); }

  void check() {
    static_cast<void>(options_.pattern_value());
    const bool at_servers = options_.protocol_value().joins_at_servers();
    if (std::uint64_t{options_.machines} * options_.gpus > most_ranks) {
      throw UsageError("--machines times --gpus is at most " + std::to_string(most_ranks));
    }
    if (options_.elements > most_elements) throw UsageError("--elements is more than 2^40, or negative");
    if (options_.pattern != "pn") {
      for (const auto* name :
           {"protocol", "switch", "ps", "tls-ca", "threads", "packet-elements", "slots", "message-packets"}) {
        if (given(name)) throw UsageError(settings().origin(name) + " requires --pattern pn");
      }
    } else if (given("peers")) {
      throw UsageError(settings().origin("peers") + " requires --pattern fr, ta or pr");
    }
    if (given("ps") && !at_servers) throw UsageError("--ps requires --protocol atp");
    if (!is_one()) {
      for (const auto* name : {"gpu", "job", "peers", "switch", "ps", "token-file", "tls-ca"}) {
        if (given(name))
          throw UsageError(settings().origin(name) + " needs --machine K: without it all run on this machine");
      }
      return;
    }
    if (options_.machine >= options_.machines) throw UsageError("--machine is not below --machines");
    if (options_.gpu >= options_.gpus) throw UsageError("--gpu is not below --gpus");
    if (options_.pattern != "pn" && split_list(options_.peers).size() != options_.ranks()) {
      throw UsageError("--peers must name all " + std::to_string(options_.ranks()) + " processes, machine by machine");
    }
    if (options_.in_network() && options_.switches.empty()) throw UsageError("--pattern pn requires --switch HOST:PORT");
    if (options_.in_network() && at_servers && options_.servers.empty()) {
      throw UsageError("--protocol " + options_.protocol + " requires --ps HOST:PORT");
    }
  }

  int run_one() {
    try {
      const MemberReport report = run_member(options_, [&](std::uint32_t done) {
        if (!options_.rank_report) return;
        std::printf("iteration %u\n", done);
        std::fflush(stdout);
      });
      std::printf("%s\n", report.text().c_str());
      return options_.rank_report ? exit_done : judge(report.verdict.wrong, true);
    } catch (const Error& error) {
      const std::string text =
          "GPU " + std::to_string(options_.gpu) + " of machine " + std::to_string(options_.machine) + ": " + error.what();
      if (!options_.rank_report) throw Error(error.code(), text);
      std::printf("error %s\n", text.c_str());  // to the parent, which decides whose error is the cause
      return exit_code_of(error.code());
    }
  }

  static int judge(std::uint64_t wrong, bool bit_identical) {
    if (wrong == 0) return exit_done;
    std::fprintf(stderr, "netsum: %llu wrong elements%s\n", static_cast<unsigned long long>(wrong),
                 bit_identical ? "" : "; the ranks' results differ");
    return exit_failed;
  }

  ParallelBenchOptions options_;
};

}  // namespace

parallel::Pattern ParallelBenchOptions::pattern_value() const {
  using parallel::Pattern;
  constexpr std::array<std::pair<std::string_view, Pattern>, 4> names{{{"fr", Pattern::flat_ring},
                                                                       {"ta", Pattern::tencent},
                                                                       {"pn", Pattern::parallel_netreduce},
                                                                       {"pr", Pattern::parallel_ring}}};
  const auto found = std::find_if(names.begin(), names.end(), [&](const auto& each) { return each.first == pattern; });
  if (found == names.end()) throw UsageError("--pattern is fr, ta, pn or pr, not '" + pattern + "'");
  return found->second;
}

const BenchProtocol& ParallelBenchOptions::protocol_value() const {
  return bench_protocol(protocol, "netreduce, switchml or atp");
}

std::unique_ptr<Command> make_parallel_command(CLI::App& bench, Sections& sections) {
  return std::make_unique<ParallelCommand>(
      add_subcommand(bench, "parallel", "Measure all-reduces among machines of several GPUs, and check every result"),
      sections);
}

}  // namespace netsum::app
