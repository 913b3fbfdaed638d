// Datagrams over IPv4 in Ethernet frames that netsum writes and reads itself: what a lane of AF_XDP (xdp_datagrams.cc) and
// one of a host of its own (frame_host.h) have in common. Who moves the frames, and knows where they go, is below this.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/endpoint.h"
#include "base/time.h"
#include "transport/addresses/own_addresses.h"
#include "transport/bypass/frame_places.h"
#include "transport/bypass/known_heads.h"
#include "transport/datagram/transport.h"
#include "wire/udp_frame.h"

namespace netsum::transport {

[[nodiscard]] Time time_now();
// The same, some milliseconds ago at most, for a fraction of what reading the clock costs.
[[nodiscard]] Time recent_time();

class FrameDatagrams : public Transport {
 public:
  Sink& sink() override { return outbox_; }
  Endpoint local() const override { return local_; }
  Counters counters() const override;

 protected:
  struct Way {
    FramePlaces* places = nullptr;  // of frames that lead there; null: none does
    Time until = Time::min();
    std::size_t most = 0;                        // bytes of a datagram
    std::optional<OwnAddresses::Address> own{};  // of several own addresses the one that the peer sends to
    wire::UdpHead head{};
  };

  // `beside` carries the datagrams that no frame does; null: they are lost.
  FrameDatagrams(const Endpoint& local, const std::optional<Endpoint>& peer, bool ecn, Sink* beside)
      : local_(local), peer_(peer), ecn_(ecn), outbox_(*this, beside) {}

  // Takes frames until there is a datagram or there are no frames; those already received count.
  void take_frames();
  // Hands out the datagram of a frame whose head is as that of one that was accepted. False: the frame must be read.
  bool accept_known(std::span<const std::byte> frame) {
    const RxView* const known = known_.find(frame);
    if (known != nullptr)
      hand_out(frame.subspan(wire::udp_head_bytes, known->bytes.size()), known->source, known->congested);
    return known != nullptr;
  }
  // Hands out a datagram to this lane. False: it is not from the peer.
  bool accept(std::span<const std::byte> frame, const wire::UdpFrame& read);
  void read_again() { known_.forget(); }  // all frames from now on
  // A place for a frame, even if those before it must be sent first; empty: there is none.
  [[nodiscard]] std::span<std::byte> place(FramePlaces& places, std::size_t bytes);
  // Frames to `to` are written there, and may be as long as the MTU says.
  void lead(Way& way, FramePlaces& places, std::size_t mtu, const wire::UdpWay& addresses);
  // The ways of which this is true are asked for again.
  template <class Outdated>
  void expire_if(Outdated outdated) {
    for (auto& [to, way] : ways_) {
      if (outdated(to, way)) way.until = Time::min();
    }
  }

  const Endpoint local_;
  std::vector<RxView> received_;
  Time now_ = recent_time();  // of the last batch

 private:
  // Frames are written where they leave from.
  class Outbox final : public Sink {
   public:
    Outbox(FrameDatagrams& owner, Sink* beside) : owner_(owner), beside_(beside) {}
    std::span<std::byte> datagram(const Endpoint& to, std::size_t bytes) override;
    void multicast(std::span<const std::byte> packet, std::span<const Endpoint> to) override;
    void flush() override;

   private:
    FrameDatagrams& owner_;
    Sink* const beside_;
    std::vector<std::byte> unsent_;
  };

  // One turn of all queues. Whether there was any frame.
  virtual bool take() = 0;
  // What was written.
  virtual void send() = 0;
  // Calls lead(), or leaves the way unknown; and sets when to ask again.
  virtual void ask_way(const Endpoint& to, Way& way) = 0;

  void hand_out(std::span<const std::byte> bytes, const Endpoint& source, bool congested) {
    ++counters_.packets_received;
    counters_.wire_bytes_received += wire::udp_head_bytes + bytes.size();
    add_view(received_, bytes, source, congested);
  }
  [[nodiscard]] const Way& way_to(const Endpoint& to);
  // The whole frame's place; empty: there is none.
  [[nodiscard]] std::span<std::byte> begin(const Way& way, std::size_t bytes);

  const std::optional<Endpoint> peer_;
  const bool ecn_;
  Outbox outbox_;
  std::unordered_map<Endpoint, Way, EndpointHash> ways_;
  // Of them those that were taken last, by the first bits of their hash. Null: none.
  static constexpr int recent_bits = 8;
  std::array<std::pair<Endpoint, Way*>, std::size_t{1} << recent_bits> recent_{};
  KnownHeads known_;
  Counters counters_;
};

}  // namespace netsum::transport
