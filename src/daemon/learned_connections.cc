#include "daemon/learned_connections.h"

#include <exception>
#include <utility>

namespace netsum::daemon {

using netreduce::Connection;
using netreduce::ConnectionChange;

LearnedConnections::LearnedConnections(const std::string& path, std::function<void(const std::string&)> log)
    : log_(std::move(log)) {
  if (!path.empty()) file_.emplace(path);
}

std::vector<netreduce::KnownConnection> LearnedConnections::known() const {
  return file_ ? file_->known() : std::vector<netreduce::KnownConnection>();
}

void LearnedConnections::note(const ConnectionChange& change) {
  if (!file_) return;
  if (change.kind == ConnectionChange::Kind::forgotten) return file_->forgotten(change.known.connection);
  file_->learned(change.known);
  waiting_.push_back(change.known.connection);
}

void LearnedConnections::add(const netreduce::RingConfig& ring) {
  if (!file_) return;
  for (const netreduce::Line& line : ring.lines) {
    if (line.way != netreduce::Way::child) file_->learned({line.connection, {}});
  }
}

std::vector<Connection> LearnedConnections::commit(Time now) {
  if (!file_) return {};
  try {
    file_->commit();
  } catch (const std::exception& error) {
    if (failures_.take(now)) {
      log_("error: " + std::string(error.what()) + ": do not restart this bump before the hosts are restarted");
    }
  }
  return std::exchange(waiting_, {});
}

}  // namespace netsum::daemon
