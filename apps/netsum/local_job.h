// Daemons and workers as child processes on this machine: first the daemons, which print their addresses, then the workers,
// which print lines. All children end with the job, however it ends.
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

// SIGCHLD, SIGINT and SIGTERM as a descriptor to poll.
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  [[nodiscard]] int descriptor() const { return descriptor_; }
  // Takes the pending signals; true once SIGINT or SIGTERM came.
  [[nodiscard]] bool interrupted();

 private:
  sigset_t before_{};
  int descriptor_ = -1;
  bool interrupted_ = false;
};

class LocalJob {
 public:
  using MakePrograms = std::function<std::vector<Program>(const std::vector<std::string>& daemon_addresses)>;
  using OnLine = std::function<void(const std::string& line)>;

  // The exit code; prints a failure on stderr, in one line. Workers are made once all daemons listen, and so are daemons
  // that must know the others' addresses (`make_above`), before them. A failing worker may print the reason as a line "error
  // TEXT", which is not passed on: the first is the cause, unless a child was killed.
  [[nodiscard]] int run(const std::vector<Program>& daemons, std::chrono::duration<double> patience,
                        const MakePrograms& make_workers, const OnLine& on_worker_line, const MakePrograms& make_above = {});

 private:
  using Clock = std::chrono::steady_clock;
  using Children = std::vector<ChildProcess>;

  // The exit code of daemons that do not start, or exit_done.
  [[nodiscard]] int start(const std::vector<Program>& daemons, std::chrono::duration<double> patience);
  template <class Done>
  bool wait(Done done, Clock::time_point deadline);
  void handle_events(std::chrono::milliseconds at_most);
  [[nodiscard]] bool all_listen() const;
  [[nodiscard]] bool lost_daemon();
  [[nodiscard]] bool failed();
  [[nodiscard]] std::string failure_text();
  [[nodiscard]] int failure_code() const;

  Signals signals_;  // before any child, so that no child's end is missed
  Children daemons_, workers_;
  std::vector<std::string> addresses_;  // of each daemon; empty: it does not listen yet
  OnLine on_worker_line_;
  std::string first_error_;
  bool interrupted_ = false;
};

}  // namespace netsum::app
