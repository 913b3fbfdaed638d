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
    s.add_list("port", options_.ports, "PORT",
               "A port of the bump; repeat the flag for each port: eth:IFNAME, xdp:IFNAME or qemu:LOCAL,REMOTE");
    s.add_list("ring", options_.rings, "RING", "A ring to sum (see below); repeat the flag for each ring");
    s.add_list("hosts", options_.hosts, "ADDRESS[,...]", "Addresses of the hosts that may be in rings");
    s.add("state", options_.state, "FILE", "File of the known connections, for a restart; empty: none");
    s.add("listen", options_.listen, "HOST:PORT", "Control address (TCP), for netsum status and RDMA ranks; empty: none");
    s.add_flag("racks", options_.racks,
               "Sum rings across racks, with a bump in each rack; the bumps exchange UDP datagrams at --listen");
    s.add("rack", rack_, "N", "With --racks: number of this bump's rack, from 0, for rings with racks=");
    s.add("root", options_.root, "HOST:PORT",
          "With --rack: address (--listen) of the root, which adds the sums of the racks");
    s.add_list("rack-bumps", options_.rack_bumps, "HOST:PORT",
               "At the root: address (--listen) of a rack's bump; repeat the flag for each rack");
    s.add("switch-parent", parents_, "SWITCH=PARENT[,...]",
          "With --racks: for each bump that is not directly below this one, the next bump upstream");
    s.add("slots", options_.slots, "N", "Slots of 256 elements that all jobs share (a rank's --slots: its window)")
        .positive();
    s.add("metrics", options_.metrics, "[HOST:]PORT",
          "Serve a web page at http://HOST:PORT, and Prometheus metrics at /metrics; no HOST: that of --listen");
    s.add("flight-records", options_.flight_records, "FOLDER",
          "Write a flight record of each failed job to this folder, for `netsum explain`; the newest 100 are kept");
    s.add("tls-cert", options_.tls_cert, "FILE", "PEM certificate: the control channel is TLS; read again on SIGHUP");
    s.add("tls-key", options_.tls_key, "FILE", "PEM key of the certificate");
    s.add("tls-ca", options_.tls_ca, "FILE", "PEM file of trusted CAs: use TLS on the control channels to bumps below");
    s.add("daemon-token-file", daemon_token_file_, "FILE",
          "File with the secret of daemons in its first line: only daemons that have it may install jobs at this one");
    s.add("heartbeat-timeout-ms", options_.heartbeat_timeout_ms, "MS", "A rank that is silent for this long counts as dead")
        .at_least(1000);
    s.add_flag("one-arm", options_.one_arm,
               "All ports are at a switch that redirects the hosts' RoCE packets to them; each packet leaves by the port "
               "that it came from");
    s.add("threads", options_.threads, "N", "Threads: one serves the ports, the others serve rings").between(1, 64);
    s.add_flag("pin", options_.pin_threads,
               "Pin thread i to the i-th allowed CPU, those of the network card's NUMA node first");
    footer(
        "Forwards packets between its ports. Where RoCEv2 connections of hosts form a ring, it replaces their gradients\n"
        "by the sums. All other packets pass unchanged. RING is a list of\n"
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
        "With --racks they join at one bump (bench --spine), and name the bump in the wire of their own host (bench\n"
        "--switch).\n"
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
      if (!options_.rack) throw UsageError(settings().origin("rack") + ": '" + rack_ + "' is not a number");
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
