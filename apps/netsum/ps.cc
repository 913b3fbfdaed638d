// `netsum ps`: the parameter server daemon of ATP.
#include <vector>

#include "admittance.h"
#include "control/certificate.h"
#include "daemon.h"
#include "data_path.h"
#include "netsum/parameter_server.h"
#include "packet_security.h"

namespace netsum::app {
namespace {

class PsCommand final : public Command {
 public:
  PsCommand(CLI::App& app, Sections& sections) : Command(app, "ps", sections) {
    options_.listen = "127.0.0.1:0";
    Settings& s = settings();
    s.add("listen", options_.listen, "HOST:PORT", "Control (TCP) and data (UDP) address; port 0: any free one");
    s.add("threads", options_.threads, "N", threads_help).between(0, 64);
    s.add("lanes", options_.lanes, "N", lanes_help).between(0, 64);
    s.add("slots", options_.slots, "N",
          "Chunks of 256 elements that all jobs together may have in flight (a rank's --slots: its window)")
        .positive();
    s.add("switch-parent", parents_, "SWITCH=PARENT[,...]",
          "For each switch that is not directly below this server, the next switch upstream");
    s.add("indexing", options_.indexing, "HOW",
          "How chunks find slots: rehash, hash (never another slot), or linear (sequence number modulo slots)");
    s.add("parts", options_.parts, "N",
          "For comparison: divide the slots into N parts, one for each job; 0: all jobs share all slots");
    s.add("first-part", options_.first_part, "N",
          "The first of --parts, from 0, that this server gives to jobs: servers that share switches need different ones");
    s.add("own-parts", options_.own_parts, "N", "How many of --parts this server gives to jobs; 0: all from --first-part");
    s.add("overflow", options_.overflow, "HOW",
          "exact, or saturating as in the paper: then results may depend on the order of arrival");
    s.add("rules", options_.rules, "HOW",
          "netsum; paper: losses and collisions as in the paper's Figures 7 and 17, for comparison; or chip: jobs keep to "
          "what "
          "switches with --profile chip can sum");
    s.add_flag("allow-fcs-only", options_.allow_fcs_only,
               "With --rules chip: accept packets with no checksum except Ethernet's frame check");
    s.add("scaling", options_.scaling, "HOW",
          "fixed: multiply floats by 10^8; dynamic: by less where the largest of 8192 values would not fit");
    s.add("metrics", options_.metrics, "[HOST:]PORT",
          "Serve a web page at http://HOST:PORT, and Prometheus metrics at /metrics; no HOST: that of --listen");
    s.add("flight-records", options_.flight_records, "FOLDER",
          "Write a flight record of each failed job to this folder, for `netsum explain`; the newest 100 are kept");
    s.add("tls-cert", options_.tls_cert, "FILE", "PEM certificate: the control channel is TLS; read again on SIGHUP");
    s.add("tls-key", options_.tls_key, "FILE", "PEM key of the certificate");
    s.add("tls-ca", options_.tls_ca, "FILE", "PEM file of trusted CAs: use TLS on the control channels to switches");
    s.add("heartbeat-timeout-ms", options_.heartbeat_timeout_ms, "MS", "A rank that is silent for this long counts as dead")
        .at_least(1000);
    s.add("survivor-timeout-ms", options_.survivor_timeout_ms, "MS",
          "The same in jobs with survivors, which continue without such a rank")
        .at_least(200);
    s.add("loss", options_.loss, "P", "Tests: drop this share of the received datagrams: 0.01, or 1%").share(0.9);
    s.add("seed", options_.loss_seed, "S", "Seed of --loss");
    s.add_flag("pin", options_.pin_threads,
               "Pin thread i to the i-th allowed CPU, those of the network card's NUMA node first");
    s.add("busy-poll", options_.busy_poll, "BOOL", "Threads poll for a moment before they sleep");
    footer(
        "Ranks of ATP join here, and name their switch. This server installs the job at the switches, sums the chunks\n"
        "that find no slot there, and sends the results. Runs until SIGTERM or SIGINT. The first line on stdout is\n"
        "`listening HOST:PORT`, with the real port.\n"
        "Examples:\n"
        "  netsum switch --listen 10.0.0.1:7170 --token-file token &  netsum ps --listen 10.0.0.2:7270 --token-file token\n"
        "  netsum ps --listen 10.0.9.2:7270 --token-file token --switch-parent "
        "10.0.1.1:7170=10.0.9.1:7170,10.0.2.1:7170=10.0.9.1:7170");
  }

  int run() override {
    admittance_.apply(options_);
    keys_.apply(options_);
    path_.apply(options_);
    control::check_tls_pair(options_.tls_cert, options_.tls_key);
    options_.switch_parents = parse_switch_parents(parents_);
    options_.log = log_line;
    options_.threads = threads_or_default(options_.threads, options_.lanes);
    return run_daemon([&] { return ParameterServer(options_); },
                      [&](ParameterServer& daemon) {
                        admittance_.reload(daemon);
                        reload_certificate(daemon, options_.tls_cert);
                      },
                      [&](const std::string& address) {
                        log_line("ready: listening " + address + ", " + std::to_string(options_.threads) + " threads");
                      });
  }

 private:
  ParameterServerOptions options_;
  TenantAdmittance admittance_{settings()};
  KeySettings keys_{settings()};
  DataPathSettings path_{settings()};
  std::string parents_;
};

}  // namespace

std::unique_ptr<Command> make_ps_command(CLI::App& root, Sections& sections) {
  return std::make_unique<PsCommand>(add_subcommand(root, "ps", "Run a parameter server (ATP)"), sections);
}

}  // namespace netsum::app
