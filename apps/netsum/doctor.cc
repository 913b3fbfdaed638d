// `netsum doctor`: what would keep a job from running well here, and the commands that change it.
#include "doctor.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "command.h"
#include "transport/addresses/switch_list.h"

namespace netsum::app {
namespace {

using Level = Finding::Level;

const char* name_of(Level level) {
  return level == Level::good ? "ok" : level == Level::advice ? "advice" : "wrong";
}

std::string text_of(const Findings& findings) {
  std::string text;
  std::size_t wrong = 0, advice = 0;
  for (const Finding& finding : findings) {
    std::string head = name_of(finding.level);
    head.resize(8, ' ');
    std::string name = finding.name;
    name.resize(std::max<std::size_t>(name.size() + 1, 13), ' ');
    text += head + name + finding.what + "\n";
    if (!finding.fix.empty()) text += "           " + finding.fix + "\n";
    wrong += finding.level == Level::wrong ? 1 : 0;
    advice += finding.level == Level::advice ? 1 : 0;
  }
  return text + "\n" + std::to_string(wrong) + " wrong, " + std::to_string(advice) + " could be better\n";
}

std::string json_of(const Findings& findings) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    list.push_back(
        {{"name", finding.name}, {"level", name_of(finding.level)}, {"what", finding.what}, {"fix", finding.fix}});
  }
  return nlohmann::ordered_json{{"findings", std::move(list)}}.dump(2, ' ', false,
                                                                    nlohmann::json::error_handler_t::replace) +
         "\n";
}

class DoctorCommand final : public Command {
 public:
  DoctorCommand(CLI::App& app, Sections& sections) : Command(app, "doctor", sections) {
    settings().add("switch", address_, "HOST:PORT", "A running daemon: check the path to it too");
    settings().add("token-file", token_file_, "FILE", "File with the daemon's secret in its first line");
    settings().add("tls-ca", tls_ca_, "FILE", "PEM file of trusted CAs: use TLS on the control channel");
    settings().add("tls-cert", tls_cert_, "FILE", "PEM certificate that this host's daemon will have");
    settings().add_flag("json", json_, "Print one JSON object in place of text");
    footer(
        "Looks at this host, and with --switch at the path to a daemon: buffers, MTU, offloads, firewalls, certificates,\n"
        "huge pages, other data paths, and the throughput to expect. It changes nothing: each finding comes with the\n"
        "command that does.\n"
        "Exit code 1: something is wrong.\n"
        "Examples:\n"
        "  netsum doctor --tls-cert cert.pem                       before the first daemon\n"
        "  netsum doctor --switch 10.0.0.1:7170 --token-file token before the first job");
  }

  int run() override {
    std::signal(SIGPIPE, SIG_IGN);  // a peer that ends a TLS connection is a finding
    Findings findings;
    std::optional<Endpoint> local;
    if (!address_.empty()) {
      const std::string address = transport::one_switch(address_);
      if (!tls_ca_.empty()) check_certificate_of(address, tls_ca_, findings);
      local = check_switch({address, read_token(token_file_), tls_ca_}, findings);
    }
    if (!tls_ca_.empty()) check_certificate_file(tls_ca_, "--tls-ca", findings);
    if (!tls_cert_.empty()) check_certificate_file(tls_cert_, "--tls-cert", findings);
    check_interfaces(local, findings);
    check_settings(findings);
    check_data_paths(findings);
    std::stable_sort(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) { return a.level > b.level; });
    std::fputs((json_ ? json_of(findings) : text_of(findings)).c_str(), stdout);
    return !findings.empty() && findings.front().level == Level::wrong ? exit_failed : exit_done;
  }

 private:
  std::string address_, token_file_, tls_ca_, tls_cert_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_doctor_command(CLI::App& root, Sections& sections) {
  return std::make_unique<DoctorCommand>(
      add_subcommand(root, "doctor", "Find what would keep jobs from running well, and how to change it"), sections);
}

}  // namespace netsum::app
