// The sending half of a UDP socket: collects datagrams into segment trains and sends each train with one message of a
// sendmmsg call (UDP_SEGMENT), or its datagrams one by one where the kernel or the path cannot take the train.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/copied.h"
#include "base/packet_io.h"
#include "transport/addresses/own_addresses.h"
#include "transport/datagram/transport.h"

namespace netsum::transport {

inline constexpr std::size_t max_datagram_bytes = 65507;  // 65535 - IPv4 - UDP headers

class SegmentTrains final : public Sink {
 public:
  // `peer`: the endpoint that the socket is connected to. `own_addresses`: null if the socket is bound to one. Counts into
  // `counters`; both must outlive this object.
  SegmentTrains(int descriptor, bool ipv6, std::optional<Endpoint> peer, bool segmentation,
                const OwnAddresses* own_addresses, Counters& counters);
  ~SegmentTrains() = default;

  std::span<std::byte> datagram(const Endpoint& to, std::size_t bytes) override;
  Around around(const Endpoint& to, std::size_t head, std::span<const std::byte> body, std::size_t tail) override;
  void multicast(std::span<const std::byte> packet, std::span<const Endpoint> to) override;
  void flush() override;

 private:
  static constexpr std::size_t no_train = ~std::size_t{0};

  // Datagrams of equal size (the last may be shorter) to the same destinations.
  struct Train {
    std::span<const Endpoint> group;  // a multicast's destinations, by reference; empty: `single`
    Endpoint single;
    iovec whole{};                // a train written in place: all its bytes, contiguous
    std::size_t pieces_each = 0;  // of a datagram, in pieces_; 0: it is written in place
    std::size_t first_piece = 0;
    std::size_t datagrams = 0, segment_bytes = 0, bytes = 0;
    bool closed = false;  // a shorter datagram ended it

    [[nodiscard]] std::span<const Endpoint> destinations() const { return group.empty() ? std::span(&single, 1) : group; }
    [[nodiscard]] bool takes(std::size_t more) const;
    void add(std::size_t more);
  };

  // One message of a sendmmsg call and the memory that its header points to.
  struct Message {
    const Train* train = nullptr;
    const Endpoint* to = nullptr;
    std::size_t datagrams = 0, bytes = 0;
    iovec piece{};
    sockaddr_storage name{};
    // the segments' length, and the source address
    alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(std::uint16_t)) + CMSG_SPACE(sizeof(in6_pktinfo))] = {};
  };
  struct Batch {
    explicit Batch(std::size_t capacity) : headers(capacity), messages(capacity) {}
    [[nodiscard]] bool full() const { return count == headers.size(); }
    std::vector<mmsghdr> headers;
    std::vector<Message> messages;
    std::size_t count = 0;
  };

  [[nodiscard]] Train& train_to(const Endpoint& to, std::size_t bytes, std::size_t pieces_each);
  void put_train(Batch& batch, const Train& train, const Endpoint& to);
  void put_datagrams(Batch& batch, const Train& train, const Endpoint& to);
  void put(Batch& batch, const Train& train, const Endpoint& to, std::size_t datagrams, std::size_t bytes, iovec* pieces,
           std::size_t piece_count);
  void name_source(const Endpoint& to, msghdr& header, std::byte* control);
  std::size_t send(Batch& batch);  // the number of datagrams that the kernel took

  int descriptor_;
  bool ipv6_;
  std::optional<Endpoint> peer_;
  std::size_t unsegmentable_from_;  // trains with segments this long or longer are sent as single datagrams
  std::optional<OwnAddressesView> own_addresses_;
  Counters& counters_;

  const CopiedMemory arena_;  // each train in it begins a line
  std::size_t arena_used_ = 0;
  std::vector<Train> trains_;
  std::vector<iovec> pieces_;
  // The open trains, one to a single endpoint and one multicast: a stray reply between two results closes neither.
  std::size_t open_single_ = no_train, open_multicast_ = no_train;
  Batch batch_, singles_;
};

}  // namespace netsum::transport
