// A network under a virtual clock that loses, repeats, delays, reorders and damages datagrams from one seed, and the nodes
// on it. Nodes may have links with a rate and a queue.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "base/mix.h"
#include "base/packet_io.h"
#include "base/time.h"
#include "support/recording_sink.h"

namespace netsum::testing {

// splitmix64
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15ULL); }
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  bool chance(double probability) { return static_cast<double>(next() >> 11) * 0x1p-53 < probability; }

 private:
  std::uint64_t state_;
};

struct Faults {
  double loss = 0, duplicate = 0, corrupt = 0;
  Duration least_delay = std::chrono::microseconds(10), most_delay = std::chrono::microseconds(10);
  double late = 0;  // probability of a delay of up to `latest`
  Duration latest = std::chrono::seconds(1);
};

// What is between a node and the network, in each direction.
struct Link {
  double bytes_per_second = 25e6;  // 200 Mbit/s
  double queue = 150e3;            // bytes; what does not fit is lost
  double mark = 60e3;              // bytes; what meets a longer queue is marked
  Duration delay{};                // of the wire behind the queue
};

class VirtualNode;

class VirtualNetwork {
 public:
  VirtualNetwork(std::uint64_t seed, Faults faults) : random_(seed), faults_(faults) {}
  VirtualNetwork(const VirtualNetwork&) = delete;
  VirtualNetwork& operator=(const VirtualNetwork&) = delete;

  struct Delivery {
    Time at;
    std::uint64_t order;
    Endpoint from, to;
    std::vector<std::byte> bytes;
    bool congested = false;
    bool operator<(const Delivery& other) const { return std::tie(other.at, other.order) < std::tie(at, order); }
  };

  void send(const Endpoint& from, const Endpoint& to, std::span<const std::byte> bytes) {
    ++sent;
    Time leaves = now;
    bool congested = false;
    for (Port* const port : {find(up_, from), find(down_, to)}) {
      if (port != nullptr && !pass(*port, bytes.size(), leaves, congested)) return;
    }
    if (lose && lose(from, to, bytes)) return;
    if (random_.chance(faults_.loss)) return;
    const int copies = random_.chance(faults_.duplicate) ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
      Delivery delivery{leaves + delay(), order_++, from, to, {bytes.begin(), bytes.end()}, congested};
      if (random_.chance(faults_.corrupt)) {
        delivery.bytes[random_.below(delivery.bytes.size())] ^= static_cast<std::byte>(1 + random_.below(255));
      }
      queue_.push(std::move(delivery));
    }
  }

  [[nodiscard]] Time next() const { return queue_.empty() ? never : queue_.top().at; }
  Delivery take() {
    Delivery delivery = queue_.top();
    queue_.pop();
    return delivery;
  }

  // The node has this link from now on; without one, it has all the rate that there is.
  void shape(const Endpoint& node, const Link& link) { shape(std::vector<Endpoint>{node}, link); }
  // These nodes share it.
  void shape(const std::vector<Endpoint>& nodes, const Link& link) {
    up_.push_back({nodes, link, {}});
    down_.push_back({nodes, link, {}});
  }

  // A datagram arrives, or a node's time is up, whatever is next; false if that is not before `end` (time then stands at
  // `end`). Where no node is, nobody misses what arrives.
  bool step(Time end);

  Time now{};
  std::uint64_t sent = 0;
  std::function<bool(const Endpoint& from, const Endpoint& to, std::span<const std::byte>)> lose;  // those too

 private:
  friend class VirtualNode;

  struct Port {
    std::vector<Endpoint> nodes;
    Link link;
    Time free;  // when all that is queued has left
  };
  static constexpr double headers = 42;  // Ethernet, IPv4 and UDP

  static Port* find(std::vector<Port>& ports, const Endpoint& node) {
    const auto found = std::find_if(ports.begin(), ports.end(), [&](const Port& port) {
      return std::find(port.nodes.begin(), port.nodes.end(), node) != port.nodes.end();
    });
    return found == ports.end() ? nullptr : &*found;
  }

  // False: the queue is full.
  static bool pass(Port& port, std::size_t bytes, Time& at, bool& congested) {
    const double length = static_cast<double>(bytes) + headers;
    const double ahead = std::chrono::duration<double>(std::max(port.free, at) - at).count() * port.link.bytes_per_second;
    if (ahead + length > port.link.queue) return false;
    congested |= ahead > port.link.mark;
    port.free = std::max(port.free, at) +
                std::chrono::duration_cast<Duration>(std::chrono::duration<double>(length / port.link.bytes_per_second));
    at = port.free + port.link.delay;
    return true;
  }

  Duration delay() {
    if (random_.chance(faults_.late)) return Duration(random_.below(static_cast<std::uint64_t>(faults_.latest.count())));
    const auto spread = static_cast<std::uint64_t>((faults_.most_delay - faults_.least_delay).count());
    return faults_.least_delay + Duration(spread == 0 ? 0 : random_.below(spread));
  }

  Random random_;
  Faults faults_;
  std::vector<Port> up_, down_;
  std::priority_queue<Delivery> queue_;
  std::uint64_t order_ = 0;
  std::vector<VirtualNode*> nodes_;
};

