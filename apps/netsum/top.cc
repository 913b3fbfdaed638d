// `netsum top`: what daemons do right now, again and again.
#include <chrono>
#include <thread>

#include "command.h"
#include "control/client.h"
#include "screen.h"
#include "top_text.h"
#include "transport/addresses/switch_list.h"

namespace netsum::app {
namespace {

constexpr std::chrono::milliseconds patience{2000};

class TopCommand final : public Command {
 public:
  TopCommand(CLI::App& app, Sections& sections) : Command(app, "top", sections) {
    settings().add("switch", addresses_, "HOST:PORT[,...]",
                   "The daemons: aggregators, parameter servers, bumps; or srv:NAME or @FILE, as with bench");
    settings().add("token-file", token_file_, "FILE", "File with the daemons' secret in its first line");
    settings().add("tls-ca", tls_ca_, "FILE", "PEM file of trusted CAs: use TLS on the control channels");
    settings().add("interval", interval_, "SECONDS", "Time between two updates").between(0.1, 3600.0);
    settings().add("frames", frames_, "N", "End after this many updates; 0: never");
    footer(
        "Shows what each daemon carries, its jobs, and for how long they have waited for which ranks. q ends it.\n"
        "Examples:\n"
        "  netsum top --switch 10.0.0.1:7170,10.0.0.2:7170\n"
        "  netsum top --switch 10.0.0.1:7170 --frames 2 >seen.txt");
  }

  int run() override {
    const std::vector<std::string> addresses = transport::switch_list(addresses_);
    if (addresses.empty()) throw UsageError("top needs --switch HOST:PORT[,...] (or NETSUM_SWITCH)");
    const std::string token = read_token(token_file_);
    std::vector<control::Client> clients;
    for (const std::string& address : addresses) clients.push_back(control::Client({address, token, tls_ca_}));
    TopText text;
    bool any = false;
    std::string error;
    {
      Screen screen;
      for (std::uint32_t frame = 1;; ++frame) {
        const auto answers = ask(addresses, clients);
        any = false;
        for (const TopText::Answer& answer : answers) {
          any = any || answer.report;
          if (!answer.report) error = answer.error;
        }
        screen.show(text.next(answers, screen.columns()) + (screen.terminal() ? "" : "\n"));
        if (frame == frames_ || !screen.wait(interval_)) break;
      }
    }
    if (!any) throw Error(ErrorCode::unreachable, error);
    return exit_done;
  }

 private:
  // All at once: a daemon that does not answer delays no other one.
  [[nodiscard]] static std::vector<TopText::Answer> ask(const std::vector<std::string>& addresses,
                                                        std::vector<control::Client>& clients) {
    std::vector<TopText::Answer> answers(addresses.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      answers[i].address = addresses[i];
      threads.emplace_back([&answer = answers[i], &client = clients[i]] {
        try {
          answer.report = client.report(patience);
        } catch (const std::exception& problem) {
          answer.error = problem.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return answers;
  }

  std::string addresses_, token_file_, tls_ca_;
  double interval_ = 1;
  std::uint32_t frames_ = 0;
};

}  // namespace

std::unique_ptr<Command> make_top_command(CLI::App& root, Sections& sections) {
  return std::make_unique<TopCommand>(
      add_subcommand(root, "top", "Watch daemons, their rates, and the ranks that jobs wait for"), sections);
}

}  // namespace netsum::app
