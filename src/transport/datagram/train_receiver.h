// The receiving half of a UDP socket: recvmmsg into preallocated buffers, and trains that the kernel coalesced (UDP_GRO)
// split into the datagrams that were sent.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/copied.h"
#include "base/packet_io.h"
#include "transport/addresses/own_addresses.h"
#include "transport/datagram/transport.h"

namespace netsum::transport {

class TrainReceiver {
 public:
  // Counts into `counters`, and learns into `own_addresses` if the socket reports them: both must outlive this.
  TrainReceiver(int descriptor, bool coalescing, OwnAddresses* own_addresses, Counters& counters);

  // One system call's worth; valid until the next call.
  [[nodiscard]] std::span<const RxView> receive();

 private:
  struct Message {
    iovec buffer{};
    sockaddr_storage source{};
    // the train's segment length, its IP header's type of service (IPv4: a byte) or traffic class (an int), and where it
    // went
    alignas(cmsghdr) std::byte control[2 * CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(in6_pktinfo))] = {};
  };

  void split(msghdr& header, const Message& message, std::size_t bytes);

  int descriptor_;
  OwnAddresses* own_addresses_;
  std::optional<OwnAddressesView> known_addresses_;
  Counters& counters_;
  CopiedMemory buffers_;
  std::vector<mmsghdr> headers_;
  std::vector<Message> messages_;
  std::vector<RxView> views_;
};

}  // namespace netsum::transport
