#include "sim/lane.h"

#include <cstdlib>
#include <memory>
#include <new>

namespace netsum::sim {
namespace {

constexpr std::size_t long_turn = 48;  // datagrams in one turn that show a long queue

class CountingSink final : public Sink {
 public:
  explicit CountingSink(Sink& inner) : inner_(inner) {}
  ~CountingSink() = default;
  std::span<std::byte> datagram(const Endpoint& to, std::size_t bytes) override { return inner_.datagram(to, bytes); }
  void multicast(std::span<const std::byte> packet, std::span<const Endpoint> to) override {
    results += to.size();
    inner_.multicast(packet, to);
  }
  void flush() override { inner_.flush(); }

  std::uint64_t results = 0;

 private:
  Sink& inner_;
};

class HeapMemory final : public service::Memory {
 public:
  explicit HeapMemory(std::size_t bytes)
      : room_(bytes + line), memory_(static_cast<std::byte*>(std::calloc(room_, 1)), &std::free), size_(bytes) {
    if (!memory_) throw std::bad_alloc();
  }
  [[nodiscard]] std::span<std::byte> bytes() override {
    void* begin = memory_.get();
    std::size_t room = room_;
    return {static_cast<std::byte*>(std::align(line, size_, begin, room)), size_};
  }

 private:
  static constexpr std::size_t line = 64;
  std::size_t room_;
  // Pages that nothing writes to, such as those for floats of ranks that send none, take no memory.
  std::unique_ptr<std::byte, void (*)(void*)> memory_;
  std::size_t size_;
};

}  // namespace

std::unique_ptr<service::Memory> HostLane::allocate(std::size_t bytes, service::Pages) {
  if (lacks_memory_) throw std::bad_alloc();
  return std::make_unique<HeapMemory>(bytes);
}

void HostLane::on_packets(std::span<const RxView> packets, Time now) {
  counts_.received += packets.size();
  CountingSink counting(sink_);
  formats_.on_packets(packets, now, counting, [&](std::uint64_t bytes) {
    return packets.size() >= long_turn || surroundings_.waiting(host_, self_) > bytes;
  });
  counts_.results += counting.results;
  sink_.flush();
}

HostLanes::HostLanes(Surroundings& surroundings, HostId host, std::uint32_t lanes) : host_(host) {
  for (std::uint32_t lane = 0; lane < lanes; ++lane) {
    const Endpoint self = endpoint_of(host, static_cast<std::uint16_t>(aggregator_port + lane));
    lanes_.push_back(std::make_unique<HostLane>(surroundings, host, self));
  }
}

void HostLanes::turn(std::span<const Datagram> datagrams, Time now) {
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    views_.clear();
    for (const Datagram& datagram : datagrams) {
      if (datagram.to.port == aggregator_port + lane) views_.push_back(view_of(datagram));
    }
    if (!views_.empty()) lanes_[lane]->on_packets(views_, now);
  }
}

service::Lanes HostLanes::for_services() const {
  service::Lanes lanes;
  for (const auto& lane : lanes_) lanes.push_back(lane.get());
  return lanes;
}

std::vector<Endpoint> HostLanes::endpoints() const {
  std::vector<Endpoint> endpoints;
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    endpoints.push_back(endpoint_of(host_, static_cast<std::uint16_t>(aggregator_port + lane)));
  }
  return endpoints;
}

std::vector<LaneCounts> HostLanes::counts() const {
  std::vector<LaneCounts> counts;
  for (const auto& lane : lanes_) counts.push_back(lane->counts());
  return counts;
}

}  // namespace netsum::sim
