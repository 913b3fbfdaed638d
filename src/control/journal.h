// What a daemon's log says of callers and tenants: bounded, whatever they do.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "base/time.h"

namespace netsum::control {

// Any thread. No call waits for another process, but each may wait for the log.
class Journal {
 public:
  explicit Journal(std::function<void(const std::string&)> log) : log_(std::move(log)) {}

  void log(const std::string& line) const;
  // Logs a line of a tenant's job. A tenant's lines are limited, so that they do not push those of others out of the log.
  void log_of(const std::string& tenant, const std::string& line);
  // Whether the tenant may have another line or record. Without tenants all jobs are trusted.
  [[nodiscard]] bool may_say_more(const std::string& tenant);

  // Strangers cause these lines: no more than some in a while.
  void refusal(const std::string& line);
  void wrong_token(const std::string& host, const std::string& what);
  // Of a connection that was ended: one line for a host and a minute.
  void connection(const std::string& host, const std::string& why);

  // So far.
  [[nodiscard]] std::uint64_t joins_refused() const { return joins_refused_; }
  void count_refused_join() { ++joins_refused_; }
  [[nodiscard]] std::uint64_t wrong_tokens() const { return wrong_tokens_; }

 private:
  struct Said {
    Time since{};
    std::uint32_t lines = 0, left_out = 0;
  };

  const std::function<void(const std::string&)> log_;  // may be empty
  std::atomic<std::uint64_t> joins_refused_ = 0, wrong_tokens_ = 0;

  mutable std::mutex log_mutex_;         // for said_of_, and held while a line is written
  std::map<std::string, Said> said_of_;  // by tenant

  std::mutex refusals_mutex_;  // for the rest
  Said refusals_;
  std::map<std::string, Said> ended_of_;  // connections, by host
};

}  // namespace netsum::control
