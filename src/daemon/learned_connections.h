// A bump's connections as its disk has them, and those that wait for it: sums leave on a learned connection once a restarted
// bump would know it. One thread's; some calls wait for the disk.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/time.h"
#include "daemon/connection_file.h"
#include "protocol/netreduce/accelerator.h"
#include "telemetry/line_limit.h"

namespace netsum::daemon {

class LearnedConnections {
 public:
  // `path` empty: there is no file, and nothing waits. Throws as ConnectionFile.
  LearnedConnections(const std::string& path, std::function<void(const std::string&)> log);

  [[nodiscard]] std::vector<netreduce::KnownConnection> known() const;

  void note(const netreduce::ConnectionChange& change);
  void add(const netreduce::RingConfig& ring);  // of ranks that have named their connections
  // Returns, when all changes are on the disk, the learned connections that have waited for it. They go on even if it fails,
  // which the log says.
  [[nodiscard]] std::vector<netreduce::Connection> commit(Time now);

 private:
  const std::function<void(const std::string&)> log_;
  std::optional<ConnectionFile> file_;
  std::vector<netreduce::Connection> waiting_;
  telemetry::LineLimit failures_;
};

}  // namespace netsum::daemon
