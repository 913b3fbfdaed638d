// IP multicast over IPv4: a range of groups for jobs, and a socket that receives one group.
//
// The sender is an ordinary socket (UdpOptions::multicast_from_here) that sends to the group's address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/endpoint.h"
#include "transport/datagram/transport.h"

namespace netsum::transport {

// A range of group addresses, and the first of the ports.
class GroupRange {
 public:
  // "GROUP:PORT", or "GROUP/BITS:PORT" for all groups that have the first BITS in common. Throws Error: bad_argument.
  explicit GroupRange(const std::string& text);

  // The group of a job, at the lane's port. It depends on the name alone; jobs with colliding names receive and discard each
  // other's packets.
  [[nodiscard]] Endpoint group_of(std::string_view job, std::size_t lane) const;

  [[nodiscard]] std::uint32_t first() const { return first_; }
  [[nodiscard]] std::uint32_t groups() const { return mask_ + 1; }
  [[nodiscard]] std::uint16_t port() const { return port_; }

 private:
  std::uint32_t first_ = 0, mask_ = 0;  // host order; mask_: the bits that differ
  std::uint16_t port_ = 0;
};

// Groups within this host, from its loopback device. None if that carries no multicast, as in some sandboxes: asked with a
// datagram to itself.
[[nodiscard]] std::optional<GroupRange> loopback_groups();

// Receives datagrams that `source` sends to a group. Several processes of this host may: they share the port.
class GroupSocket {
 public:
  // Joins the group on the interface with the address `local`. Throws Error: refused (port in use, the kernel joins no more
  // groups), bad_argument (not IPv4).
  GroupSocket(const Endpoint& group, const Endpoint& local, const Endpoint& source, std::size_t buffer_bytes);
  ~GroupSocket();

  [[nodiscard]] std::span<const RxView> receive();
  [[nodiscard]] int descriptor() const;
  [[nodiscard]] const Counters& counters() const;
  [[nodiscard]] std::uint64_t queued_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// One transport of both: receives from either, sends from `own`.
[[nodiscard]] std::unique_ptr<Transport> with_group(std::unique_ptr<Transport> own, std::unique_ptr<GroupSocket> group);

}  // namespace netsum::transport
