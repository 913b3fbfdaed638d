#include "sim/bump_wire.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/virtio_net.h"
#include "wire/ecn.h"
#include "wire/netreduce.h"

namespace netsum::sim {
namespace {

using netreduce::ConnectionChange;

// What a bump does with one frame.
class Watched final : public Sink {
 public:
  ~Watched() = default;
  std::span<std::byte> datagram(const Endpoint& to, std::size_t bytes) override {
    return made.emplace_back(to, Frame(bytes)).second;
  }
  void multicast(std::span<const std::byte> packet, std::span<const Endpoint> to) override {
    passed.emplace_back(packet, to);
  }
  void flush() override {}

  void send(Sink& sink) const {
    for (const auto& [to, frame] : made) std::copy(frame.begin(), frame.end(), sink.datagram(to, frame.size()).begin());
    for (const auto& [frame, to] : passed) sink.multicast(frame, to);
  }

  std::vector<std::pair<Endpoint, Frame>> made;
  std::vector<std::pair<std::span<const std::byte>, std::span<const Endpoint>>> passed;
};

// What a sum has of its sender's packet: everything but payload and checksums, and what routers may change. `crosses`: from
// rack to rack, where headers have no values; lengths follow from those.
std::uint64_t headers_of(std::span<const std::byte> frame, const RingPacket& packet, bool crosses) {
  constexpr std::size_t at_tos = 1, at_ip_length = 2, at_ip_checksum = 10, at_udp_length = wire::roce::ipv4_bytes + 4,
                        at_udp_checksum = wire::roce::ipv4_bytes + 6,
                        at_pad = wire::roce::ipv4_bytes + wire::roce::udp_bytes + 1;
  const auto ip = static_cast<std::size_t>(packet.ip.data() - frame.data());
  const auto payload = static_cast<std::size_t>(packet.packet.payload.data() - frame.data());
  Frame headers(frame.begin() + virtio_net_header_bytes, frame.begin() + static_cast<std::ptrdiff_t>(payload));
  std::byte* const at = headers.data() + ip - virtio_net_header_bytes;
  at[at_tos] = std::byte{};
  for (const std::size_t checksum : {at_ip_checksum, at_udp_checksum}) at[checksum] = at[checksum + 1] = std::byte{};
  if (crosses) {
    for (const std::size_t length : {at_ip_length, at_udp_length}) at[length] = at[length + 1] = std::byte{};
    at[at_pad] &= std::byte{0xcf};
  }
  return std::uint64_t{crc32c(headers)} << 32 | (crosses ? 0 : packet.ip.size());
}

// As the next device sees it.
Frame completed(std::span<const std::byte> bytes) {
  Frame frame(bytes.begin(), bytes.end());
  static_cast<void>(complete_checksum(frame));
  return frame;
}

}  // namespace

// It begins with an IPv6 header or an agreement's format, frames with a VirtioNetHeader.
bool is_datagram(std::span<const std::byte> bytes) {
  return netreduce::LearnedRacks::takes(bytes) || (!bytes.empty() && std::to_integer<int>(bytes[0]) >> 4 == 6);
}

void StateFile::apply(std::size_t changes) {
  for (std::size_t i = 0; i < changes; ++i) {
    const ConnectionChange& change = pending_[i];
    std::erase_if(known_, [&](const auto& known) { return known.connection == change.known.connection; });
    if (change.kind != ConnectionChange::Kind::forgotten) known_.insert(change.known);
  }
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(changes));
}

// Corresponds to BumpDaemon::Impl::restore and note in the binaries.
BumpWire::BumpWire(const netreduce::BridgeConfig& bridge, netreduce::LearningConfig learning, StateFile& file,
                   Duration commits_take, const ForeignFrames& foreign)
    : bump_(bridge), cable_(bridge), file_(file), commits_take_(commits_take), foreign_(foreign) {
  learning.record = true;
  accelerator().learn(std::move(learning));
  for (const netreduce::KnownConnection& known : file_.known()) {
    accelerator().know(known, {});
    recorded_.insert(known.connection);
    ++known_again_;
  }
  accelerator().on_change([this](const ConnectionChange& change) {
    file_.write(change);
    if (change.kind == ConnectionChange::Kind::forgotten) {
      recorded_.erase(change.known.connection);
      return;
    }
    ++(change.kind == ConnectionChange::Kind::restarted ? restarted_ : learned_);
    writing_.push_back({change.known.connection, now_ + commits_take_});
  });
}

