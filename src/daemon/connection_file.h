// A bump's gradient connections, on disk: a bump needs them after a restart.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/netreduce/connection.h"
#include "transport/system/socket.h"

namespace netsum::daemon {

[[nodiscard]] std::string to_string(const netreduce::HostAddress& address);
[[nodiscard]] std::optional<netreduce::HostAddress> parse_address(const std::string& text);  // IPv4 or IPv6, no name

// The content of such a file: a log of connections learned and forgotten, one per line: source address, destination address,
// number of the destination's queue pair, and the first PSN if known; a leading '-': forgotten. Lines that begin with '#'
// are comments. A last line without a newline was not fully written, and is ignored. `name` is for errors; throws Error:
// bad_argument, if the content is something else.
[[nodiscard]] std::vector<netreduce::KnownConnection> parse_connections(std::string_view content, const std::string& name);

// The file. It is appended to, and rewritten when most of its lines are obsolete. Calls wait for the disk.
class ConnectionFile {
 public:
  // Creates a missing file. Throws Error: bad_argument (it is something else, or another process has it), std::runtime_error
  // (it cannot be written).
  explicit ConnectionFile(std::string path);
  ~ConnectionFile();
  ConnectionFile(const ConnectionFile&) = delete;
  ConnectionFile& operator=(const ConnectionFile&) = delete;

  [[nodiscard]] std::vector<netreduce::KnownConnection> known() const;

  void learned(const netreduce::KnownConnection& connection);
  void forgotten(const netreduce::Connection& connection);
  // Returns when all earlier changes are on the disk. Throws std::runtime_error; then nothing is lost, and the next call
  // tries again.
  void commit();

 private:
  void rewrite();

  std::string path_;
  transport::Descriptor lock_;  // of a file beside it, since it is replaced
  int file_ = -1;               // for appending
  std::map<netreduce::Connection, std::optional<std::uint32_t>> known_;
  std::string pending_;
  std::size_t lines_ = 0;  // in the file, and pending
  bool whole_ = false;     // the file matches the last commit; otherwise it must be rewritten
};

}  // namespace netsum::daemon
