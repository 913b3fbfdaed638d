// This program as a child process: its stdout is read line by line, it dies with this process, and it is reaped.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace netsum::app {

class ChildProcess {
 public:
  // `name`: for messages. The child sees no NETSUM_* variables, only `arguments`.
  ChildProcess(std::string name, const std::vector<std::string>& arguments);
  ~ChildProcess();  // SIGKILL if it still runs
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] int output() const { return output_; }  // to poll; -1 after its end
  // Passes on the complete lines available now.
  void read_lines(const std::function<void(const std::string&)>& line);

  [[nodiscard]] bool running();  // reaps the child if it has ended
  void signal(int number);
  [[nodiscard]] bool succeeded() const { return status_ == 0; }
  [[nodiscard]] bool killed() const;               // by a signal that this object did not send
  [[nodiscard]] int exit_code() const;             // -1 if there is none
  [[nodiscard]] std::string how_it_ended() const;  // "worker rank 1 was killed by signal 9 (KILL)"

 private:
  std::string name_, pending_;
  pid_t pid_ = -1;
  int output_ = -1;
  int status_ = -1;
  bool running_ = true, signalled_ = false;
};

}  // namespace netsum::app
