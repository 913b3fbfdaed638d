// IP multicast over IPv4: groups that jobs share out among themselves, and a socket that hears one beside its own.
//
// The sender is an ordinary socket (UdpOptions::multicast_from_here) that writes to the group's address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/endpoint.h"
#include "transport/transport.h"

namespace netsum::transport {

// A range of group addresses, and the first of the ports.
class GroupRange {
 public:
  // "GROUP:PORT", or "GROUP/BITS:PORT" for all groups that have the first BITS in common. Throws Error: bad_argument.
  explicit GroupRange(const std::string& text);

  // The group of a job, at the lane's port. It follows from the name alone; jobs whose names fall on the same group hear
  // each other's packets in vain.
  [[nodiscard]] Endpoint group_of(std::string_view job, std::size_t lane) const;

  [[nodiscard]] std::uint32_t first() const { return first_; }
  [[nodiscard]] std::uint32_t groups() const { return mask_ + 1; }
  [[nodiscard]] std::uint16_t port() const { return port_; }

 private:
  std::uint32_t first_ = 0, mask_ = 0;  // host order; mask_: the bits that differ
  std::uint16_t port_ = 0;
};

// Hears what `source` sends to a group, for whichever of this host's processes want it: they share the port.
class GroupSocket {
 public:
  // Joins the group on the interface that has the address `local`. Throws Error: refused (the port is another's, the kernel
  // joins no more groups), bad_argument (not IPv4).
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

// One transport of both: what comes to either is received, what is sent leaves from the own one.
[[nodiscard]] std::unique_ptr<Transport> with_group(std::unique_ptr<Transport> own, std::unique_ptr<GroupSocket> group);

}  // namespace netsum::transport
