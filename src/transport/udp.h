// Kernel UDP in batches: recvmmsg with UDP_GRO, sendmmsg with UDP_SEGMENT, where the kernel has them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/endpoint.h"
#include "transport/transport.h"

namespace netsum::transport {

struct UdpOptions {
  Endpoint bind;                      // an unspecified address of either family, or a local one; port 0: any
  bool ipv6 = false;                  // which family an unspecified `bind` means
  std::optional<Endpoint> peer;       // connects the socket: the kernel then drops datagrams of others
  std::size_t buffer_bytes = 8 << 20; // asked of the kernel, each way
  bool segmentation = true;           // false: as on a kernel without UDP_SEGMENT and UDP_GRO
};

class Udp final : public Transport {
 public:
  explicit Udp(const UdpOptions& options);  // throws Error: refused (address in use), bad_argument
  ~Udp() override;

  std::span<const RxView> receive() override;
  Sink& sink() override;
  int descriptor() const override;
  Endpoint local() const override;
  Counters counters() const override;

  [[nodiscard]] std::uint32_t mtu() const;            // of the path to the peer, IP headers included
  [[nodiscard]] std::string buffer_warning() const;   // empty, or what the kernel gave less and the sysctl that raises it

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// "host:port" or "[v6]:port"; throws Error: bad_argument (not of that form), unreachable (no such host).
[[nodiscard]] Endpoint resolve(const std::string& address);
[[nodiscard]] std::string to_string(const Endpoint& endpoint);
[[nodiscard]] bool is_ipv4(const Endpoint& endpoint);
[[nodiscard]] bool is_unspecified(const Endpoint& endpoint);

}  // namespace netsum::transport
