// Why packets of jobs are dropped that no loss explains: lines for the log.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/time.h"
#include "telemetry/rates.h"
#include "telemetry/report.h"

namespace netsum::telemetry {

class DropLog {
 public:
  struct Line {
    std::string tenant, text;
  };
  // What has been dropped since the last line about it: for each job and reason at most one line in a minute. What late and
  // repeated packets count is left out, as it belongs to losses.
  [[nodiscard]] std::vector<Line> look(const Report& seen, Time at);

 private:
  struct Said {
    std::uint64_t count = 0;
    Time again{};
  };
  std::map<std::pair<Rates::Key, std::string>, Said> said_;  // of the jobs in the last report; by counter
};

}  // namespace netsum::telemetry