// Puts on the network what is sent, without the first bytes of each datagram if those are for others.
class VirtualSink final : public Sink {
 public:
  VirtualSink(VirtualNetwork& network, const Endpoint& self, std::size_t skipped = 0)
      : network_(network), self_(self), skipped_(skipped) {}
  ~VirtualSink() = default;

  std::span<std::byte> datagram(const Endpoint& to, std::size_t bytes) override { return recorded_.datagram(to, bytes); }
  void multicast(std::span<const std::byte> packet, std::span<const Endpoint> to) override {
    recorded_.multicast(packet, to);
  }
  void flush() override {
    for (const Datagram& each : recorded_.sent()) network_.send(self_, each.to, std::span(each.bytes).subspan(skipped_));
    recorded_.clear();
  }

 private:
  VirtualNetwork& network_;
  Endpoint self_;
  std::size_t skipped_;
  RecordingSink recorded_;
};

// Whatever has an address on the network, as long as it lives. What it sends leaves when it has received, or its timer has
// fired.
class VirtualNode {
 public:
  VirtualNode(VirtualNetwork& network, const Endpoint& self, std::size_t skipped = 0)
      : sink(network, self, skipped), network_(network), self_(self) {
    network.nodes_.push_back(this);
  }
  VirtualNode(const VirtualNode&) = delete;
  VirtualNode& operator=(const VirtualNode&) = delete;
  virtual ~VirtualNode() { std::erase(network_.nodes_, this); }

  virtual void receive(const RxView& packet) = 0;
  [[nodiscard]] virtual Time next_timeout() const { return never; }
  virtual void on_timer() {}

  [[nodiscard]] Time now() const { return network_.now; }
  [[nodiscard]] const Endpoint& self() const { return self_; }

  VirtualSink sink;

 private:
  VirtualNetwork& network_;
  Endpoint self_;
};

inline bool VirtualNetwork::step(Time end) {
  Time soonest = next();
  VirtualNode* timed = nullptr;
  for (VirtualNode* const node : nodes_) {
    const Time timeout = node->next_timeout();
    if (timeout >= soonest) continue;
    soonest = timeout;
    timed = node;
  }
  if (soonest > end || soonest == never) {
    now = end;
    return false;
  }
  now = std::max(now, soonest);
  if (timed != nullptr) {
    timed->on_timer();
    timed->sink.flush();
    return true;
  }
  const Delivery delivery = take();
  const auto at = std::find_if(nodes_.begin(), nodes_.end(), [&](const VirtualNode* n) { return n->self() == delivery.to; });
  if (at != nodes_.end()) {
    (*at)->receive({delivery.bytes, delivery.from, delivery.congested});
    (*at)->sink.flush();
  }
  return true;
}

[[nodiscard]] inline Endpoint endpoint_of(std::uint8_t host, std::uint16_t port) {
  Endpoint endpoint;
  endpoint.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, host};
  endpoint.port = port;
  return endpoint;
}

}  // namespace netsum::testing
