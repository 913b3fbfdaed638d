// Rings of foreign hosts in several racks (NetReduce §3.3), with a bump in the wire of each rack and a root above them: how
// they agree on the ring, whose connections each rack's bump learns from packets (learning.cc).
//
// A rack's bump tells the root when all of its ranks are there; the root tells all of them to begin once all racks' are.
// What they begin is a *life* of the ring, whose virtual connections have addresses of their own: nothing of one life is
// taken for another's. There are no timers: hosts repeat what is not answered, and with it the bumps what they say.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/counter_list.h"
#include "base/packet_io.h"
#include "base/time.h"
#include "protocol/netreduce/ring_config.h"
#include "protocol/netreduce/tunnel.h"
#include "wire/ring_agreement.h"

namespace netsum::netreduce {

// Whether the ring has ranks in more than one rack.
[[nodiscard]] bool spans_racks(const RingConfig& ring);
// The ring's part at a rack's bump; the ring itself, if all ranks are there; none: it has no rank there.
[[nodiscard]] std::optional<RingConfig> rack_ring(const RingConfig& ring, std::uint32_t rack, const Endpoint& root);
// At the root, whose lines are the racks with ranks. `bumps`: by rack. `life`: 0 to know how much memory it takes.
[[nodiscard]] TunnelRing root_ring(const RingConfig& ring, std::span<const Endpoint> bumps, std::uint64_t life);
// A digest of the settings of a ring that must be the same at all its bumps.
[[nodiscard]] std::uint32_t digest_of(const RingConfig& ring);

struct LearnedRacksCounters {
  std::uint64_t ready = 0, begin = 0, over = 0, ask = 0;  // received
  std::uint64_t lives = 0;                                // begun here, as root
  std::uint64_t malformed = 0;
  std::uint64_t strangers = 0;  // of no ring or rack here, or not from its bump
  std::uint64_t differing = 0;  // of a ring that its sender was given otherwise
};

class LearnedRacks {
 public:
  using Message = wire::netreduce::RingAgreement;

  explicit LearnedRacks(Tunnel& tunnel) : tunnel_(tunnel) {}

  struct Rack {
    std::uint32_t rack = 0;
    Endpoint root;
    std::uint64_t process = 0;  // random
  };
  // A ring that spans racks, whose rack_ring() the accelerator has. From now on the owner calls announce() when the
  // accelerator says that it is gathered.
  void add(const RingConfig& ring, const Rack& rack);
  struct Root {
    std::vector<Endpoint> bumps;  // by rack
    std::span<std::byte> memory;  // of its root_ring(), as Accelerator::make_ring()'s
    std::function<std::uint64_t()> random{};
  };
  void add(const RingConfig& ring, Root root);

  [[nodiscard]] static bool takes(std::span<const std::byte> datagram) {
    return !datagram.empty() && datagram.front() == std::byte{Message::format};
  }
  void on_datagram(const RxView& datagram, Time now, Sink& sink);
  void announce(std::uint64_t incarnation, Sink& sink, std::uint64_t challenge = 0) const;

  [[nodiscard]] const LearnedRacksCounters& counters() const { return counters_; }
  // The newest message of a ring that its sender was given otherwise.
  [[nodiscard]] const Message& differing() const { return differing_; }
  [[nodiscard]] bool is_root_of(std::uint64_t incarnation) const;
  // The racks that are not ready, for the root's life of the ring.
  [[nodiscard]] std::vector<std::uint32_t> awaited(std::uint64_t incarnation) const;
  void append_state(std::vector<std::byte>& out) const;

 private:
  struct Leaf {
    RingConfig ring;
    std::uint32_t digest = 0;
    Rack rack;
  };
  struct Said {
    std::optional<Message> ready{};
    bool spent = false;           // in a life that has ended
    std::uint64_t challenge = 0;  // of the question to a process that is not that of `ready`; 0: none was asked
  };
  struct Top {
    RingConfig ring;
    std::uint32_t digest = 0;
    Root root;
    std::vector<Said> racks;
    std::uint64_t life = 0;  // 0: none
  };

  void on_ready(Top& top, const Message& message, Sink& sink);
  void begin(Top& top, Sink& sink);
  void end(Top& top, std::uint32_t by, Sink& sink);
  void ask(const Top& top, Message ready, Sink& sink) const;
  static void tell_over(const Top& top, Message ready, Sink& sink);
  void tell_begin(const Top& top, std::uint32_t rack, Sink& sink) const;
  void on_told(const Leaf& leaf, const Message& message, Time now, Sink& sink);
  template <class Ring>
  [[nodiscard]] Ring* find(std::vector<Ring>& rings, const Message& message);

  Tunnel& tunnel_;
  std::vector<Leaf> leaves_;
  std::vector<Top> tops_;
  LearnedRacksCounters counters_;
  Message differing_;
};

}  // namespace netsum::netreduce
