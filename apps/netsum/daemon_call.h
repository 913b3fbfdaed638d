// The flags of a command that asks one daemon.
#pragma once

#include <chrono>
#include <string>

#include "config.h"
#include "control/client.h"

namespace netsum::app {

class DaemonCall {
 public:
  explicit DaemonCall(Settings& settings);

  [[nodiscard]] bool has_address() const { return !address_.empty(); }
  [[nodiscard]] control::Client client() const;  // throws UsageError: there is no address, or a file cannot be read
  [[nodiscard]] std::chrono::milliseconds deadline() const;

 private:
  std::string address_, token_file_, daemon_token_file_, tls_ca_;
  double deadline_seconds_ = 5;
};

}  // namespace netsum::app
