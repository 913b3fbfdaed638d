// A network under a virtual clock that loses, repeats, delays, reorders and damages datagrams from one seed, and a sink that
// keeps the contract of Sink to the letter.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "base/packet_io.h"
#include "base/time.h"

namespace netsum::testing {

// splitmix64
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
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

class VirtualNetwork {
 public:
  VirtualNetwork(std::uint64_t seed, Faults faults) : random_(seed), faults_(faults) {}

  struct Delivery {
    Time at;
    std::uint64_t order;
    Endpoint from, to;
    std::vector<std::byte> bytes;
    bool operator<(const Delivery& other) const { return std::tie(other.at, other.order) < std::tie(at, order); }
  };

  void send(Time now, const Endpoint& from, const Endpoint& to, std::span<const std::byte> bytes) {
    ++sent;
    if (lose && lose(from, to, bytes)) return;
    if (random_.chance(faults_.loss)) return;
    const int copies = random_.chance(faults_.duplicate) ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
      Delivery delivery{now + delay(), order_++, from, to, {bytes.begin(), bytes.end()}};
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
  [[nodiscard]] bool empty() const { return queue_.empty(); }
  std::uint64_t sent = 0;
  std::function<bool(const Endpoint& from, const Endpoint& to, std::span<const std::byte>)> lose;  // those too

 private:
  Duration delay() {
    if (random_.chance(faults_.late)) return Duration(random_.below(static_cast<std::uint64_t>(faults_.latest.count())));
    const auto spread = static_cast<std::uint64_t>((faults_.most_delay - faults_.least_delay).count());
    return faults_.least_delay + Duration(spread == 0 ? 0 : random_.below(spread));
  }

  Random random_;
  Faults faults_;
  std::priority_queue<Delivery> queue_;
  std::uint64_t order_ = 0;
};

// Keeps the contract of Sink to the letter: references are read at flush() and not before.
class VirtualSink final : public Sink {
 public:
  VirtualSink(VirtualNetwork& network, Endpoint self) : network_(network), self_(self) {}
  ~VirtualSink() = default;

  std::span<std::byte> datagram(const Endpoint& to, std::size_t bytes) override {
    items_.push_back({std::vector<std::byte>(bytes), {}, {to}});
    return items_.back().owned;
  }
  void multicast(std::span<const std::byte> packet, std::span<const Endpoint> to) override {
    items_.push_back({{}, packet, {to.begin(), to.end()}});
  }
  void flush() override {
    for (const Item& item : items_) {
      for (const Endpoint& to : item.to) {
        network_.send(now, self_, to, item.owned.empty() ? item.referenced : std::span<const std::byte>(item.owned));
      }
    }
    items_.clear();
  }
  Time now{};

 private:
  struct Item {
    std::vector<std::byte> owned;
    std::span<const std::byte> referenced;
    std::vector<Endpoint> to;
  };
  VirtualNetwork& network_;
  Endpoint self_;
  std::vector<Item> items_;
};

[[nodiscard]] inline Endpoint endpoint_of(std::uint8_t host, std::uint16_t port) {
  Endpoint endpoint;
  endpoint.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, host};
  endpoint.port = port;
  return endpoint;
}

}  // namespace netsum::testing