// Corresponds to BumpDaemon::Impl::record.
void BumpWire::record(const netreduce::RingConfig& ring) {
  for (const netreduce::Line& line : ring.lines) {
    if (line.way == netreduce::Way::child) continue;
    file_.write({ConnectionChange::Kind::learned, {line.connection, {}}, ring.incarnation, 0});
    recorded_.insert(line.connection);
    if (line.way != netreduce::Way::through) crossing_.insert(line.connection);
  }
  file_.commit();
}

void BumpWire::commit(Time now, Sink& sink) {
  if (writing_.empty() || now < writing_.front().committed) return;
  file_.commit();  // of all
  for (const Written& each : writing_) {
    recorded_.insert(each.connection);
    Watched out;
    accelerator().recorded(each.connection, out);
    for (const auto& [to, frame] : out.made) judge_made(frame);
    out.send(sink);
  }
  writing_.clear();
}

void BumpWire::on_packets(std::span<const RxView> packets, bool, Time now, Sink& sink) {
  now_ = now;
  commit(now, sink);
  marked_.clear();
  for (const RxView& came : packets) {
    const RxView view = as_ports_mark(came);
    ++given_;
    if (is_datagram(view.bytes)) {
      ++datagrams_;
      if (!bypassed_) take(view, now, sink);
      continue;
    }
    if (bypassed_) {
      ++past_;
      const auto frame = view.bytes.subspan(std::min(view.bytes.size(), virtio_net_header_bytes));
      if (const auto to = cable_.route(frame, view.source, now); !to.empty()) sink.multicast(view.bytes, to);
      continue;
    }
    carry(view, now, sink);
  }
}

RxView BumpWire::as_ports_mark(const RxView& view) {
  const auto packet = view.congested ? ring_packet(view.bytes) : std::nullopt;
  if (!packet) return view;
  Frame& frame = marked_.emplace_back(view.bytes.begin(), view.bytes.end());
  wire::mark_congestion(std::span(frame).subspan(static_cast<std::size_t>(packet->ip.data() - view.bytes.data())));
  return {frame, view.source};
}

void BumpWire::take(const RxView& datagram, Time now, Sink& sink) {
  Watched out;
  bump_.on_datagrams({&datagram, 1}, now, out);
  accelerator().check();
  for (const auto& [to, frame] : out.made) {
    // Damaged so that it asks for nothing: it goes on as it is, and its receiver does not know it.
    const bool passes = std::equal(frame.begin(), frame.end(), datagram.bytes.begin(), datagram.bytes.end());
    if (!passes) judge_made(frame);
  }
  out.send(sink);
}

void BumpWire::carry(const RxView& view, Time now, Sink& sink) {
  const Frame before(view.bytes.begin(), view.bytes.end());
  const Frame seen = completed(view.bytes);
  if (const auto packet = ring_packet(seen); packet && packet->shape.request)
    headers_.insert(headers_of(seen, *packet, crosses(packet->connection())));
  const netreduce::BridgeCounters& bridge = bump_.bridge().counters();
  const std::uint64_t routed = bridge.forwarded + bridge.flooded;

  Watched out;
  bump_.on_packets({&view, 1}, now, out);
  accelerator().check();
  if (!std::equal(before.begin(), before.end(), view.bytes.begin())) throw Violation("a bump changes what it is given");
  if (out.passed.size() > 1 || (!out.passed.empty() && !out.made.empty())) throw Violation("a frame leaves more than once");
  for (const auto& [frame, to] : out.passed) judge_passed(view, frame, to);
  for (const auto& [to, frame] : out.made) {
    // A NAK may go to its sender from here, in two copies.
    const auto packet = ring_packet(frame);
    const bool nak = packet && packet->packet.bth.opcode == wire::roce::Opcode::rc_acknowledge;
    if (nak && to != view.source && frame.size() <= seen.size() && std::equal(frame.begin(), frame.end(), seen.begin()))
      continue;
    judge_made(frame);
  }
  if (foreign_.has(view.bytes) && bridge.forwarded + bridge.flooded != routed) {
    if (out.passed.empty()) throw Violation("a frame that is no gradient does not pass");
    ++foreign_passed_;
  }
  out.send(sink);
}

