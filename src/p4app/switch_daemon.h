// A switch that p4lang/p4app-switchML's clients use in place of theirs, inside this process: the UDP port, its thread and
// the control service. `netsum switch --compat p4app` runs one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace netsum::p4app {

struct SwitchDaemonOptions {
  std::string listen;   // "HOST:PORT" of the control service; packets come to the same host, which is one IPv4 address
  std::string metrics;  // as in AggregatorOptions
  double loss = 0;      // share of received datagrams that are dropped, and the seed
  std::uint64_t loss_seed = 1;
  std::function<void(const std::string&)> log;
};

class SwitchDaemon {
 public:
  explicit SwitchDaemon(const SwitchDaemonOptions& options);  // throws Error: bad_argument, refused
  SwitchDaemon(SwitchDaemon&&) noexcept;
  ~SwitchDaemon();

  [[nodiscard]] bool alive() const { return true; }
  [[nodiscard]] std::string address() const;
  [[nodiscard]] std::string summary() const;  // what became of all packets so far, in one line

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::p4app
