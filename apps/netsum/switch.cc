// `netsum switch`: the aggregator daemon.
#include "admittance.h"
#include "control/certificate.h"
#include "daemon.h"
#include "data_path.h"
#include "netsum/aggregator.h"
#include "p4app/messages.h"
#include "p4app/switch_daemon.h"
#include "packet_security.h"
#include "protocols.h"

namespace netsum::app {
namespace {

DataPlane parse_data_plane(const std::string& name) {
  if (name == "sockets") return DataPlane::sockets;
  if (name == "xdp") return DataPlane::xdp;
  if (name == "bmv2") return DataPlane::bmv2;
  throw UsageError("--data-plane must be sockets, xdp or bmv2, not '" + name + "'");
}

class SwitchCommand final : public Command {
 public:
  SwitchCommand(CLI::App& app, Sections& sections) : Command(app, "switch", sections) {
    settings().add("listen", options_.listen, "HOST:PORT", "Control (TCP) and data (UDP) address; port 0: any free one");
    settings().add("threads", options_.threads, "N", threads_help).between(0, 64);
    settings().add("lanes", options_.lanes, "N", lanes_help).between(0, 64);
    settings()
        .add("slots", options_.slots, "N", "Slots of 256 elements that all jobs share (a rank's --slots: its window)")
        .positive();
    settings()
        .add("pool-slots", options_.pool_slots, "N",
             "ATP: aggregator slots of each lane, which all jobs share; 0: as many as hold 8 million elements")
        .between(0, 1 << 24);
    settings()
        .add("pool-elements", options_.pool_elements, "E",
             "ATP: elements of an aggregator slot, the most in a packet; 0: 2048, or 10880 where all ranks are on this host")
        .between(0, 10880);
    settings().add("switch-parent", parents_, "SWITCH=PARENT[,...]",
                   "SwitchML, NetReduce: for each switch that is not directly below this one, the next switch upstream");
    settings().add("multicast", options_.multicast, "GROUP[/BITS]:PORT|off",
                   "SwitchML: send results to an IP multicast group of the job, from the range of groups with the same "
                   "first BITS; off: "
                   "to each rank by itself; default: off, but groups within this host on the loopback device");
    settings().add("profile", profile_, "NAME",
                   "SwitchML, ATP: software, or chip (what fits a programmable switch, with at most 31 ranks and switches "
                   "below, or 32 of ATP's); default: as the data plane needs");
    settings().add("data-plane", data_plane_, "NAME",
                   "SwitchML: where packets are summed: sockets (in this process), or with the chip profile xdp (in the "
                   "kernel) or bmv2 (in a P4 switch)");
    settings().add("target", options_.target, "HOST:PORT",
                   "With --data-plane bmv2: address of simple_switch's Thrift server");
    settings().add_flag("allow-fcs-only", options_.allow_fcs_only,
                        "With --profile chip: accept packets with no checksum except Ethernet's frame check");
    settings().add("metrics", options_.metrics, "[HOST:]PORT",
                   "Serve a web page at http://HOST:PORT, and Prometheus metrics at /metrics; no HOST: that of --listen");
    settings().add("flight-records", options_.flight_records, "FOLDER",
                   "Write a flight record of each failed job to this folder, for `netsum explain`; the newest 100 are kept");
    settings().add("state", options_.state, "FOLDER",
                   "File that keeps a secret, so that running ATP jobs use this switch again after a restart");
    settings().add("tls-cert", options_.tls_cert, "FILE",
                   "PEM certificate: the control channel is TLS; read again on SIGHUP");
    settings().add("tls-key", options_.tls_key, "FILE", "PEM key of the certificate");
    settings().add("tls-ca", options_.tls_ca, "FILE",
                   "PEM file of trusted CAs: use TLS on the control channels to switches below");
    settings().add_list("local-user", options_.local_users, "USER",
                        "User that may share memory with this switch, by name or number; repeat the flag for each; its own "
                        "user and root always may");
    settings()
        .add("heartbeat-timeout-ms", options_.heartbeat_timeout_ms, "MS",
             "A rank that is silent for this long counts as dead")
        .at_least(1000);
    settings()
        .add("survivor-timeout-ms", options_.survivor_timeout_ms, "MS",
             "The same in jobs with survivors, which continue without such a rank")
        .at_least(200);
    settings().add("loss", options_.loss, "P", "Tests: drop this share of the received datagrams: 0.01, or 1%").share(0.9);
    settings().add("seed", options_.loss_seed, "S", "Seed of --loss");
    settings().add("compat", compat_, "NAME",
                   "p4app: serve clients of p4lang/p4app-switchML in place of their switch, and no others");
    settings().add_flag("pin", options_.pin_threads,
                        "Pin thread i to the i-th allowed CPU, those of the network card's NUMA node first");
    settings().add("busy-poll", options_.busy_poll, "BOOL", "Threads poll for a moment before they sleep");
    footer(
        "Runs until SIGTERM or SIGINT, then tells its jobs and ends with 0. The first line on stdout is `listening\n"
        "HOST:PORT`, with the real port.\n"
        "Examples:\n"
        "  netsum switch --listen 0.0.0.0:7170 --token-file /etc/netsum/token --threads 4 --pin --metrics 127.0.0.1:9170\n"
        "  netsum switch --listen '[::]:7170' --tenants /etc/netsum/tenants.toml --tls-cert cert.pem --tls-key key.pem");
  }

