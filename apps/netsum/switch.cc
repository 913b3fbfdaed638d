// `netsum switch`: the aggregator daemon.
#include <spdlog/spdlog.h>

#include <csignal>
#include <cstdio>

#include "command.h"
#include "netsum/aggregator.h"

namespace netsum::app {
namespace {

class SwitchCommand final : public Command {
 public:
  SwitchCommand(CLI::App& app, Sections& sections) : Command(app, "switch", sections) {
    settings().add("listen", options_.listen, "HOST:PORT", "Control (TCP) and data (UDP) address; port 0: any free one");
    settings()
        .add("threads", options_.threads, "N", "I/O threads, each with its own socket and slots")
        ->check(CLI::Range(1, 256));
    settings().add("slots", options_.slots, "N", "Slots of 256 elements that all jobs share")->check(CLI::PositiveNumber);
    settings().add("metrics", options_.metrics, "HOST:PORT", "Serve Prometheus metrics at http://HOST:PORT/metrics");
    settings().add("token-file", token_file_, "FILE", "Workers must show the secret in the first line of this file");
    settings().add("tls-cert", options_.tls_cert, "FILE", "PEM certificate: the control channel is TLS");
    settings().add("tls-key", options_.tls_key, "FILE", "PEM key of the certificate");
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
    options_.log = [](const std::string& line) { spdlog::info("{}", line); };

    // Blocked before the aggregator starts its threads, so that only sigwait() takes them.
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    sigaddset(&stop, SIGINT);
    pthread_sigmask(SIG_BLOCK, &stop, nullptr);

    Aggregator aggregator = start();
    std::printf("listening %s\n", aggregator.address().c_str());
    std::fflush(stdout);
    spdlog::info("ready: listening {}, {} threads, {} slots", aggregator.address(), options_.threads, options_.slots);
    int signal = 0;
    sigwait(&stop, &signal);
    spdlog::info("{}: stopping", sigabbrev_np(signal));
    return exit_done;
  }

 private:
  // An address that is taken is this command's failure, not an aggregator that refused somebody.
  [[nodiscard]] Aggregator start() const {
    try {
      return Aggregator(options_);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::refused) throw std::runtime_error(error.what());
      throw;
    }
  }

  AggregatorOptions options_;
  std::string token_file_;
};

}  // namespace

std::unique_ptr<Command> make_switch_command(CLI::App& root, Sections& sections) {
  return std::make_unique<SwitchCommand>(*root.add_subcommand("switch", "Run an aggregator"), sections);
}

}  // namespace netsum::app
