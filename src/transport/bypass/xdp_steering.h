// The program on an interface that sends frames to AF_XDP sockets (steer.bpf.c). It ends with this object, or with the
// process, however that ends.
#pragma once

#include <bpf/libbpf.h>

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "base/endpoint.h"
#include "transport/bypass/xdp_doors.h"
#include "transport/bypass/xdp_socket.h"

namespace netsum::transport {

class XdpSteering {
 public:
  enum class Takes { every_frame, some_ports };

  // Loads the program. Throws Error: refused.
  XdpSteering(const XdpInterface& interface, Takes takes);
  XdpSteering(const XdpSteering&) = delete;
  XdpSteering& operator=(const XdpSteering&) = delete;

  // Each throws Error: refused. `owner`: whose queue this is, if the program takes some ports; not 0.
  void add_socket(std::uint32_t queue, const XdpSocket& socket, std::uint32_t owner = 0);
  // UDP to this IPv4 address, or to any if it is unspecified, goes to the owner's sockets.
  void add_port(const Endpoint& local, std::uint32_t owner);
  void remove_port(std::uint16_t port) noexcept;
  // Of Takes::every_frame: what was too long for the sockets.
  [[nodiscard]] XdpLimit limit() const;
  // Of Takes::some_ports: what is sent to this host, as it is now. Throws Error: internal, refused.
  void learn_stations();
  // Puts the program on the interface: sockets and ports may be added before and after.
  void attach();

 private:
  struct Close {
    void operator()(bpf_object* object) const { bpf_object__close(object); }
    void operator()(bpf_link* link) const { bpf_link__destroy(link); }
  };
  [[nodiscard]] int map(const char* name) const;

  const XdpInterface interface_;
  const char* const program_;
  std::unique_ptr<bpf_object, Close> object_;
  std::unique_ptr<bpf_link, Close> link_;
  std::set<std::array<std::uint8_t, 4>> addresses_;  // that the program has
};

}  // namespace netsum::transport