  int run() override {
    if (!compat_.empty()) return run_compat();
    admittance_.apply(options_);
    keys_.apply(options_);
    control::check_tls_pair(options_.tls_cert, options_.tls_key);
    options_.switch_parents = parse_switch_parents(parents_);
    options_.data_plane = parse_data_plane(data_plane_);
    path_.apply(options_);
    options_.chip = profile_.empty() ? options_.data_plane != DataPlane::sockets : is_chip(profile_);
    options_.log = log_line;
    options_.threads = threads_or_default(options_.threads, options_.lanes);
    return run_daemon([&] { return Aggregator(options_); },
                      [&](Aggregator& daemon) {
                        admittance_.reload(daemon);
                        reload_certificate(daemon, options_.tls_cert);
                      },
                      [&](const std::string& address) {
                        log_line("ready: listening " + address + ", " + std::to_string(options_.threads) + " threads, " +
                                 std::to_string(options_.slots) + " slots");
                      });
  }

 private:
  int run_compat() {
    if (compat_ != "p4app") throw UsageError("--compat must be p4app, not '" + compat_ + "'");
    check_compat_flags(settings(), {"compat", "listen", "metrics", "loss", "seed", "anyone-may-join"});
    p4app::SwitchDaemonOptions options;
    options.listen =
        settings().origin("listen").empty() ? "127.0.0.1:" + std::to_string(p4app::control_port) : options_.listen;
    options.metrics = options_.metrics;
    options.loss = options_.loss;
    options.loss_seed = options_.loss_seed;
    options.log = log_line;
    admittance_.check_reach_without_tokens(options.listen);
    return run_daemon(
        [&] { return p4app::SwitchDaemon(options); }, [](p4app::SwitchDaemon&) {},
        [&](const std::string& address) { log_line("ready: listening " + address + ", for clients of p4app"); },
        [](const p4app::SwitchDaemon& daemon) { log_line(daemon.summary()); });
  }

  AggregatorOptions options_;
  TenantAdmittance admittance_{settings()};
  KeySettings keys_{settings()};
  DataPathSettings path_{settings()};
  std::string parents_, profile_, compat_, data_plane_ = "sockets";
};

}  // namespace

std::unique_ptr<Command> make_switch_command(CLI::App& root, Sections& sections) {
  return std::make_unique<SwitchCommand>(add_subcommand(root, "switch", "Run an aggregator"), sections);
}

}  // namespace netsum::app
