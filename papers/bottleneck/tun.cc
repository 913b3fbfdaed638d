#include "papers/bottleneck/tun.h"

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>
#include <stdexcept>
#include <system_error>

namespace netsum::bottleneck {
namespace {

constexpr int longest_backlog = 10'000;  // packets: full ones at 1 Gbit/s for 120 ms, while which another process may run

[[noreturn]] void fail(const std::string& what) {
  const int error = errno;
  throw std::runtime_error(what + ": " + std::generic_category().message(error) +
                           (error == EPERM || error == EACCES ? " (needs root)" : ""));
}

Descriptor open_file(const std::string& path, int flags, const std::string& what) {
  const int number = ::open(path.c_str(), flags | O_CLOEXEC);
  if (number < 0) fail(what);
  return Descriptor(number);
}

// The calling thread is in another network namespace for as long as this lives.
class Visit {
 public:
  explicit Visit(const std::string& to)
      : home_(open_file("/proc/thread-self/ns/net", O_RDONLY, "cannot open our own namespace")) {
    const std::string path = to.find('/') == std::string::npos ? "/run/netns/" + to : to;
    const Descriptor there = open_file(path, O_RDONLY, "cannot open the network namespace '" + to + "'");
    if (::setns(there.number(), CLONE_NEWNET) != 0) fail("cannot enter the network namespace '" + to + "'");
  }
  ~Visit() { ::setns(home_.number(), CLONE_NEWNET); }  // we came from there, so we may return
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  Descriptor home_;
};

ifreq request_for(const std::string& interface) {
  ifreq request{};
  interface.copy(request.ifr_name, sizeof request.ifr_name - 1);
  return request;
}

Descriptor create_device(const std::string& interface) {
  Descriptor device = open_file("/dev/net/tun", O_RDWR | O_NONBLOCK, "cannot open /dev/net/tun");
  ifreq request = request_for(interface);
  // No header of its own; never a device that somebody else made.
  request.ifr_flags = static_cast<short>(IFF_TUN | IFF_NO_PI | IFF_TUN_EXCL);
  if (::ioctl(device.number(), TUNSETIFF, &request) != 0) fail("cannot create the device '" + interface + "'");
  // No offload at all, also where that is the default: a sender with segmentation offload hands down up to 64 kB as one
  // packet with one IP header and no checksum. A link drops, delays and marks what is on a wire, so the kernel has to cut
  // and sum them before they come here.
  if (::ioctl(device.number(), TUNSETOFFLOAD, 0) != 0) fail("cannot turn off the offloads of '" + interface + "'");
  return device;
}

void bring_up(const std::string& interface, unsigned mtu) {
  const Descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto set = [&](unsigned long what, ifreq request) {
    if (::ioctl(socket.number(), what, &request) != 0) fail("cannot set up the device '" + interface + "'");
  };
  ifreq request = request_for(interface);
  request.ifr_mtu = static_cast<int>(mtu);
  set(SIOCSIFMTU, request);
  request = request_for(interface);
  request.ifr_qlen = longest_backlog;
  set(SIOCSIFTXQLEN, request);
  request = request_for(interface);
  request.ifr_flags = IFF_UP;
  set(SIOCSIFFLAGS, request);
}

}  // namespace

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

Tun::Tun(const std::string& network_namespace, const std::string& device, unsigned mtu)
    : name_("device '" + device + "' in '" + network_namespace + "'"), interface_(device) {
  const Visit visit(network_namespace);
  device_ = create_device(device);
  bring_up(device, mtu);
  // Once open, it shows this namespace from wherever it is read.
  statistics_ = open_file("/proc/thread-self/net/dev", O_RDONLY, "cannot open /proc/net/dev");
}

std::span<const std::byte> Tun::read() {
  for (;;) {
    const ssize_t bytes = ::read(device_.number(), buffer_.data(), buffer_.size());
    if (bytes >= 0) return {buffer_.data(), static_cast<std::size_t>(bytes)};
    if (errno == EAGAIN) return {};
    if (errno != EINTR) fail("lost the " + name_);
  }
}

bool Tun::write(std::span<const std::byte> packet) const {
  for (;;) {
    if (::write(device_.number(), packet.data(), packet.size()) >= 0) return true;
    if (errno == EBADFD) fail("lost the " + name_);
    if (errno != EINTR) return false;
  }
}

std::uint64_t Tun::overruns() const {
  std::string text(65'536, '\0');
  const ssize_t bytes = ::pread(statistics_.number(), text.data(), text.size(), 0);
  text.resize(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto colon = line.find(':');
    const auto begin = line.find_first_not_of(' ');
    if (colon == std::string::npos || line.substr(begin, colon - begin) != interface_) continue;
    // Received bytes packets errs drop fifo frame compressed multicast; sent bytes packets errs drop ...
    std::istringstream columns(line.substr(colon + 1));
    std::uint64_t value = 0;
    for (int column = 0; column < 12; ++column) columns >> value;
    return columns ? value : 0;
  }
  return 0;
}

}  // namespace netsum::bottleneck
