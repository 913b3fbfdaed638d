// `netsum bench COLLECTIVE`: flags, and the choice of how to run.
#include "bench.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>

#include "base/bitmap.h"
#include "command.h"
#include "data_path.h"
#include "netsum/error.h"
#include "progress.h"
#include "runtime/cpus.h"

namespace netsum::app {

const BenchProtocol& BenchOptions::protocol_value() const {
  return bench_protocol(protocol, "switchml, atp or netreduce");
}

ReduceOp BenchOptions::op_value() const {
  for (const ReduceOp each : reduce_ops) {
    if (op == netsum::to_string(each)) return each;
  }
  throw UsageError("--op must be sum, avg, min, max, prod, band, bor or bxor, not '" + op + "'");
}

const char* to_string(CollectiveName collective) {
  switch (collective) {
    case CollectiveName::all_reduce:
      return "all-reduce";
    case CollectiveName::reduce_scatter:
      return "reduce-scatter";
    case CollectiveName::all_gather:
      return "all-gather";
    case CollectiveName::fsdp:
      return "fsdp";
    case CollectiveName::reduce:
      return "reduce";
    case CollectiveName::broadcast:
      return "broadcast";
    case CollectiveName::barrier:
      return "barrier";
  }
  return "?";
}

namespace {

constexpr std::uint32_t most_threads_by_default = 8;
constexpr std::uint64_t most_elements = std::uint64_t{1} << 40;

class BenchCommand final : public Command {
 public:
  BenchCommand(CollectiveName collective, CLI::App& app, Sections& sections)
      : Command(app, std::string("bench.") + to_string(collective), sections) {
    options_.collective = collective;
    Settings& s = settings();
    s.add("protocol", options_.protocol, "NAME", "switchml, atp or netreduce");
    s.add("elements", options_.elements, "E",
          "Elements of the tensor; for reduce-scatter, all-gather and each of fsdp's two, of the equal parts of all ranks "
          "together");
    s.add("dtype", options_.dtype, "TYPE",
          "float32, float16, bfloat16, float64, int8, uint8, int16, int32, int64 or bool; ATP and NetReduce sum only "
          "float32, float16, bfloat16 and int32");
    s.add(
        "wire", options_.wire, "FORMAT",
        "SwitchML: format of floats in packets: native (the tensor's own width), float32, float16, bfloat16, int8 or int4");
    s.add("rounding", options_.rounding, "HOW",
          "with --wire int8 and int4: chance (up or down, with the right mean) or nearest");
    s.add("profile", options_.profile, "NAME",
          "SwitchML, ATP: profile of the aggregators, software or chip (see netsum switch)");
    s.add("op", options_.op, "OP", "sum or avg; SwitchML also min, max, prod, band, bor, bxor");
    s.add("scaling", options_.scaling, "HOW",
          "ATP: scaling of floats, fixed or dynamic; with --ps, the same as at the parameter servers");
    s.add("magnitude", options_.magnitude, "BITS", "Multiply inputs of float32 or bfloat16 by 2^BITS").between(0, 64);
    s.add("iterations", options_.iterations, "I", "Timed calls").between(1, 1'000'000);
    s.add("warmup", options_.warmup, "W", "Untimed calls before the timed ones");
    s.add("warmup-elements", options_.warmup_elements, "E",
          "Most elements of an untimed call, to save time on slow links; 0: --elements");
    s.add("seed", options_.seed, "S", "Seed of the inputs and, if --loss-seed is 0, of the losses");
    s.add("loss", options_.loss, "P", "Drop this share of the datagrams at their receivers, in both directions: 0.01, or 1%")
        .share(0.9);
    s.add("loss-seed", options_.loss_seed, "S", "Seed of the losses; 0: --seed");
    s.add("threads", options_.threads, "T",
          "I/O threads of a worker; 0: one, or if all run on this machine, one per CPU up to 8 (pinned on at most 8 CPUs)")
        .between(0, 64);
    s.add("packet-elements", options_.packet_elements, "P",
          "Elements per packet: a multiple of 64 up to 1024, or of 256; NetReduce: a power of two from 64 to 1024, or "
          "without --verbs a multiple of 1024; 0: as many as the MTU allows");
    s.add("slots", options_.slots, "N",
          "Window of each lane: slots, a power of two; NetReduce: messages; 0: measured (a switch's own slots: "
          "--switch-slots)");
    s.add("message-packets", options_.message_packets, "L",
          "NetReduce: packets per message; 0: a quarter of the measured window")
        .between(0, 4096);
    s.add("first-psn", options_.first_psn, "N", "NetReduce: first packet sequence number of all connections, or 'random'");
    s.add_flag("local-checksums", options_.local_checksums, "SwitchML and ATP: use checksums on the loopback device too");
    s.add("congestion-control", options_.congestion_control, "BOOL", "ATP, NetReduce: false sends whole windows always");
    s.add_flag("private", options_.private_sums,
               "SwitchML, NetReduce: aggregators add values that they cannot read; across hosts with --job-key-file");
    s.add(
        "fixed-scale", options_.fixed_scale, "EXPONENT",
        "With --private, SwitchML: one scale for all floats, up to 2^EXPONENT, so that aggregators see none; larger values "
        "are clamped. none: blocks have their own");
    s.add_flag("pin", options_.pin, "Pin thread i to the i-th allowed CPU");
    s.add("busy-poll", options_.busy_poll, "BOOL", "Threads poll for a moment before they sleep");
    s.add_flag("spin", options_.spin, "With --transport shm: threads yield the CPU in a call instead of sleeping");
    s.add("connect-deadline", options_.connect_deadline_seconds, "SECONDS", "Deadline for all ranks to join")
        .between(0.001, 1e6);
    s.add("deadline", options_.deadline_seconds, "SECONDS", "Deadline of one call").between(0.001, 1e6);
    s.add_flag("back-to-back", options_.back_to_back,
               "Measure latency: no barriers between the timed calls; the time of a call is the mean over the ranks");
    s.add("transport", options_.transport, "HOW",
          "SwitchML: udp, or shm (shared memory; all ranks on the aggregator's host)");
    s.add_flag("allocate", options_.allocate,
               "Tensors in memory from Communicator::allocate(): with --transport shm nothing is copied in or out");
    s.add_flag("json", options_.json, "Print one JSON object in place of a table");
    const auto local = "Everything on this machine";
    s.add("workers", options_.workers, "N", "Worker processes").between(1, max_world_size).group(local);
    s.add("aggregators", options_.aggregators, "M", "Aggregator processes; chunks are sharded over them")
        .between(1, 64)
        .group(local);
    s.add("switch-threads", options_.switch_threads, "T", "I/O threads of an aggregator; 0: as many as --threads")
        .between(0, 64)
        .group(local);
    s.add("switch-slots", options_.switch_slots, "N", "Slots of an aggregator").positive().group(local);
    s.add("parameter-servers", options_.parameter_servers, "M", "ATP: parameter server processes")
        .between(1, 64)
        .group(local);
    s.add("pool-slots", options_.pool_slots, "N",
          "ATP: aggregator slots of each thread of the switch; 0: as many as hold 8 million elements")
        .between(0, 1 << 24)
        .group(local);
    s.add("pool-elements", options_.pool_elements, "E", "ATP: elements of each; 0: 10880, the most")
        .between(0, 10880)
        .group(local);
    s.add(
         "racks", options_.racks, "R[,R2]",
         "R switches below the aggregators or parameter servers, which share the workers; R2: switches in the level between")
        .group(local);
    s.add("multicast", options_.multicast, "GROUP[/BITS]:PORT|off",
          "SwitchML: send results by IP multicast (see netsum switch)")
        .group(local);
    const auto across = "One worker, across hosts";
    s.add("ps", options_.servers, "HOST:PORT[,...]", "ATP: the parameter servers, in the same order on all ranks")
        .group(across);
    s.add("switch", options_.switches, "HOST:PORT[,...]",
          "The aggregators, in the same order on all ranks: addresses, srv:NAME (service records in DNS) or @FILE (an "
          "address a line); ATP, and with --spine: this rank's switch")
        .group(across);
    s.add("spine", options_.spines, "HOST:PORT[,...]",
          "SwitchML, NetReduce across racks: the aggregators above the ranks' switches")
        .group(across);
    s.add("verbs", options_.verbs, "DEVICE", "NetReduce: RDMA device of this rank; its aggregators are bumps in the wire")
        .group(across);
    s.add("verbs-port", options_.verbs_port, "N", "Port of the RDMA device").between(1, 255).group(across);
    s.add("verbs-gid-index", options_.verbs_gid_index, "N",
          "GID index of the RDMA device; first: its first RoCEv2 address, IPv4 preferred")
        .group(across);
    s.add("verbs-ack-timeout", options_.verbs_ack_timeout, "T",
          "Acknowledgement time-out of the RDMA device, at least 4.096 us * 2^T")
        .between(1, 31)
        .group(across);
    s.add("verbs-retries", options_.verbs_retries, "N", "Retransmissions of the RDMA device before it gives up")
        .between(0, 7)
        .group(across);
    s.add("verbs-traffic-class", options_.verbs_traffic_class, "N",
          "Traffic class (DSCP and ECN bits) of the RDMA device's packets")
        .between(0, 255)
        .group(across);
    s.add("verbs-service-level", options_.verbs_service_level, "N", "Service level (priority) of the RDMA device's packets")
        .between(0, 7)
        .group(across);
    s.add("job", options_.job, "NAME", "Name of the job, the same on all ranks").group(across);
    s.add("rank", options_.rank, "R", "Rank of this worker").group(across);
    s.add("world-size", options_.world_size, "N", "Workers of the job").between(1, max_world_size).group(across);
    s.add("recovery", options_.recovery_seconds, "SECONDS",
          "How long to wait until dead ranks and aggregators are restarted; 0: a death ends the job")
        .between(0.0, 1e6)
        .group(across);
    s.add("standby", options_.standbys, "HOST:PORT[,...]",
          "With --recovery: aggregators (ATP: parameter servers) that serve while all of --switch (--ps) are unreachable")
        .group(across);
    s.add("survivors", options_.survivors, "N",
          "With --recovery: fewest ranks with which the job continues at once, without those that died; 0: it waits for all")
        .between(0, max_world_size)
        .group(across);
    s.add("straggler-deadline-ms", options_.straggler_deadline_ms, "MS",
          "With --survivors: a call ends without ranks that make it so much later than others; 0: it waits for all")
        .between(0, 3'600'000)
        .group(across);
    s.add("token-file", options_.token_file, "FILE", "File with the aggregator's secret in its first line").group(across);
    s.add("job-key-file", options_.job_key_file, "FILE",
          "With --private: file with a secret of the ranks in its first line (`openssl rand -hex 32` makes one)")
        .group(across);
    s.add("tls-ca", options_.tls_ca, "FILE", "PEM file of trusted CAs: use TLS on the control channel").group(across);
    s.add("packet-security", options_.packet_security, "HOW",
          "Minimum protection of packets to other hosts: none, tag or encrypt; aggregators with TLS use at least tag by "
          "default")
        .group(across);
    s.add("data-path", options_.data_path, "NAME",
          "How packets to aggregators on other hosts are sent: sockets (kernel UDP), xdp (AF_XDP) or dpdk")
        .group(across);
    add_dpdk(s, options_.dpdk, across);
    s.add_flag("require-keys", options_.require_keys, "Refuse to join a job without packet keys").group(across);
    if (collective == CollectiveName::all_reduce) {
      s.add(
          "compat", options_.compat, "NAME",
          "p4app: the protocol of p4lang/p4app-switchML, with its switch or `netsum switch --compat p4app`; --slots is the "
          "window of all threads, --switch the control service");
      s.add("bind", options_.bind, "HOST:PORT",
            "With --compat: address of this worker and of its first thread's port; default: the address by which --switch "
            "is reached, and port 4000")
          .group(across);
    }
    s.add_flag("rank-report", options_.rank_report, "Print this rank's raw measurements").group("");
    s.exclusive(local, across);
    footer(
        "Every result of every iteration on every rank is compared with the exact one, which the benchmark computes\n"
        "itself: `wrong` counts elements outside the bound of docs/numerics.md, and any makes the exit code 1. TAT is the\n"
        "tensor aggregation time, that of the slowest rank; ATE/s the elements per second at the median TAT.\n"
        "Examples:\n"
        "  netsum bench all-reduce --workers 4 --elements 25000000 --iterations 10 --json\n"
        "  netsum bench all-reduce --workers 4 --loss 0.01 --aggregators 2\n"
        "  netsum bench reduce-scatter --workers 4 --dtype int64 --op max\n"
        "  netsum bench all-reduce --protocol switchml --workers 8 --racks 4,2\n"
        "  netsum bench all-reduce --switch 10.0.0.1:7170 --job b1 --rank 0 --world-size 2   on one host, and\n"
        "  netsum bench all-reduce --switch 10.0.0.1:7170 --job b1 --rank 1 --world-size 2   on another");
  }

