// What `netsum top` shows of some daemons.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "telemetry/rates.h"
#include "telemetry/report.h"

namespace netsum::app {

class TopText {
 public:
  struct Answer {
    std::string address;                      // of the daemon
    std::optional<telemetry::Report> report;  // none: `error` says why
    std::string error;
  };

  // Rates are since the last call. Lines have at most `columns` characters.
  [[nodiscard]] std::string next(const std::vector<Answer>& answers, std::size_t columns);

 private:
  [[nodiscard]] std::string of_daemon(const Answer& answer);

  std::map<std::string, telemetry::Report> last_;  // by daemon
};

}  // namespace netsum::app
