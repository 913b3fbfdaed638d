// `netsum switch`: the aggregator daemon.
#include "admittance.h"
#include "collective/bump_daemon.h"
#include "daemon.h"
#include "netsum/aggregator.h"

namespace netsum::app {
namespace {

class SwitchCommand final : public Command {
 public:
  SwitchCommand(CLI::App& app, Sections& sections) : Command(app, "switch", sections) {
    settings().add("listen", options_.listen, "HOST:PORT", "Control (TCP) and data (UDP) address; port 0: any free one");
    settings().add("threads", options_.threads, "N", "I/O threads, each with its own socket and slots").between(1, 64);
    settings().add("slots", options_.slots, "N", "Slots of 256 elements that all jobs share").positive();
    settings()
        .add("pool-slots", options_.pool_slots, "N", "ATP: aggregator slots of each thread, which all jobs share")
        .positive();
    settings()
        .add("pool-elements", options_.pool_elements, "E", "ATP: elements of each; a job's packets have no more")
        .between(1, 10880);
    settings().add("switch-parent", parents_, "SWITCH=PARENT[,...]",
                   "NetReduce: of switches below this one, but not next to it, the next one on the way");
    settings().add("multicast", options_.multicast, "GROUP[/BITS]:PORT",
                   "SwitchML: send results to an IP multicast group of the job, among those with the first BITS in common");
    settings().add("metrics", options_.metrics, "[HOST:]PORT",
                   "Serve Prometheus metrics at http://HOST:PORT/metrics; no HOST: that of --listen");
    settings().add("tls-cert", options_.tls_cert, "FILE", "PEM certificate: the control channel is TLS");
    settings().add("tls-key", options_.tls_key, "FILE", "PEM key of the certificate");
    settings().add("tls-ca", options_.tls_ca, "FILE", "PEM file: the control channels of switches below are TLS");
    settings().add_list("local-user", options_.local_users, "USER",
                        "Whose ranks may share memory, by name or number, once for each; its own user's and root's may");
    settings()
        .add("heartbeat-timeout-ms", options_.heartbeat_timeout_ms, "MS", "A rank silent for this long is dead")
        .positive();
    settings().add("loss", options_.loss, "P", "Tests: drop each received datagram with this probability").between(0.0, 1.0);
    settings().add("seed", options_.loss_seed, "S", "Seed of --loss");
    settings().add_flag("pin", options_.pin_threads, "Pin thread i to the i-th allowed CPU");
    settings().add("busy-poll", options_.busy_poll, "BOOL", "Threads look again for a moment before they sleep");
    settings().add("protocol", protocol_, "netreduce", "Be a bump in the wire (see below); else workers join at --listen");
    settings().add_list("port", bump_.ports, "PORT", "The bump's, once for each: eth:IFNAME or qemu:LOCAL,REMOTE");
    settings().add_list("ring", bump_.rings, "RING", "Whose gradients the bump sums, once for each ring (see below)");
    settings().add_list("hosts", bump_.hosts, "ADDRESS[,...]", "Between whom the bump learns the rings' connections");
    settings().add("state", bump_.state, "FILE", "Where the bump keeps what it must know after a restart");
    footer(
        "Runs until SIGTERM or SIGINT, then tells its jobs and ends with 0. The first line on stdout is\n"
        "`listening HOST:PORT`, with the real port.\n"
        "\n"
        "A bump in the wire (--protocol netreduce) is a bridge between its ports: hosts whose RoCEv2 connections form a "
        "ring\n"
        "are behind them, their gradients leave as sums, and all else leaves as it came. RING is a list of\n"
        "  ranks=N                 hosts of the ring\n"
        "  id=0                    its number in the messages' headers\n"
        "  packets=170 window=2    the most packets of a message, and messages of a host that are under way\n"
        "  mtu=1024                path MTU of the connections: the most payload of a packet\n"
        "  dtype=float32           or int32, float16, bfloat16, where headers do not say\n"
        "  layout=netsum           of the headers: netsum, nrtv, or fields as docs/operations.md has them\n"
        "  order=ring              when sums leave: after all before them, or on arrival\n"
        "It listens only if --listen is given, for `netsum status` and for ranks with RDMA hardware of their own (bench\n"
        "--verbs), whose rings it is told of; its first line on stdout is `ready` otherwise.\n"
        "Examples:\n"
        "  netsum switch --listen 0.0.0.0:7170 --token-file /etc/netsum/token --threads 4 --pin --metrics 127.0.0.1:9170\n"
        "  netsum switch --listen '[::]:7170' --tenants /etc/netsum/tenants.toml --tls-cert cert.pem --tls-key key.pem\n"
        "  netsum switch --protocol netreduce --port eth:enp1s0f0 --port eth:enp1s0f1 --state /var/lib/netsum/rings \\\n"
        "      --hosts 10.0.0.1,10.0.0.2 --ring id=0,ranks=2,packets=170,window=2,mtu=1024,dtype=float32,layout=netsum");
  }

