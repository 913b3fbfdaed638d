// Seals hop by hop, for protocols whose nodes rewrite packets on their way: what comes from a neighbour is opened, what goes
// to one is sealed, and the protocol in between knows of neither. Each pair of neighbours has a key for each direction,
// which nobody else has. One object serves all jobs of a lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/endpoint.h"
#include "base/packet_io.h"
#include "netsum/types.h"
#include "seal/replay_window.h"
#include "seal/sealer.h"

namespace netsum::seal {

struct Neighbour {
  Endpoint endpoint;        // without a port: not known yet
  PacketKey send, receive;  // of this hop, this lane and these directions alone; none: it is on this host
};

class Hops {
 public:
  // What in a packet says whose it is, and how many bytes at its beginning are never encrypted: at least those.
  struct Layout {
    std::optional<std::uint64_t> (*mark)(std::span<const std::byte> packet) = nullptr;  // none: no packet of the format
    std::size_t clear = 0;
  };
  explicit Hops(Layout layout) : layout_(layout) {}

  // A job whose packets are sealed, and have one of these marks; or its neighbours' new endpoints: a neighbour with the same
  // keys keeps its counters. Jobs may have equal marks: the neighbour tells them apart, so that none takes another's seals
  // away. A job that was removed may be set again: counters of neighbours that are new go on behind all that were issued
  // here.
  void set(std::uint64_t job, PacketSecurity security, std::span<const Neighbour> neighbours,
           std::span<const std::uint64_t> marks);
  void remove(std::uint64_t job);
  [[nodiscard]] bool empty() const { return jobs_.empty(); }

  // The packets that may be believed, without their seals, and those of jobs that have none. Valid until the next call.
  [[nodiscard]] std::span<const RxView> open(std::span<const RxView> packets);
  [[nodiscard]] std::uint64_t unbelieved() const { return unbelieved_; }  // so far

 private:
  friend class SealingSink;
  struct Link {
    Neighbour neighbour;
    std::optional<Sealer> sealer;
    std::optional<Opener> opener;
    ReplayWindow window;
  };
  struct Job {
    PacketSecurity security = PacketSecurity::none;
    std::vector<std::uint64_t> marks;
    std::vector<std::unique_ptr<Link>> links;
    std::unordered_map<Endpoint, Link*, EndpointHash> at;
  };

  void forget_marks(const Job& job);
  void count_issued(const Job& job);
  [[nodiscard]] Job* job_of(std::span<const std::byte> packet, const Endpoint& neighbour);
  [[nodiscard]] std::size_t clear_of(std::size_t bytes, const Opener& opener) const;  // of a packet with its seal
  [[nodiscard]] static Link* link_of(Job& job, const Endpoint& endpoint);

  const Layout layout_;
  std::unordered_map<std::uint64_t, Job> jobs_;
  std::unordered_multimap<std::uint64_t, Job*> by_mark_;
  std::vector<RxView> opened_;
  std::vector<std::vector<std::byte>> rooms_;  // of decrypted packets, in this batch
  std::uint64_t unbelieved_ = 0;
  std::uint64_t issued_ = 0;  // the greatest counter of links that are gone: their keys may come again
};

// Between a protocol and its network, for the packets of one batch: what goes to a neighbour leaves sealed, what goes
// elsewhere as it is.
class SealingSink final : public Sink {
 public:
  SealingSink(Sink& network, Hops& hops) : network_(network), hops_(hops) {}
  ~SealingSink() { finish(); }
  SealingSink(const SealingSink&) = delete;
  SealingSink& operator=(const SealingSink&) = delete;

  std::span<std::byte> datagram(const Endpoint& to, std::size_t bytes) override;
  void multicast(std::span<const std::byte> packet, std::span<const Endpoint> to) override;
  void flush() override;

 private:
  void finish();  // the datagram that the protocol has filled in by now
  void send(std::span<const std::byte> packet, const Endpoint& to, Hops::Job* job);

  Sink& network_;
  Hops& hops_;
  Endpoint to_;
  std::vector<std::byte> pending_;
  bool is_pending_ = false;
};

// Calls take(packets, sink) with those that may be believed, and a sink that seals. Without a job that has keys it stays out
// of the way. Returns how many were not believed.
template <class Take>
std::uint64_t through(Hops& hops, std::span<const RxView> packets, Sink& sink, const Take& take) {
  if (hops.empty()) {
    take(packets, sink);
    return 0;
  }
  const std::uint64_t before = hops.unbelieved();
  const std::span<const RxView> opened = hops.open(packets);
  SealingSink sealing(sink, hops);
  take(opened, sealing);
  return hops.unbelieved() - before;
}

}  // namespace netsum::seal
