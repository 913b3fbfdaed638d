// Daemons and workers as child processes on this machine: daemons first, which say where they listen, then workers, which
// print lines. All of them end with it, whatever ends it.
#pragma once

#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <vector>

#include "child_process.h"

namespace netsum::app {

struct Program {
  std::string name;  // for messages
  std::vector<std::string> arguments;
};

// SIGCHLD, SIGINT and SIGTERM as something to poll.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  [[nodiscard]] int descriptor() const { return descriptor_; }
  // Takes what is there; true once SIGINT or SIGTERM came.
  [[nodiscard]] bool interrupted();

 private:
  sigset_t before_{};
  int descriptor_ = -1;
  bool interrupted_ = false;
};

class LocalJob {
 public:
  using MakeWorkers = std::function<std::vector<Program>(const std::vector<std::string>& daemon_addresses)>;
  using OnLine = std::function<void(const std::string& line)>;

  // The exit code; says on stderr, in one line, what went wrong. Workers are made once all daemons listen. A worker that
  // fails may say why in a line "error TEXT", which is not handed out: the first is the cause, unless somebody was killed.
  [[nodiscard]] int run(const std::vector<Program>& daemons, std::chrono::duration<double> patience,
                        const MakeWorkers& make_workers, const OnLine& on_worker_line);

 private:
  using Clock = std::chrono::steady_clock;
  using Children = std::vector<ChildProcess>;

  template <class Done>
  bool wait(Done done, Clock::time_point deadline);
  void handle_events(std::chrono::milliseconds at_most);
  [[nodiscard]] bool all_listen() const;
  [[nodiscard]] bool lost_daemon();
  [[nodiscard]] bool failed();
  [[nodiscard]] std::string failure_text();
  [[nodiscard]] int failure_code() const;

  Signals signals_;  // before any child, so that no end of one is missed
  Children daemons_, workers_;
  std::vector<std::string> addresses_;  // of each daemon; empty: it does not listen yet
  OnLine on_worker_line_;
  std::string first_error_;
  bool interrupted_ = false;
};

}  // namespace netsum::app
