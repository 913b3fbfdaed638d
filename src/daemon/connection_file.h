// A bump's gradient connections, on disk: what it must still know after a restart.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/netreduce/connection.h"

namespace netsum::daemon {

[[nodiscard]] std::string to_string(const netreduce::HostAddress& address);
[[nodiscard]] std::optional<netreduce::HostAddress> parse_address(const std::string& text);  // of IPv4 or IPv6, no name

// The content of such a file: a log of what became known, and of what was forgotten. One a line: address of the source, of
// the destination, number of the destination's queue pair, and the first PSN if that is known; with a '-' in front:
// forgotten. Lines that begin with '#' are for readers. A last line that has no end was not written to its end, and is
// nothing. `name` is for errors; throws Error: bad_argument, if it is something else.
[[nodiscard]] std::vector<netreduce::KnownConnection> parse_connections(std::string_view content, const std::string& name);

// The file. It is appended to, and written anew when most of its lines are of the past. Whoever calls these waits for the
// disk.
class ConnectionFile {
 public:
  // No such file: it is made. Throws Error: bad_argument (it is something else), std::runtime_error (it cannot be written).
  explicit ConnectionFile(std::string path);
  ~ConnectionFile();
  ConnectionFile(const ConnectionFile&) = delete;
  ConnectionFile& operator=(const ConnectionFile&) = delete;

  [[nodiscard]] std::vector<netreduce::KnownConnection> known() const;

  void learned(const netreduce::KnownConnection& connection);
  void forgotten(const netreduce::Connection& connection);
  // Returns when all that was said before is on the disk. Throws std::runtime_error; then nothing is lost, and the next call
  // tries again.
  void commit();

 private:
  void rewrite();

  std::string path_;
  int file_ = -1;  // to append to
  std::map<netreduce::Connection, std::optional<std::uint32_t>> known_;
  std::string pending_;
  std::size_t lines_ = 0;  // in the file, and pending
  bool whole_ = false;     // the file is what was committed last; else it is to be written anew
};

}  // namespace netsum::daemon