  int run() override {
    if (options_.compat.empty()) {
      check();
    } else {
      check_compat();
    }
    int exit_code = exit_done;
    std::vector<RankReport> ranks;
    if (options_.local()) {
      ranks = options_.compat.empty() ? run_local(options_, exit_code) : run_p4app_local(options_, exit_code);
      if (ranks.empty()) return exit_code;
    } else {
      ranks = run_one();
      if (options_.rank_report) {
        std::printf("%s\n", ranks.front().text().c_str());
        return exit_done;
      }
    }
    const BenchReport report(options_, ranks);
    std::fputs(options_.json ? report.json(options_).c_str() : report.table(options_).c_str(), stdout);
    if (report.verdict.wrong == 0) return exit_done;
    std::fprintf(stderr, "netsum: %llu wrong elements%s\n", static_cast<unsigned long long>(report.verdict.wrong),
                 report.bit_identical ? "" : "; the ranks' results differ");
    return exit_failed;
  }

 private:
  void check() {
    const BenchProtocol& protocol = options_.protocol_value();
    const DType dtype = options_.dtype_value();
    static_cast<void>(options_.op_value());
    static_cast<void>(options_.wire_value());
    static_cast<void>(options_.first_psn_value());
    static_cast<void>(options_.levels());
    if (options_.scaling != "fixed" && options_.scaling != "dynamic") {
      throw UsageError("--scaling is fixed or dynamic, not '" + options_.scaling + "'");
    }
    if (options_.transport != "udp" && options_.transport != "shm") {
      throw UsageError("--transport is udp or shm, not '" + options_.transport + "'");
    }
    if (options_.spin && (options_.transport != "shm" || !options_.busy_poll)) {
      throw UsageError("--spin requires --transport shm, and excludes --busy-poll false");
    }
    static_cast<void>(data_path_of(options_.data_path, options_.dpdk));
    check_flags(protocol, options_);
    for (const auto* name : {"verbs-port", "verbs-gid-index", "verbs-ack-timeout", "verbs-retries", "verbs-traffic-class",
                             "verbs-service-level"}) {
      if (const std::string& origin = settings().origin(name); !origin.empty() && options_.verbs.empty()) {
        throw UsageError(origin + " needs --verbs DEVICE");
      }
    }
    static_cast<void>(options_.verbs_settings());
    static_cast<void>(options_.fixed_scale_value());
    if (options_.magnitude != 0 && dtype != DType::float32 && dtype != DType::bfloat16) {
      throw UsageError("--magnitude requires --dtype float32 or bfloat16");
    }
    check_sizes();
    if (options_.loss_seed == 0) options_.loss_seed = options_.seed;
    const auto clash = [&](const std::string& one, const std::string& other) {
      const std::string &a = settings().origin(one), &b = settings().origin(other);
      if (!a.empty() && !b.empty()) throw UsageError(a + " and " + b + " exclude each other");
    };
    if (!applies_to(options_.op_value(), dtype)) {
      throw UsageError("--op " + options_.op + " is not defined on --dtype " + options_.dtype);
    }
    if (options_.collective != CollectiveName::all_reduce && options_.recovery_seconds > 0) {
      throw UsageError(std::string("--recovery requires bench all-reduce, not ") + to_string(options_.collective));
    }
    if (options_.recovery_seconds == 0 && options_.survivors > 0)
      throw UsageError("--survivors requires recovery: add --recovery SECONDS");
    if (options_.survivors == 0 && options_.straggler_deadline_ms > 0)
      throw UsageError("--straggler-deadline-ms requires survivors: add --survivors N");
    if (options_.recovery_seconds == 0 && !options_.standbys.empty())
      throw UsageError("--standby requires recovery: add --recovery SECONDS");
    if (options_.back_to_back && options_.recovery_seconds > 0) {
      throw UsageError("--back-to-back and --recovery exclude each other");
    }
    choose_threads();
    if (options_.local()) {
      for (const auto* name :
           {"rank", "world-size", "recovery", "survivors", "straggler-deadline-ms", "standby", "token-file", "job-key-file",
            "tls-ca", "packet-security", "require-keys", "data-path", "verbs"}) {
        if (!settings().origin(name).empty()) {
          throw UsageError(settings().origin(name) +
                           " needs --switch HOST:PORT: without it all workers run on this machine");
        }
      }
      return;
    }
    for (const auto* name : {"workers", "aggregators", "switch-threads", "switch-slots", "parameter-servers", "pool-slots",
                             "pool-elements", "racks", "multicast"}) {
      clash(options_.roots().flag, name);
    }
    if (options_.world_size == 0) throw UsageError("--switch needs --rank R and --world-size N");
    if (options_.private_sums && options_.job_key_file.empty()) throw UsageError("--private needs --job-key-file FILE");
    if (!options_.private_sums && !options_.job_key_file.empty()) throw UsageError("--job-key-file requires --private");
    if (options_.rank >= options_.world_size) {
      throw UsageError("--rank " + std::to_string(options_.rank) + " is not below --world-size " +
                       std::to_string(options_.world_size));
    }
    options_.workers = options_.world_size;
  }

