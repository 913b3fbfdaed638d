#include "collective/connection_file.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "netsum/error.h"
#include "wire/roce.h"

namespace netsum::collective {
namespace {

using Address = std::array<std::uint8_t, 16>;

constexpr Address mapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};  // an IPv4 address as an IPv6 one
constexpr std::size_t mapped_bytes = 12;

std::string to_text(const Address& address) {
  char text[INET6_ADDRSTRLEN];
  const bool v4 = std::equal(mapped.begin(), mapped.begin() + mapped_bytes, address.begin());
  inet_ntop(v4 ? AF_INET : AF_INET6, address.data() + (v4 ? mapped_bytes : 0), text, sizeof text);
  return text;
}

bool from_text(const std::string& text, Address& address) {
  address = mapped;
  return inet_pton(AF_INET, text.c_str(), address.data() + mapped_bytes) == 1 ||
         inet_pton(AF_INET6, text.c_str(), address.data()) == 1;
}

[[noreturn]] void fail(const std::string& what, const std::string& path) {
  throw std::runtime_error("cannot " + what + " '" + path + "' (--state): " + std::strerror(errno));
}

// Of a file or a folder: what was written to it is on the disk.
bool synchronize(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool done = ::fsync(file) == 0;
  ::close(file);
  return done;
}

}  // namespace

std::vector<netreduce::Connection> read_connections(const std::string& path) {
  std::vector<netreduce::Connection> connections;
  std::ifstream file(path);
  if (!file) {
    if (errno == ENOENT) return connections;
    fail("read", path);
  }
  std::string line;
  for (std::size_t number = 1; std::getline(file, line); ++number) {
    if (line.empty() || line.front() == '#') continue;
    netreduce::Connection connection;
    std::istringstream words(line);
    std::string source, destination, more;
    if (!(words >> source >> destination >> connection.destination_qp) || words >> more ||
        !from_text(source, connection.source) || !from_text(destination, connection.destination) ||
        connection.destination_qp > wire::roce::qp_mask) {
      throw Error(ErrorCode::bad_argument, path + " (--state), line " + std::to_string(number) +
                                               ": not a source address, a destination address and a queue pair");
    }
    connections.push_back(connection);
  }
  return connections;
}

void write_connections(const std::string& path, const std::vector<netreduce::Connection>& connections) {
  const std::string fresh = path + ".new";
  std::ofstream file(fresh, std::ios::trunc);
  file << "# netsum switch --state: gradient connections, as source, destination, queue pair of the destination.\n";
  for (const netreduce::Connection& connection : connections) {
    file << to_text(connection.source) << ' ' << to_text(connection.destination) << ' ' << connection.destination_qp << '\n';
  }
  file.close();
  if (!file || !synchronize(fresh)) fail("write", fresh);
  if (::rename(fresh.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(fresh.c_str());
    errno = error;
    fail("replace", path);
  }
  const std::size_t slash = path.rfind('/');
  // Some file systems cannot do that; they keep the order of what is renamed by themselves.
  static_cast<void>(synchronize(slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash)));
}

}  // namespace netsum::collective
