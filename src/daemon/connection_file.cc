#include "daemon/connection_file.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "base/numbers.h"
#include "netsum/error.h"
#include "wire/roce.h"

namespace netsum::daemon {
namespace {

using netreduce::Connection;
using netreduce::HostAddress;
using netreduce::KnownConnection;

constexpr HostAddress mapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};  // an IPv4 address as an IPv6 one
constexpr std::size_t mapped_bytes = 12;

constexpr std::string_view first_line =
    "# netsum bump --state: gradient connections, as source, destination, queue pair of the destination, first PSN.\n";
constexpr std::size_t lines_of_the_past = 1000;  // obsolete lines allowed, beyond the number of current ones

[[noreturn]] void fail(const std::string& what, const std::string& path) {
  throw std::runtime_error("cannot " + what + " '" + path + "' (--state): " + std::strerror(errno));
}

std::string line_of(const Connection& connection, const std::optional<std::uint32_t>& first_psn) {
  return to_string(connection.source) + ' ' + to_string(connection.destination) + ' ' +
         std::to_string(connection.destination_qp) + (first_psn ? ' ' + std::to_string(*first_psn) : "") + '\n';
}

// Parses a line without its newline; none: invalid.
std::optional<KnownConnection> parse_line(std::string_view line) {
  std::array<std::string, 5> words;
  std::istringstream stream{std::string(line)};
  std::size_t count = 0;
  while (count < words.size() && stream >> words[count]) ++count;
  if (count != 3 && count != 4) return std::nullopt;
  const auto source = parse_address(words[0]), destination = parse_address(words[1]);
  const auto qp = parse_number<std::uint32_t>(words[2], 0, wire::roce::qp_mask);
  if (!source || !destination || !qp) return std::nullopt;
  KnownConnection known{{*source, *destination, *qp}, {}};
  if (count == 4) {
    known.first_psn = parse_number<std::uint32_t>(words[3], 0, wire::roce::psn_mask);
    if (!known.first_psn) return std::nullopt;
  }
  return known;
}

bool write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

// Puts a folder's entries on the disk. Some file systems cannot do that; they keep the order of renames themselves.
void synchronize_folder(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  const int opened = ::open(folder.c_str(), O_RDONLY | O_CLOEXEC);
  if (opened < 0) return;
  static_cast<void>(::fsync(opened));
  ::close(opened);
}

// A descriptor that keeps others from it until it is closed.
int locked(const std::string& path) {
  std::error_code ignored;  // open() says what is wrong
  if (const auto folder = std::filesystem::path(path).parent_path(); !folder.empty()) {
    std::filesystem::create_directories(folder, ignored);
  }
  const std::string beside = path + ".lock";
  const int lock = ::open(beside.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock < 0) fail("write", beside);
  if (::flock(lock, LOCK_EX | LOCK_NB) == 0) return lock;
  const bool held = errno == EWOULDBLOCK;
  ::close(lock);
  if (!held) fail("lock", beside);
  throw Error(ErrorCode::bad_argument, "another process uses '" + path + "' (--state): give each bump its own file");
}

}  // namespace

std::string to_string(const HostAddress& address) {
  char text[INET6_ADDRSTRLEN];
  const bool v4 = std::equal(mapped.begin(), mapped.begin() + mapped_bytes, address.begin());
  inet_ntop(v4 ? AF_INET : AF_INET6, address.data() + (v4 ? mapped_bytes : 0), text, sizeof text);
  return text;
}

std::optional<HostAddress> parse_address(const std::string& text) {
  HostAddress address = mapped;
  if (inet_pton(AF_INET, text.c_str(), address.data() + mapped_bytes) == 1 ||
      inet_pton(AF_INET6, text.c_str(), address.data()) == 1) {
    return address;
  }
  return std::nullopt;
}

std::vector<KnownConnection> parse_connections(std::string_view content, const std::string& name) {
  std::map<Connection, std::optional<std::uint32_t>> known;
  for (std::size_t number = 1; !content.empty(); ++number) {
    const std::size_t end = content.find('\n');
    if (end == std::string_view::npos) break;
    std::string_view line = content.substr(0, end);
    content.remove_prefix(end + 1);
    if (line.empty() || line.front() == '#') continue;
    const bool forgotten = line.front() == '-';
    const auto read = parse_line(forgotten ? line.substr(1) : line);
    if (!read) {
      throw Error(ErrorCode::bad_argument,
                  name + " (--state), line " + std::to_string(number) +
                      ": this is not a source address, a destination address, a queue pair and a first PSN");
    }
    if (forgotten) {
      known.erase(read->connection);
    } else {
      known[read->connection] = read->first_psn;
    }
  }
  std::vector<KnownConnection> list;
  for (const auto& [connection, first_psn] : known) list.push_back({connection, first_psn});
  return list;
}

ConnectionFile::ConnectionFile(std::string path) : path_(std::move(path)), lock_(locked(path_)) {
  std::ifstream file(path_);
  if (!file && errno != ENOENT) fail("read", path_);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  if (file.bad()) fail("read", path_);
  for (const KnownConnection& each : parse_connections(content, path_)) known_[each.connection] = each.first_psn;
  rewrite();  // fails now rather than when it matters
}

ConnectionFile::~ConnectionFile() {
  if (file_ >= 0) ::close(file_);
}

std::vector<KnownConnection> ConnectionFile::known() const {
  std::vector<KnownConnection> list;
  for (const auto& [connection, first_psn] : known_) list.push_back({connection, first_psn});
  return list;
}

void ConnectionFile::learned(const KnownConnection& connection) {
  known_[connection.connection] = connection.first_psn;
  pending_ += line_of(connection.connection, connection.first_psn);
  ++lines_;
}

void ConnectionFile::forgotten(const Connection& connection) {
  if (known_.erase(connection) == 0) return;
  pending_ += "- " + line_of(connection, {});
  ++lines_;
}

void ConnectionFile::commit() {
  if (pending_.empty() && whole_) return;
  if (!whole_ || lines_ > 2 * known_.size() + lines_of_the_past) return rewrite();
  if (!write_all(file_, pending_) || ::fdatasync(file_) != 0) {
    whole_ = false;  // an unknown part was written
    fail("write", path_);
  }
  pending_.clear();
}

void ConnectionFile::rewrite() {
  whole_ = false;
  const std::string fresh = path_ + ".new";
  const int file = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) fail("write", fresh);
  std::string content(first_line);
  for (const auto& [connection, first_psn] : known_) content += line_of(connection, first_psn);
  const bool done = write_all(file, content) && ::fsync(file) == 0;
  if (!done || ::rename(fresh.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::close(file);
    ::unlink(fresh.c_str());
    errno = error;
    fail(done ? "replace" : "write", done ? path_ : fresh);
  }
  if (file_ >= 0) ::close(file_);
  file_ = file;
  synchronize_folder(path_);
  pending_.clear();
  lines_ = known_.size();
  whole_ = true;
}

}  // namespace netsum::daemon