  void check_compat() {
    if (options_.compat != "p4app") throw UsageError("--compat must be p4app, not '" + options_.compat + "'");
    check_compat_flags(
        settings(),
        {"compat",    "bind",    "elements",        "dtype",      "iterations",       "warmup",   "seed", "loss",
         "loss-seed", "threads", "packet-elements", "slots",      "connect-deadline", "deadline", "json", "workers",
         "switch",    "rank",    "world-size",      "rank-report"});
    if (options_.dtype_value() != DType::float32 && options_.dtype_value() != DType::int32)
      throw UsageError("--dtype must be float32 or int32 with --compat p4app, not " + options_.dtype);
    if (options_.packet_elements == 0) options_.packet_elements = 256;
    if (options_.packet_elements != 64 && options_.packet_elements != 256)
      throw UsageError("--packet-elements must be 64 or 256 with --compat p4app, not " +
                       std::to_string(options_.packet_elements));
    if (options_.slots == 0) options_.slots = 256;
    if (options_.threads == 0) options_.threads = 1;
    if (options_.loss_seed == 0) options_.loss_seed = options_.seed;
    check_sizes();
    options_.protocol = "p4app";
    if (options_.switches.empty() && (options_.rank != 0 || options_.world_size != 0 || !options_.bind.empty()))
      throw UsageError("--rank, --world-size and --bind require --switch HOST:PORT");
    if (options_.switches.empty()) {
      if (options_.workers > 32)
        throw UsageError("--workers must be at most 32 with --compat p4app, not " + std::to_string(options_.workers));
      return;
    }
    if (options_.world_size == 0 || options_.world_size > 32 || options_.rank >= options_.world_size)
      throw UsageError("--switch requires --rank R and --world-size N, with R below N and N at most 32");
    options_.workers = options_.world_size;
  }

