#include "control/journal.h"

#include <utility>

#include "base/waiting.h"
#include "control/clock.h"

namespace netsum::control {
namespace {

constexpr Duration interval = std::chrono::seconds(10);  // in which there are no more than:
constexpr std::uint32_t most_of_tenant = 100;            // lines and records
constexpr std::uint32_t most_refusals = 20;
constexpr std::size_t most_hosts = 1024;
constexpr Duration pause_of_host = std::chrono::minutes(1);

}  // namespace

void Journal::log(const std::string& line) const {
  check_may_wait("the log");
  const std::lock_guard lock(log_mutex_);
  if (log_) log_(line);
}

bool Journal::may_say_more(const std::string& tenant) {
  if (tenant.empty()) return true;
  std::uint32_t left_out = 0;
  bool may = false;
  {
    const std::lock_guard lock(log_mutex_);
    Said& said = said_of_[tenant];
    if (now() - said.since >= interval) left_out = std::exchange(said, {now(), 0, 0}).left_out;
    may = said.lines < most_of_tenant;
    ++(may ? said.lines : said.left_out);
  }
  if (left_out != 0)
    log("tenant '" + tenant + "': " + std::to_string(left_out) +
        " log lines and flight records were dropped: its jobs write too many");
  return may;
}

void Journal::log_of(const std::string& tenant, const std::string& line) {
  if (may_say_more(tenant)) log(line);
}

void Journal::refusal(const std::string& line) {
  std::uint32_t left_out = 0;
  {
    const std::lock_guard lock(refusals_mutex_);
    if (now() - refusals_.since >= interval) left_out = std::exchange(refusals_, {now(), 0, 0}).left_out;
    if (refusals_.lines == most_refusals) {
      ++refusals_.left_out;
      return;
    }
    ++refusals_.lines;
  }
  if (left_out != 0) log(std::to_string(left_out) + " more refused calls were not logged");
  log(line);
}

void Journal::wrong_token(const std::string& host, const std::string& what) {
  ++wrong_tokens_;
  refusal("a caller at " + host + " " + what);
}

void Journal::connection(const std::string& host, const std::string& why) {
  std::uint32_t left_out = 0;
  {
    const std::lock_guard lock(refusals_mutex_);
    if (ended_of_.size() >= most_hosts) {
      std::erase_if(ended_of_, [&](const auto& entry) { return now() - entry.second.since >= pause_of_host; });
    }
    if (!ended_of_.contains(host) && ended_of_.size() >= most_hosts) return;
    const auto [place, is_new] = ended_of_.try_emplace(host);
    if (!is_new && now() - place->second.since < pause_of_host) {
      ++place->second.left_out;
      return;
    }
    left_out = std::exchange(place->second, {now(), 1, 0}).left_out;
  }
  refusal("ended a control connection from " + host + ": " + why +
          (left_out == 0 ? "" : " (and " + std::to_string(left_out) + " others before)"));
}

}  // namespace netsum::control
