// The lanes of a simulated aggregator or switch: the product's services run in its host's turns.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "service/lane.h"
#include "sim/host.h"

namespace netsum::sim {

inline constexpr std::uint16_t aggregator_port = 7170;  // of lane 0, at aggregators and switches

// What went through a lane, as its host counts it.
struct LaneCounts {
  std::uint64_t received = 0;
  std::uint64_t results = 0;  // datagrams sent by reference; everything else is sent as separate datagrams
};

class HostLane final : public service::Lane {
 public:
  HostLane(Surroundings& surroundings, HostId host, const Endpoint& self)
      : sink_(surroundings, host, self), surroundings_(surroundings), host_(host), self_(self) {}

  void serve(std::unique_ptr<service::Format> format) override { formats_.add(std::move(format)); }
  void run(const std::function<void()>& command) override { command(); }
  [[nodiscard]] std::unique_ptr<service::Memory> allocate(std::size_t bytes, service::Pages pages) override;

  void on_packets(std::span<const RxView> packets, Time now);
  void lack_memory(bool lacks) { lacks_memory_ = lacks; }  // from now on it has none for anything new
  [[nodiscard]] const LaneCounts& counts() const { return counts_; }

 private:
  Host::HostSink sink_;
  Surroundings& surroundings_;
  const HostId host_;
  const Endpoint self_;
  service::Formats formats_;
  LaneCounts counts_;
  bool lacks_memory_ = false;
};

// All lanes of a host.
class HostLanes {
 public:
  HostLanes(Surroundings& surroundings, HostId host, std::uint32_t lanes);

  void turn(std::span<const Datagram> datagrams, Time now);
  [[nodiscard]] std::size_t size() const { return lanes_.size(); }
  [[nodiscard]] HostLane& operator[](std::size_t lane) { return *lanes_[lane]; }
  [[nodiscard]] service::Lanes for_services() const;
  [[nodiscard]] std::vector<Endpoint> endpoints() const;
  [[nodiscard]] std::vector<LaneCounts> counts() const;

 private:
  HostId host_;
  std::vector<std::unique_ptr<HostLane>> lanes_;
  std::vector<RxView> views_;  // of one lane, in a turn
};

// Another lane, whose formats are wrapped: what they are handed can be counted, or changed.
class WrappingLane final : public service::Lane {
 public:
  using Wrap = std::function<std::unique_ptr<service::Format>(std::unique_ptr<service::Format>)>;
  WrappingLane(service::Lane& inner, Wrap wrap) : inner_(inner), wrap_(std::move(wrap)) {}

  void serve(std::unique_ptr<service::Format> format) override { inner_.serve(wrap_(std::move(format))); }
  void run(const std::function<void()>& command) override { inner_.run(command); }
  [[nodiscard]] std::unique_ptr<service::Memory> allocate(std::size_t bytes, service::Pages pages) override {
    return inner_.allocate(bytes, pages);
  }

 private:
  service::Lane& inner_;
  const Wrap wrap_;
};

}  // namespace netsum::sim