  void check_sizes() const {
    if (options_.elements > most_elements) throw UsageError("--elements is more than 2^40, or negative");
    if (options_.slots != 0 && !std::has_single_bit(options_.slots)) {
      throw UsageError("--slots is a power of two, not " + std::to_string(options_.slots));
    }
  }

  // On a machine of few cores a shard is fastest when its switch and worker threads share one core and its cache. Where
  // there are more cores than shards, pinning would leave them idle (docs/gpu.md#sixteen-cores).
  void choose_threads() {
    if (options_.threads == 0 && options_.switches.empty()) {
      const auto allowed = static_cast<std::uint32_t>(runtime::allowed_cpus().size());
      options_.threads = std::clamp(allowed, 1U, most_threads_by_default);
      options_.pin = options_.pin || allowed <= most_threads_by_default;
    }
    if (options_.threads == 0) options_.threads = 1;
    if (options_.switch_threads == 0) options_.switch_threads = options_.threads;
  }

  [[nodiscard]] std::vector<RankReport> run_one() {
    const Progress progress(options_.rank_report || options_.rank != 0 ? 0 : options_.iterations);
    try {
      const auto on_iteration = [&](std::uint32_t done) {
        if (options_.rank_report) {
          std::printf("iteration %u\n", done);
          std::fflush(stdout);
        } else {
          progress.show(done);
        }
      };
      if (!options_.compat.empty()) return {run_p4app_rank(options_, on_iteration)};
      return run_rank(options_, !options_.rank_report, on_iteration);
    } catch (const Error& error) {
      throw Error(error.code(), "rank " + std::to_string(options_.rank) + ": " + error.what());
    }
  }

  BenchOptions options_;
};

}  // namespace

std::vector<std::unique_ptr<Command>> make_bench_commands(CLI::App& bench, Sections& sections) {
  std::vector<std::unique_ptr<Command>> commands;
  for (const CollectiveName collective : every_collective) {
    const std::string name = to_string(collective);
    CLI::App& app = add_subcommand(bench, name, "Measure " + name + ", and check every result");
    commands.push_back(std::make_unique<BenchCommand>(collective, app, sections));
  }
  return commands;
}

}  // namespace netsum::app
