#include "sim/network.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string_view>
#include <utility>

namespace netsum::sim {
namespace {

constexpr std::uint64_t network_label = 7;
constexpr std::size_t header_bytes = 42;   // Ethernet, IPv4, UDP
constexpr std::uint64_t kinds_apart = 22;  // spacing of the draws of one packet's faults; changing it changes traces
static_assert(static_cast<std::size_t>(Fault::forge) < kinds_apart, "of links' faults");

double unit(std::uint64_t draw) {
  return static_cast<double>(draw >> 11) * 0x1p-53;
}

}  // namespace

Network::Network(const Scenario& scenario, std::size_t hosts, Tally& tally)
    : plan_(scenario.links),
      kinds_(scenario.settings.limits.kinds),
      most_faults_(scenario.settings.limits.faults),
      seed_(derive(scenario.seed, network_label)),
      hosts_(hosts),
      up_(hosts),
      down_(hosts),
      tally_(tally) {}

Network::Link& Network::link(HostId from, HostId to) {
  const std::uint64_t key = from * hosts_ + to;
  const auto [at, first] = links_.try_emplace(key);
  if (first) at->second.seed = derive(seed_, key);
  return at->second;
}

std::uint64_t Network::draw(const Link& link, Fault fault, std::uint64_t purpose) const {
  return mix(link.seed ^ mix(link.packets * kinds_apart * 4 + static_cast<std::uint64_t>(fault) * 4 + purpose));
}

bool Network::chance(const Link& link, Fault fault, double probability) {
  return probability > 0 && kinds_.contains(fault) && faults_ < most_faults_ && unit(draw(link, fault, 0)) < probability;
}

void Network::injected(Fault fault, bool live) {
  ++faults_;
  tally_.count(fault);
  if (live) ++tally_.live_faults;
  fate_ = to_string(fault);
}

// A port's queue: false if its tail is dropped.
bool Network::pass(Port& port, Time now, std::size_t bytes, bool live, bool& marked, Duration& delay) {
  if (plan_.bytes_per_second == 0) return true;
  const auto nanoseconds_of = [&](std::uint64_t n) { return Duration(n * 1'000'000'000 / plan_.bytes_per_second); };
  const Duration waiting = std::max(port.free - now, Duration::zero());
  if (waiting > nanoseconds_of(plan_.queue_bytes) && kinds_.contains(Fault::queue) && faults_ < most_faults_) {
    injected(Fault::queue, live);
    return false;
  }
  if (waiting > nanoseconds_of(plan_.mark_bytes) && kinds_.contains(Fault::mark)) {
    tally_.count(Fault::mark);
    marked = true;
  }
  port.free = now + waiting + nanoseconds_of(bytes + header_bytes);
  delay += port.free - now;
  return true;
}

void Network::arrive(Link& link, Time at, Datagram datagram, bool live) {
  if (plan_.in_order) at = std::max(at, link.last_arrival);
  if (at < link.last_arrival) {
    tally_.count(Fault::reorder);
    if (live) ++tally_.live_faults;
  }
  link.last_arrival = std::max(link.last_arrival, at);
  arrivals_.push_back({at, std::move(datagram)});
}

// A second link does not make good what the first has done: past a bump that did not know it, a gradient would come to its
// receiver as it left its sender.
void Network::damage(std::vector<std::byte>& bytes, std::uint64_t bit) {
  const auto hash = [&] {
    return std::hash<std::string_view>()({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  };
  const auto flip = [&](std::uint64_t which) { bytes[which / 8] ^= static_cast<std::byte>(1U << (which % 8)); };
  whole_.try_emplace(hash(), true);
  flip(bit);
  if (const auto former = whole_.find(hash()); former != whole_.end() && former->second)
    flip((bit + 1) % (bytes.size() * 8));
  whole_.try_emplace(hash(), false);
}

std::span<Network::Arrival> Network::send(Time now, HostId from, HostId to, const Endpoint& source,
                                          const Endpoint& destination, std::span<const std::byte> bytes, bool live) {
  arrivals_.clear();
  fate_ = "";
  ++tally_.packets;
  Link& link = this->link(from, to);
  ++link.packets;
  Datagram datagram{source, destination, {}, false};
  Duration delay{};
  if (!pass(up_[from], now, bytes.size(), live, datagram.marked, delay)) return arrivals_;
  if (now < link.cut_until) {
    injected(link.cut_until == never ? Fault::dead_link : Fault::partition, live);
    return arrivals_;
  }
  const bool lossy = link.lost_every != 0 &&
                     (link.lossy_port == 0 || source.port == link.lossy_port || destination.port == link.lossy_port);
  if (lossy && ++link.since_lost == link.lost_every) {
    link.since_lost = 0;
    injected(link.lost_as, live);
    return arrivals_;
  }
  if (now >= link.burst_until && chance(link, Fault::burst, plan_.burst)) {
    const double length = static_cast<double>(plan_.burst_length.count()) * -std::log1p(-unit(draw(link, Fault::burst, 1)));
    link.burst_until = now + Duration(static_cast<std::int64_t>(length) + 1);
  }
  if (now < link.burst_until && faults_ < most_faults_) {
    injected(Fault::burst, live);
    return arrivals_;
  }
  if (chance(link, Fault::loss, plan_.loss)) {
    injected(Fault::loss, live);
    return arrivals_;
  }
  if (!pass(down_[to], now, bytes.size(), live, datagram.marked, delay)) return arrivals_;

  const auto spread = static_cast<double>((plan_.most_delay - plan_.least_delay).count());
  const auto jitter = [&](std::uint64_t purpose) {
    const bool jitters = kinds_.contains(Fault::reorder);
    return plan_.least_delay + (jitters
                                    ? Duration(static_cast<std::int64_t>(spread * unit(draw(link, Fault::reorder, purpose))))
                                    : Duration::zero());
  };
  const bool twice = chance(link, Fault::duplicate, plan_.duplicate);
  if (twice) injected(Fault::duplicate, live);
  for (int copy = 0; copy < (twice ? 2 : 1); ++copy) {
    Datagram one = datagram;
    one.bytes.assign(bytes.begin(), bytes.end());
    Duration extra = jitter(static_cast<std::uint64_t>(copy));
    // A heavy tail: each power of two of the delay is equally likely, up to the latest. The second copy is late more often
    // than the first, like a packet that took a detour.
    if (chance(link, Fault::late, copy == 0 ? plan_.late : 4 * plan_.late)) {
      injected(Fault::late, live);
      const double powers = std::log2(std::max(2.0, static_cast<double>(plan_.latest / std::chrono::microseconds(100))));
      extra += Duration(static_cast<std::int64_t>(
          1e5 * std::exp2(powers * unit(draw(link, Fault::late, 1 + static_cast<std::uint64_t>(copy))))));
    }
    if (copy == 0 && chance(link, Fault::corrupt, plan_.corrupt) && !one.bytes.empty()) {
      injected(Fault::corrupt, live);
      damage(one.bytes, draw(link, Fault::corrupt, 1) % (one.bytes.size() * 8));
    }
    if (copy == 0 && chance(link, Fault::truncate, plan_.truncate) && !one.bytes.empty()) {
      injected(Fault::truncate, live);
      one.bytes.resize(draw(link, Fault::truncate, 1) % one.bytes.size());
    }
    arrive(link, now + delay + extra, std::move(one), live);
  }
  return arrivals_;
}

void Network::cut(HostId from, HostId to, Time until) {
  Link& link = this->link(from, to);
  link.cut_until = std::max(link.cut_until, until);
}

void Network::lose_every(std::uint32_t every, HostId from, HostId to, std::uint16_t port, Fault kind) {
  Link& link = this->link(from, to);
  link.lost_every = every;
  link.lossy_port = port;
  link.lost_as = kind;
}

Network::ControlFate Network::control(Time now, HostId from, HostId to) {
  Link& link = this->link(from, to);
  const std::uint64_t call = ++link.control_calls;
  const auto roll = [&](std::uint64_t purpose) { return unit(mix(link.seed ^ mix(~(call * 4 + purpose)))); };
  ControlFate fate;
  fate.delay = plan_.least_delay + std::chrono::microseconds(static_cast<std::int64_t>(200 * roll(0)));
  if (now < link.cut_until) {
    fate.lost = true;
    tally_.count(link.cut_until == never ? Fault::dead_link : Fault::partition);
  } else if (kinds_.contains(Fault::control_loss) && roll(1) < plan_.control_loss) {
    fate.lost = true;
    tally_.count(Fault::control_loss);
  }
  if (kinds_.contains(Fault::control_repeat) && roll(2) < plan_.control_repeat) {
    fate.repeated = true;
    tally_.count(Fault::control_repeat);
  }
  return fate;
}

}  // namespace netsum::sim
