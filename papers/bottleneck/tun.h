// A TUN device in a network namespace: what the namespace routes into it is read here, what is written here arrives there.
//
// TUN rather than packet sockets on veth ends: it carries IP packets and nothing else (no Ethernet, ARP or neighbours to
// answer), the kernel hands over each packet once and no longer works on it itself, and a write delivers it at once instead
// of through a backlog that may overflow.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace netsum::bottleneck {

class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  [[nodiscard]] int number() const { return number_; }

 private:
  int number_;
};

class Tun {
 public:
  // Creates the device and brings it up; it is gone when this object is. `network_namespace` is a name that `ip netns`
  // knows, or a path such as /proc/PID/ns/net; the calling thread is in it for a moment. Throws std::runtime_error that says
  // what is missing.
  Tun(const std::string& network_namespace, const std::string& device, unsigned mtu);

  [[nodiscard]] int descriptor() const { return device_.number(); }

  // The next packet, valid until the next call; empty if there is none now. Throws if the device is gone.
  [[nodiscard]] std::span<const std::byte> read();

  // False if the kernel does not take it: it is no IP packet, or the device was set down. Throws if the device is gone.
  [[nodiscard]] bool write(std::span<const std::byte> packet) const;

  // Packets that the kernel dropped on the way in: more waited than the device holds, because we did not run.
  [[nodiscard]] std::uint64_t overruns() const;

 private:
  std::string name_;  // for errors
  std::string interface_;
  Descriptor device_;
  Descriptor statistics_;                 // the namespace's /proc/net/dev
  std::array<std::byte, 65'576> buffer_;  // IPv6's longest packet, a header and 65,535 bytes, and one more
};

}  // namespace netsum::bottleneck
