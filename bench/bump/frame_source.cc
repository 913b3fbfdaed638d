// Sends equal Ethernet frames through an interface as fast as it takes them, and prints how long that took, in seconds. They
// have the ethertype for local experiments, so that no host answers them. The source address is the interface's.
//
//   frame_source INTERFACE TO_ADDRESS BYTES SECONDS     (at least one batch)
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/ether.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr std::size_t frames_per_call = 64;
constexpr std::uint16_t local_experiment = 0x88b5;  // IEEE 802

int open_socket(const std::string& interface, ether_header& header) {
  const int socket = ::socket(AF_PACKET, SOCK_RAW, 0);  // protocol 0: receives nothing
  ifreq request{};
  if (interface.size() >= sizeof request.ifr_name) throw std::runtime_error("no such interface");
  interface.copy(request.ifr_name, sizeof request.ifr_name - 1);
  if (socket < 0 || ::ioctl(socket, SIOCGIFHWADDR, &request) != 0)
    throw std::runtime_error("no such interface, or not root");
  std::memcpy(header.ether_shost, request.ifr_hwaddr.sa_data, sizeof header.ether_shost);
  if (::ioctl(socket, SIOCGIFINDEX, &request) != 0) throw std::runtime_error("the interface was just removed");
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_ifindex = request.ifr_ifindex;
  if (::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    throw std::runtime_error("cannot bind the packet socket");
  }
  return socket;
}

void run(const std::string& interface, const char* to, std::size_t bytes, double seconds) {
  ether_header header{};
  const ether_addr* const destination = ether_aton(to);
  if (destination == nullptr || bytes < sizeof header) throw std::runtime_error("no Ethernet address, or too few bytes");
  std::memcpy(header.ether_dhost, destination, sizeof header.ether_dhost);
  header.ether_type = htons(local_experiment);
  const int socket = open_socket(interface, header);
  std::vector<std::byte> frame(bytes);
  std::memcpy(frame.data(), &header, sizeof header);
  iovec piece{frame.data(), frame.size()};
  std::array<mmsghdr, frames_per_call> messages{};
  for (mmsghdr& message : messages) {
    message.msg_hdr.msg_iov = &piece;
    message.msg_hdr.msg_iovlen = 1;
  }
  const auto began = std::chrono::steady_clock::now();
  std::chrono::duration<double> passed{};
  do {
    // A full queue behind the interface is the point of the run.
    if (::sendmmsg(socket, messages.data(), frames_per_call, 0) < 0 && errno != ENOBUFS) {
      throw std::runtime_error(std::string("cannot send: ") + std::strerror(errno));
    }
    passed = std::chrono::steady_clock::now() - began;
  } while (passed.count() < seconds);
  ::close(socket);
  std::printf("%.6f\n", passed.count());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 5) throw std::runtime_error("usage: frame_source INTERFACE TO_ADDRESS BYTES SECONDS");
    run(argv[1], argv[2], std::strtoul(argv[3], nullptr, 10), std::strtod(argv[4], nullptr));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "frame_source: %s\n", error.what());
    return 1;
  }
}
