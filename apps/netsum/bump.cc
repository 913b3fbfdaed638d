// `netsum bump`: NetReduce's accelerator as a bump in the wire.
#include "daemon/bump_daemon.h"

#include "admittance.h"
#include "base/numbers.h"
#include "control/certificate.h"
#include "daemon.h"

namespace netsum::app {
namespace {

class BumpCommand final : public Command {
 public:
  BumpCommand(CLI::App& app, Sections& sections) : Command(app, "bump", sections) {
    Settings& s = settings();
    s.add_list("port", options_.ports, "PORT", "A port, once for each: eth:IFNAME, xdp:IFNAME or qemu:LOCAL,REMOTE");
    s.add_list("ring", options_.rings, "RING", "A ring whose gradients are summed, once for each ring (see below)");
    s.add_list("hosts", options_.hosts, "ADDRESS[,...]", "Hosts whose connections are learned: the only ones in rings");
    s.add("state", options_.state, "FILE", "File of the known connections, for a restart; empty: none");
    s.add("listen", options_.listen, "HOST:PORT", "Control address (TCP), for netsum status and RDMA ranks; empty: none");
    s.add_flag("racks", options_.racks,
               "Rings across racks, with a bump in each: they send each other datagrams (UDP) at --listen");
    s.add("rack", rack_, "N", "With --racks: the rack whose bump this is, for rings with racks=; they count from 0");
    s.add("root", options_.root, "HOST:PORT", "With --rack: --listen of the root, where racks' sums come together");
    s.add_list("rack-bumps", options_.rack_bumps, "HOST:PORT", "At the root: --listen of each rack's bump, once for each");
    s.add("switch-parent", parents_, "SWITCH=PARENT[,...]",
          "With --racks: of bumps below this one, but not next to it, the next one on the way");
    s.add("slots", options_.slots, "N", "Slots of 256 elements that all jobs share").positive();
    s.add("metrics", options_.metrics, "[HOST:]PORT",
          "Serve a web page at http://HOST:PORT, and Prometheus metrics at /metrics; no HOST: that of --listen");
    s.add("flight-records", options_.flight_records, "FOLDER",
          "Write what happened to each job that fails to a file there, for `netsum explain`; the newest 100 stay");
    s.add("tls-cert", options_.tls_cert, "FILE", "PEM certificate: the control channel is TLS; read again on SIGHUP");
    s.add("tls-key", options_.tls_key, "FILE", "PEM key of the certificate");
    s.add("tls-ca", options_.tls_ca, "FILE", "PEM file: the control channels of bumps below are TLS");
    s.add("daemon-token-file", daemon_token_file_, "FILE",
          "Secret of daemons, in the first line: only daemons that know it may tell this one of jobs");
    s.add("heartbeat-timeout-ms", options_.heartbeat_timeout_ms, "MS", "A rank silent for this long is dead").at_least(1000);
    s.add_flag("one-arm", options_.one_arm,
               "One port, on a switch that redirects hosts' RoCE packets to it: they return by it");
    s.add("threads", options_.threads, "N", "Threads: one serves the ports, and the others, if there are any, rings")
        .between(1, 64);
    s.add_flag("pin", options_.pin_threads, "Pin thread i to the i-th allowed CPU");
    footer(
        "A bridge between its ports. Hosts whose RoCEv2 connections form a ring are behind them: their gradients leave as\n"
        "sums, and all else leaves as it came. RING is a list of\n"
        "  ranks=N                 hosts of the ring\n"
        "  id=0                    its number in the messages' headers\n"
        "  packets=170 window=2    the most packets of a message, and messages of a host that are in flight\n"
        "  mtu=1024                path MTU of the connections: the most payload of a packet\n"
        "  dtype=float32           or int32, float16, bfloat16, where headers do not say\n"
        "  layout=netsum           of the headers: netsum, nrtv, or fields as docs/operate-bump.md has them\n"
        "  racks=N:N:...           with --racks: hosts of the ring in each rack, in the ring's order\n"
        "  order=ring              when sums leave: after all before them, or on arrival\n"
        "Runs until SIGTERM or SIGINT. The first line on stdout is `listening HOST:PORT`, with the real port, or `ready`\n"
        "without --listen. Ranks with RDMA hardware of their own (bench --verbs) join at --listen, and name their rings.\n"
        "With --racks they join at one bump (bench --spine), and name the one in their host's wire (bench --switch).\n"
        "Example:\n"
        "  netsum bump --port eth:enp1s0f0 --port eth:enp1s0f1 --state /var/lib/netsum/rings \\\n"
        "      --hosts 10.0.0.1,10.0.0.2 --ring id=0,ranks=2,packets=170,window=2,mtu=1024,dtype=float32,layout=netsum");
  }

  int run() override {
    options_.token = admittance_.resolve(options_.listen);
    control::check_tls_pair(options_.tls_cert, options_.tls_key);
    if (!options_.racks) {
      for (const auto* name : {"switch-parent", "daemon-token-file", "tls-ca"}) {
        if (const std::string& origin = settings().origin(name); !origin.empty())
          throw UsageError(origin + " needs --racks");
      }
    }
    if (!rack_.empty()) {
      options_.rack = parse_number<std::uint32_t>(rack_);
      if (!options_.rack) throw UsageError(settings().origin("rack") + ": '" + rack_ + "' is no number");
    }
    options_.daemon_token = read_token(daemon_token_file_, "--daemon-token-file");
    options_.switch_parents = parse_switch_parents(parents_);
    options_.log = log_line;
    return run_daemon([&] { return daemon::BumpDaemon(options_); },
                      [&](daemon::BumpDaemon& bump) { reload_certificate(bump, options_.tls_cert); },
                      [&](const std::string&) {
                        log_line("ready: a bump in the wire with " + std::to_string(options_.ports.size()) + " ports");
                      },
                      [](const daemon::BumpDaemon& bump) { log_line(bump.summary()); });
  }

 private:
  daemon::BumpOptions options_;
  std::string parents_, daemon_token_file_, rack_;
  Admittance admittance_{settings()};
};

}  // namespace

std::unique_ptr<Command> make_bump_command(CLI::App& root, Sections& sections) {
  return std::make_unique<BumpCommand>(add_subcommand(root, "bump", "Run a bump in the wire (NetReduce)"), sections);
}

}  // namespace netsum::app
