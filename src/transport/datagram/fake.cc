#include "transport/datagram/fake.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "netsum/error.h"
#include "transport/addresses/addresses.h"

namespace netsum::transport {

class FakeNetwork::Port final : public Transport, private Sink {
 public:
  Port(FakeNetwork& network, const Endpoint& address) : network_(network), address_(address) {}
  ~Port() override { network_.ports_.erase(address_); }

  std::span<const RxView> receive() override {
    received_.clear();
    views_.clear();
    const std::size_t count = std::min(inbox_.size(), batch);
    for (std::size_t i = 0; i < count; ++i) {
      received_.push_back(std::move(inbox_.front()));
      inbox_.pop_front();
    }
    for (const Datagram& datagram : received_) {
      views_.push_back({datagram.bytes, datagram.source, datagram.congested});
      ++counters_.packets_received;
      counters_.wire_bytes_received += header_bytes(datagram.source) + datagram.bytes.size();
    }
    return views_;
  }
  Sink& sink() override { return *this; }
  int descriptor() const override { return -1; }
  Endpoint local() const override { return address_; }
  Counters counters() const override { return counters_; }
  std::uint64_t queued_bytes() const override {
    return std::accumulate(inbox_.begin(), inbox_.end(), std::uint64_t{0},
                           [](std::uint64_t sum, const Datagram& datagram) { return sum + datagram.bytes.size(); });
  }

 private:
  static constexpr std::size_t batch = 64;  // datagrams that one receive() returns

  struct Datagram {
    Endpoint source;
    std::vector<std::byte> bytes;
    bool congested = false;
  };
  // Written in place (`bytes`), or by reference until flush (`packet`, `to`), as callers of a real sink must expect.
  struct Outgoing {
    Endpoint single;
    std::vector<std::byte> bytes;
    std::span<const std::byte> packet;
    std::span<const Endpoint> to;
  };

  std::span<std::byte> datagram(const Endpoint& to, std::size_t bytes) override {
    return outbox_.emplace_back(Outgoing{to, std::vector<std::byte>(bytes), {}, {}}).bytes;
  }
  void multicast(std::span<const std::byte> packet, std::span<const Endpoint> to) override {
    if (!to.empty()) outbox_.push_back({{}, {}, packet, to});
  }
  void flush() override {
    for (const Outgoing& out : outbox_) {
      if (out.to.empty()) deliver(out.single, out.bytes);
      for (const Endpoint& to : out.to) deliver(to, out.packet);
    }
    outbox_.clear();
  }

  void deliver(const Endpoint& to, std::span<const std::byte> bytes) {
    ++counters_.packets_sent;
    counters_.wire_bytes_sent += header_bytes(to) + bytes.size();
    // No receiver: a wire takes the datagram all the same.
    if (const auto port = network_.ports_.find(to); port != network_.ports_.end()) {
      port->second->inbox_.push_back({address_, {bytes.begin(), bytes.end()}, network_.congested_.contains(to)});
    }
  }

  FakeNetwork& network_;
  Endpoint address_;
  Counters counters_;
  std::deque<Datagram> inbox_;
  std::deque<Outgoing> outbox_;
  std::vector<Datagram> received_;
  std::vector<RxView> views_;
};

FakeNetwork::FakeNetwork() = default;
FakeNetwork::~FakeNetwork() = default;

std::unique_ptr<Transport> FakeNetwork::attach(Endpoint address) {
  if (address.port == 0) {
    do {
      address.port = next_port_++;
    } while (address.port == 0 || ports_.contains(address));
  }
  auto port = std::make_unique<Port>(*this, address);
  if (!ports_.emplace(address, port.get()).second) {
    throw Error(ErrorCode::refused, "the address " + to_string(address) + " is taken in this network");
  }
  return port;
}

void FakeNetwork::congest(const Endpoint& to, bool congested) {
  if (congested) {
    congested_.insert(to);
  } else {
    congested_.erase(to);
  }
}

}  // namespace netsum::transport
