// `netsum switch`: the aggregator daemon.
#include "daemon.h"
#include "netsum/aggregator.h"

namespace netsum::app {
namespace {

class SwitchCommand final : public Command {
 public:
  SwitchCommand(CLI::App& app, Sections& sections) : Command(app, "switch", sections) {
    settings().add("listen", options_.listen, "HOST:PORT", "Control (TCP) and data (UDP) address; port 0: any free one");
    settings()
        .add("threads", options_.threads, "N", "I/O threads, each with its own socket and slots")
        ->check(CLI::Range(1, 64));
    settings().add("slots", options_.slots, "N", "Slots of 256 elements that all jobs share")->check(CLI::PositiveNumber);
    settings()
        .add("pool-slots", options_.pool_slots, "N", "ATP: aggregator slots of each thread, which all jobs share")
        ->check(CLI::PositiveNumber);
    settings()
        .add("pool-elements", options_.pool_elements, "E", "ATP: elements of each; a job's packets have no more")
        ->check(CLI::Range(1, 10880));
    settings().add("switch-parent", parents_, "SWITCH=PARENT[,...]",
                   "NetReduce: of switches below this one, but not next to it, the next one on the way");
    settings().add("metrics", options_.metrics, "HOST:PORT", "Serve Prometheus metrics at http://HOST:PORT/metrics");
    settings().add("token-file", token_file_, "FILE", "Workers must show the secret in the first line of this file");
    settings().add("tls-cert", options_.tls_cert, "FILE", "PEM certificate: the control channel is TLS");
    settings().add("tls-key", options_.tls_key, "FILE", "PEM key of the certificate");
    settings().add("tls-ca", options_.tls_ca, "FILE", "PEM file: the control channels of switches below are TLS");
    settings()
        .add("heartbeat-timeout-ms", options_.heartbeat_timeout_ms, "MS", "A rank silent for this long is dead")
        ->check(CLI::PositiveNumber);
    settings()
        .add("loss", options_.loss, "P", "Tests: drop each received datagram with this probability")
        ->check(CLI::Range(0.0, 1.0));
    settings().add("seed", options_.loss_seed, "S", "Seed of --loss");
    settings().add_flag("pin", options_.pin_threads, "Pin thread i to the i-th allowed CPU");
    app.footer(
        "Runs until SIGTERM or SIGINT, then tells its jobs and ends with 0. The first line on stdout is\n"
        "`listening HOST:PORT`, with the real port.\n"
        "Examples:\n"
        "  netsum switch --listen 0.0.0.0:7170 --threads 4 --pin --metrics 127.0.0.1:9170\n"
        "  netsum switch --listen '[::]:7170' --token-file /etc/netsum/token --tls-cert cert.pem --tls-key key.pem");
  }

  int run() override {
    options_.token = read_token(token_file_);
    if (options_.tls_cert.empty() != options_.tls_key.empty()) throw UsageError("--tls-cert and --tls-key go together");
    options_.switch_parents = parse_switch_parents(parents_);
    options_.log = [](const std::string& line) { spdlog::info("{}", line); };

    return run_daemon([&] { return Aggregator(options_); },
                      [&](const std::string& address) {
                        spdlog::info("ready: listening {}, {} threads, {} slots", address, options_.threads, options_.slots);
                      });
  }

 private:
  AggregatorOptions options_;
  std::string token_file_, parents_;
};

}  // namespace

std::unique_ptr<Command> make_switch_command(CLI::App& root, Sections& sections) {
  return std::make_unique<SwitchCommand>(*root.add_subcommand("switch", "Run an aggregator"), sections);
}

}  // namespace netsum::app
