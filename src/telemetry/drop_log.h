// Why packets of jobs are dropped that no loss explains: lines for the log.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/time.h"
#include "telemetry/line_limit.h"
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
  std::map<std::pair<Rates::Key, std::string>, LineLimit> limits_;  // of the jobs in the last report; by counter
};

}  // namespace netsum::telemetry
