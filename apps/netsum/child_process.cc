#include "child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace netsum::app {

ChildProcess::ChildProcess(std::string name, const std::vector<std::string>& arguments) : name_(std::move(name)) {
  // Allocate only before the fork.
  std::vector<std::string> words{"netsum"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::vector<char*> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!std::string_view(*variable).starts_with("NETSUM_")) environment.push_back(*variable);
  }
  environment.push_back(nullptr);

  std::array<int, 2> pipe{};
  if (pipe2(pipe.data(), O_CLOEXEC) != 0) throw std::runtime_error(std::string("pipe: ") + std::strerror(errno));
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);  // the parent died before the line above
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(null, STDIN_FILENO);
    dup2(pipe[1], STDOUT_FILENO);
    execve("/proc/self/exe", argv.data(), environment.data());
    _exit(127);
  }
  close(pipe[1]);
  output_ = pipe[0];
  if (pid_ < 0) {
    close(output_);
    throw std::runtime_error("cannot start " + name_ + ": " + std::strerror(errno));
  }
  fcntl(output_, F_SETFL, O_NONBLOCK);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : name_(std::move(other.name_)),
      pending_(std::move(other.pending_)),
      pid_(std::exchange(other.pid_, -1)),
      output_(std::exchange(other.output_, -1)),
      status_(other.status_),
      running_(std::exchange(other.running_, false)),
      signalled_(other.signalled_) {}

ChildProcess::~ChildProcess() {
  if (running_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (output_ >= 0) close(output_);
}

void ChildProcess::read_lines(const std::function<void(const std::string&)>& line) {
  std::array<char, 65536> buffer;
  while (output_ >= 0) {
    const ssize_t got = read(output_, buffer.data(), buffer.size());
    if (got < 0) return;  // nothing to read now
    if (got == 0) {
      close(std::exchange(output_, -1));
      return;
    }
    pending_.append(buffer.data(), static_cast<std::size_t>(got));
    std::size_t end;
    while ((end = pending_.find('\n')) != std::string::npos) {
      line(pending_.substr(0, end));
      pending_.erase(0, end + 1);
    }
  }
}

bool ChildProcess::running() {
  if (running_ && waitpid(pid_, &status_, WNOHANG) == pid_) running_ = false;
  return running_;
}

void ChildProcess::signal(int number) {
  if (!running()) return;
  signalled_ = true;
  kill(pid_, number);
}

bool ChildProcess::killed() const {
  return !running_ && !signalled_ && WIFSIGNALED(status_);
}

int ChildProcess::exit_code() const {
  return !running_ && WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
}

std::string ChildProcess::how_it_ended() const {
  if (running_) return name_ + " is still running";
  if (WIFSIGNALED(status_)) {
    const char* abbreviation = sigabbrev_np(WTERMSIG(status_));
    return name_ + " was killed by signal " + std::to_string(WTERMSIG(status_)) + " (" +
           (abbreviation == nullptr ? "?" : abbreviation) + ")";
  }
  return name_ + " exited with " + std::to_string(WEXITSTATUS(status_));
}

}  // namespace netsum::app