void BumpWire::judge_passed(const RxView& view, std::span<const std::byte> passed, std::span<const Endpoint> to) {
  if (!std::equal(passed.begin(), passed.end(), view.bytes.begin(), view.bytes.end()))
    throw Violation("a frame passes, and is not what it was");
  for (const Endpoint& port : to) {
    if (port == view.source || std::count(to.begin(), to.end(), port) != 1)
      throw Violation("a frame leaves where it came from, or twice at one port");
  }
  const Frame seen = completed(passed);
  const auto packet = ring_packet(seen);
  if (packet && packet->shape.request && recorded_.contains(packet->connection()))
    throw Violation("values of a recorded connection pass without having been summed");
}

void BumpWire::judge_made(std::span<const std::byte> frame) const {
  if (netreduce::LearnedRacks::takes(frame)) return;
  if (is_datagram(frame)) {
    if (!wire::roce::icrc_valid(frame)) throw Violation("a sum leaves for another bump with a wrong ICRC");
    return;
  }
  const auto packet = ring_packet(frame);
  if (!packet || !packet->shape.request) throw Violation("a bump makes a frame that is no ring's");
  if (!wire::roce::icrc_valid(packet->ip)) throw Violation("a sum leaves with a wrong ICRC");
  const bool crosses = this->crosses(packet->connection());
  const std::size_t without_values =
      packet->shape.first ? wire::netreduce::netsum_layout.header_bytes : wire::netreduce::seal_bytes;
  if (wire::netreduce::read_seal(packet->packet.payload) == 0 &&
      !(crosses && packet->packet.payload.size() == without_values))
    throw Violation("values leave as a sum without a seal");
  if (!headers_.contains(headers_of(frame, *packet, crosses))) throw Violation("a sum leaves with headers that nobody sent");
  if (!recorded_.contains(packet->connection())) throw Violation("a sum leaves before its connection is on the disk");
}

void BumpWire::check(std::uint64_t received) const {
  accelerator().check();
  const netreduce::BridgeCounters& bridge = bump_.bridge().counters();
  const netreduce::BumpCounters& bump = bump_.counters();
  if (given_ != received) throw Violation("a bump was not given all frames that came");
  if (bridge.forwarded + bridge.flooded + bridge.filtered + bridge.malformed + bridge.no_such_port !=
      given_ - past_ - datagrams_)
    throw Violation("the bridge's counters do not add up to what it was given");
  std::uint64_t sorted =
      bump.others + bump.trains + bump.roce + bump.dropped_trains + bump.dropped_unreadable + bump.dropped_virtual;
  for (const std::uint64_t unreadable : bump.unreadable) sorted += unreadable;
  if (sorted != bridge.forwarded + bridge.flooded)
    throw Violation("a bump's counters do not add up to what its bridge forwards");
}

void BumpWire::count_events(Tally& tally) const {
  const netreduce::BridgeCounters& bridge = bump_.bridge().counters();
  const netreduce::BumpCounters& bump = bump_.counters();
  const netreduce::AcceleratorCounters& sums = accelerator().counters();
  std::uint64_t unreadable = 0, misfits = 0;
  for (const std::uint64_t count : bump.unreadable) unreadable += count;
  for (const std::uint64_t count : sums.dropped_misfit) misfits += count;
  const std::pair<const char*, std::uint64_t> events[] = {
      {"bridge_forwarded", bridge.forwarded},
      {"bridge_flooded", bridge.flooded},
      {"bridge_malformed", bridge.malformed},
      {"bump_others", bump.others},
      {"bump_trains", bump.trains},
      {"bump_unreadable", unreadable},
      {"bump_dropped_unreadable", bump.dropped_unreadable},
      {"bump_bypassed", past_},
      {"bump_datagrams", datagrams_},
      {"bump_foreign_frames_passed", foreign_passed_},
      {"bump_connections_learned", learned_},
      {"bump_connections_restarted", restarted_},
      {"bump_connections_known_again", known_again_},
      {"bump_ring_lives", bump_.learned_racks().counters().lives},
      {"bump_ring_lives_over", bump_.learned_racks().counters().over},
      {"accelerator_passed", sums.passed},
      {"accelerator_dropped_known", sums.dropped_known},
      {"accelerator_dropped_damaged", sums.dropped_damaged},
      {"accelerator_dropped_restart", sums.dropped_restart},
      {"accelerator_dropped_misfit", misfits},
  };
  for (const auto& [name, count] : events) tally.events[name] += count;
}

}  // namespace netsum::sim