  int run() override {
    const bool listens = protocol_ != "netreduce" || !settings().origin("listen").empty();
    admittance_.resolve(listens ? options_.listen : "");
    admittance_.apply(options_);
    if (options_.tls_cert.empty() != options_.tls_key.empty()) throw UsageError("--tls-cert and --tls-key go together");
    options_.switch_parents = parse_switch_parents(parents_);
    options_.log = [](const std::string& line) { spdlog::info("{}", line); };
    if (protocol_ == "netreduce") return run_bump();
    if (!protocol_.empty()) {
      throw UsageError("--protocol is netreduce or nothing, not '" + protocol_ +
                       "': workers of any protocol join at --listen");
    }
    for (const char* const flag : {"port", "ring", "hosts", "state"}) {
      // From the environment it may be somebody else's: Kubernetes sets NETSUM_PORT where a service is called netsum.
      const std::string& origin = settings().origin(flag);
      if (!origin.empty() && !origin.starts_with("NETSUM_")) {
        throw UsageError(std::string("--") + flag + " is a bump's: it goes with --protocol netreduce");
      }
    }

    return run_daemon([&] { return Aggregator(options_); }, [&](Aggregator& daemon) { admittance_.reload(daemon); },
                      [&](const std::string& address) {
                        spdlog::info("ready: listening {}, {} threads, {} slots", address, options_.threads, options_.slots);
                      });
  }

 private:
  int run_bump() {
    for (const char* const flag :
         {"threads", "pool-slots", "pool-elements", "switch-parent", "tls-ca", "local-user", "loss", "seed"}) {
      const std::string& origin = settings().origin(flag);
      if (!origin.empty()) throw UsageError(origin + ": a bump in the wire (--protocol netreduce) has no " + flag);
    }
    if (!settings().origin("listen").empty()) bump_.listen = options_.listen;
    bump_.metrics = options_.metrics;
    bump_.token = options_.token;
    bump_.tls_cert = options_.tls_cert;
    bump_.tls_key = options_.tls_key;
    bump_.slots = options_.slots;
    bump_.heartbeat_timeout_ms = options_.heartbeat_timeout_ms;
    bump_.pin_thread = options_.pin_threads;
    bump_.log = options_.log;
    return run_daemon(
        [&] { return collective::BumpDaemon(bump_); }, [](const collective::BumpDaemon&) {},
        [&](const std::string&) { spdlog::info("ready: a bump in the wire with {} ports", bump_.ports.size()); },
        [&](const collective::BumpDaemon& bump) { spdlog::info("{}", bump.summary()); });
  }

  AggregatorOptions options_;
  collective::BumpOptions bump_;
  Admittance admittance_{settings()};
  std::string parents_, protocol_;
};

}  // namespace

std::unique_ptr<Command> make_switch_command(CLI::App& root, Sections& sections) {
  return std::make_unique<SwitchCommand>(add_subcommand(root, "switch", "Run an aggregator"), sections);
}

}  // namespace netsum::app
