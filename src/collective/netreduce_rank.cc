// NetReduce at the rank: rings of RoCEv2 connections through the aggregators, by netsum's own endpoint over UDP, or by RDMA
// hardware through a bump in the wire.
#include <algorithm>
#include <bit>
#include <utility>

#include "collective/rank_protocol.h"
#include "jobs/netreduce_job.h"
#include "protocol/netreduce/worker_lane.h"
#include "runtime/verbs_lane.h"
#include "seal/sealer.h"
#include "transport/addresses/addresses.h"
#include "transport/rdma/verbs_ring.h"
#include "transport/system/caches.h"
#include "transport/system/random.h"
#include "wire/netreduce.h"
#include "wire/roce.h"

namespace netsum::collective {
namespace {

// Messages of RDMA hardware in flight: where the port does not tell its rate, and at most. Each is locked memory, at all
// ranks.
constexpr std::uint32_t usual_verbs_window = 8, longest_verbs_window = 16;

// The largest path MTU of RoCE whose packets fit, as elements. `near`: the path is the loopback device's alone, where a
// longer one costs fewer packets.
[[nodiscard]] std::uint32_t roce_elements_for(std::uint32_t mtu, bool ipv6, bool near) {
  const std::size_t headers = (ipv6 ? 2 * wire::roce::ipv6_bytes : 2 * wire::roce::ipv4_bytes) + 2 * wire::roce::udp_bytes +
                              wire::roce::bth_bytes + wire::roce::reth_bytes + wire::roce::immediate_bytes +
                              wire::roce::icrc_bytes;
  std::uint32_t best = 64;
  while (best < wire::roce::max_mtu / 4 && headers + 2 * best * 4 <= mtu) best *= 2;
  if (!near) return best;
  const auto room = std::min<std::size_t>(mtu, transport::near_path().datagram_bytes) - headers;
  const auto longer = static_cast<std::uint32_t>(
      std::min<std::size_t>(room / wire::roce::max_mtu * wire::roce::max_mtu, wire::roce::max_tunnel_mtu));
  return std::max(best, longer / 4);
}

[[nodiscard]] netreduce::Member member_of(const transport::VerbsMember& m) {
  return {m.address, m.send_qp, m.send_psn, m.receive_qp, m.memory_address, m.memory_key};
}
[[nodiscard]] transport::VerbsMember verbs_member_of(const netreduce::Member& m) {
  return {m.address, m.send_qp, m.send_psn, m.receive_qp, m.memory_address, m.memory_key};
}

// Common to both endpoints.
class RingRank : public RankProtocol {
 public:
  RingRank(const Options& options, const NetReduce& settings) : RankProtocol(options), settings_(settings) {}

  [[nodiscard]] session::ProtocolRules rules() const override { return jobs::netreduce_rules(); }

  void check() const override {
    const auto bad = [](const std::string& what) { return Error(ErrorCode::bad_argument, what); };
    if (!settings_.verbs.empty() && options().survivors != 0)
      throw bad(
          "survivors and RDMA hardware (verbs) exclude each other: a bump in the wire sums over all ranks; use sockets");
    if (!settings_.verbs.empty() && options().loss != 0) throw bad("losses cannot be injected with RDMA hardware (verbs)");
    if (!settings_.verbs.empty() && options().packet_elements > wire::roce::max_mtu / 4) {
      throw bad("RDMA hardware (verbs) sends packets of at most " + std::to_string(wire::roce::max_mtu / 4) + " elements");
    }
    if (options().private_sums && options().private_sums->fixed_scale) {
      throw bad("a fixed scale requires SwitchML: private sums of NetReduce are int32");
    }
    if (settings_.message_packets > wire::netreduce::max_message_packets) {
      throw bad("a message has at most " + std::to_string(wire::netreduce::max_message_packets) + " packets");
    }
    if (settings_.first_psn.value_or(0) > wire::roce::psn_mask) throw bad("packet sequence numbers have 24 bits");
    const VerbsSettings& verbs = settings_.verbs_settings;
    if (verbs.port == 0) throw bad("the port of an RDMA device must be at least 1");
    if (verbs.ack_timeout == 0 || verbs.ack_timeout > 31) throw bad("the ack time-out of an RDMA device must be 1 to 31");
    if (verbs.retries > 7) throw bad("the retry count of an RDMA device must be 0 to 7");
    if (verbs.service_level > 7) throw bad("the service level of an RDMA device must be 0 to 7");
  }

  [[nodiscard]] std::string switch_address() const override { return settings_.switch_address; }
  // Then sums of floats, which are formed in the tree's order, may have other last bits.
  void pass_switch() override { settings_.switch_address.clear(); }

  [[nodiscard]] std::optional<std::uint32_t> predecessor() const override {
    return jobs::predecessor_of(options().rank, options().world_size);
  }

  [[nodiscard]] std::uint32_t packets_of_slot(const session::Admission& admission) const override {
    return jobs::ring_grant(admission).message_packets;
  }

  [[nodiscard]] RankTraits traits(const Reach& reach, const session::Admission& admission, std::uint32_t) const override {
    const std::size_t lanes = lanes_of(reach);
    const std::string& at = settings_.switch_address;
    RankTraits traits;
    traits.protocol = "NetReduce";
    traits.successor = jobs::successor_of(options().rank, options().world_size);
    traits.placement = "netreduce through " + counted_aggregators("accelerator") +
                       (at.empty() ? ")" : "), below them switch " + at) + ", " + std::to_string(lanes) +
                       (lanes == 1 ? " ring" : " rings") + " of RoCEv2 connections, path MTU " +
                       std::to_string(admission.packet_elements * 4) + ", window of " + std::to_string(admission.slots) +
                       " messages of " + std::to_string(jobs::ring_grant(admission).message_packets) +
                       " packets; each worker sends and receives |U|, and the accelerator's ports carry all of it at once";
    return traits;
  }

 protected:
  [[nodiscard]] const NetReduce& settings() const { return settings_; }
  [[nodiscard]] std::uint32_t message_packets(std::uint32_t packet_elements) const {
    return settings_.message_packets != 0 ? settings_.message_packets : jobs::longest_message(packet_elements);
  }
  // All but the endpoint's own fields.
  [[nodiscard]] netreduce::RoceHostConfig config_of(const session::Admission& admission, const Reach& reach,
                                                    const Site& site, const LaneNumber& number) const {
    netreduce::RoceHostConfig config =
        jobs::host_config(admission, jobs::ring_grant(admission), options().rank, number.of_site);
    config.worker.lane = number.of_rank;
    config.worker.lanes = number.lanes;
    if (reach.agreement)
      config.worker.pads = pads_of(*reach.agreement, jobs::public_keys(jobs::ring_grant(admission)), site);
    config.congestion_control = settings_.congestion_control;
    return config;
  }

 private:
  NetReduce settings_;
};

class UdpRingRank final : public RingRank {
 public:
  using RingRank::RingRank;

  [[nodiscard]] Reach reach(Time deadline) override {
    Reach reach;
    reach.hop = reach_switch(options(), switch_address(), deadline);
    const bool tree = !reach.hop.lanes.empty();
    for (const std::string& address : options().aggregators) {
      reach.sites.push_back(tree ? reach_behind(options(), address, reach.hop, deadline)
                                 : reach_site(options(), address, deadline, settings().congestion_control));
    }
    reach.packet_elements = options().packet_elements;
    if (reach.packet_elements != 0) return reach;
    // A slot holds a packet of every rank: the longest ones of many ranks would not fit into a switch's default slots.
    constexpr std::uint32_t of_all_ranks = 1 << 20, unit = 1024;
    const std::uint32_t each = of_all_ranks / std::max(1U, options().world_size);
    reach.packet_elements =
        std::min(wire::roce::max_tunnel_mtu / 4, each < unit ? std::bit_floor(each) : each / unit * unit);
    for (const Site& site : reach.sites) {
      const Lane& lane = site.lanes.front();
      const bool near = is_near_alone(lane.aggregator) && (!tree || is_near_alone(reach.hop.lanes.front()));
      const auto seal = static_cast<std::uint32_t>(near ? 0 : seal::longest_trailer);
      const std::uint32_t mtu = mtu_for_all(options(), reach.hop, site, deadline) - seal;
      // Switches use IPv6 among themselves.
      reach.packet_elements =
          std::min(reach.packet_elements, roce_elements_for(mtu, tree || !transport::is_ipv4(lane.aggregator), near));
    }
    return reach;
  }

  void measure_windows(Reach& reach, Time deadline) override {
    // N x MsgLen x pktSize >= RTT x PortRate (§3.2). Below the least a link idles while a host is descheduled; much more
    // fills short queues.
    constexpr std::uint32_t least_bytes = 32 << 10;
    const std::uint32_t packet_bytes = reach.packet_elements * 4;
    WindowRule rule;
    rule.least = 4;
    // Acknowledgements again double it: four messages, each a segment train.
    rule.most_near_bytes = 2 * transport::near_path().window_bytes;
    rule.wanted = [&](std::uint32_t packets) { return std::max(packets, least_bytes / packet_bytes); };
    measure_lanes(reach, rule, deadline);
  }

  void complete(session::JoinRequest& request, const Reach& reach, const Site& site) const override {
    request.near = site.near && is_near_alone(site.lanes.front().aggregator);
    jobs::RingAsk ask{settings().message_packets, {}, privacy_of(reach)};
    for (const Lane& lane : site.lanes) ask.members.push_back(member_at(lane.local()));
    request.own = jobs::own_part(ask);
  }

  [[nodiscard]] runtime::LaneSetup make_lane(const session::Admission& admission, const Reach& reach, Site& site,
                                             const LaneNumber& number) const override {
    Lane& lane = site.lanes[number.of_site];
    netreduce::RoceHostConfig config = config_of(admission, reach, site, number);
    config.accelerator = reach.hop.lanes.empty() ? lane.aggregator : reach.hop.lanes[number.of_site];
    return {lane.take_transport(), netreduce::make_worker_lane(config, jobs::ring_keys(admission, number.of_site))};
  }

 private:
  // A rank's queue pairs at a lane. Their numbers are derived from the socket's port, which is unique at its address.
  [[nodiscard]] netreduce::Member member_at(const Endpoint& local) const {
    netreduce::Member member;
    member.address = local.address;
    member.send_qp = 0x20000U | std::uint32_t{local.port} << 1;
    member.receive_qp = member.send_qp | 1;
    member.send_psn =
        settings().first_psn.value_or(static_cast<std::uint32_t>(transport::random_number() & wire::roce::psn_mask));
    member.memory_address = (transport::random_number() & 0xffffffff) << 16;
    member.memory_key = static_cast<std::uint32_t>(transport::random_number());
    return member;
  }
};

// One ring per aggregator, which is a bump in the wire of all ranks' hosts, or the root of several. The device sends and
// receives the packets.
class VerbsRingRank final : public RingRank {
 public:
  using RingRank::RingRank;

  [[nodiscard]] Reach reach(Time deadline) override {
    Reach reach;
    const transport::VerbsPort port = transport::verbs_port(settings().verbs, settings().verbs_settings.port);
    reach.packet_elements = options().packet_elements != 0 ? options().packet_elements : port.mtu / 4;
    for (const std::string& address : options().aggregators) {
      Reached reached = reach_control(options(), address, deadline);
      if (!reached.hello.in_wire) {
        throw Error(ErrorCode::refused, "aggregator " + address +
                                            " is not a bump in the wire, and packets of RDMA hardware pass only through a "
                                            "bump: start netsum bump there");
      }
      Site& site = reach.sites.emplace_back();
      site.address = address;
      site.client = std::move(reached.client);
      site.slots_measured = message_packets(reach.packet_elements) * wanted(port, reach.packet_elements, site, deadline);
      site.lanes.push_back({{}, VerbsPath(open_ring(most_messages(reach.packet_elements, site), reach.packet_elements))});
    }
    return reach;
  }

  void measure_windows(Reach&, Time) override {}  // reach() did: memory is registered before admission

  void complete(session::JoinRequest& request, const Reach& reach, const Site& site) const override {
    request.packet_elements_measured = false;
    jobs::RingAsk ask{message_packets(request.packet_elements), {}, privacy_of(reach)};
    ask.most_messages = most_messages(request.packet_elements, site);
    for (const Lane& lane : site.lanes) ask.members.push_back(member_of(ring_of(lane).own()));
    request.own = jobs::own_part(ask);
  }

  [[nodiscard]] runtime::LaneSetup make_lane(const session::Admission& admission, const Reach& reach, Site& site,
                                             const LaneNumber& number) const override {
    netreduce::RoceHostConfig config = config_of(admission, reach, site, number);
    config.worker.unacknowledged = config.buffers - config.worker.window;
    Lane& lane = site.lanes[number.of_site];
    transport::VerbsRing& ring = ring_of(lane);
    ring.connect(verbs_member_of(config.successor), verbs_member_of(config.predecessor));
    return {lane.take_transport(), runtime::make_worker_lane(config.worker, ring)};
  }

 private:
  [[nodiscard]] static transport::VerbsRing& ring_of(const Lane& lane) { return *std::get<VerbsPath>(lane.path).ring; }

  // The window that the path takes, in messages. A device sends no probes: the round trip is that of the control channel,
  // through both kernels, so the window is rather too long.
  [[nodiscard]] std::uint32_t wanted(const transport::VerbsPort& port, std::uint32_t packet_elements, const Site& site,
                                     Time deadline) const {
    if (options().slots != 0) return options().slots;
    if (port.bits_per_second == 0) return usual_verbs_window;
    const std::uint32_t packets =
        jobs::packets_in_flight(port.bits_per_second, round_trip_of(*site.client, deadline), packet_elements * 4);
    const std::uint32_t each = message_packets(packet_elements);
    return std::min(jobs::messages_of(packets, each, packet_elements).count, longest_verbs_window);
  }
  // With room for a rank whose path is longer: the job's window is the longest.
  [[nodiscard]] std::uint32_t most_messages(std::uint32_t packet_elements, const Site& site) const {
    if (options().slots != 0) return options().slots;
    return std::min(2 * site.slots_measured / message_packets(packet_elements), longest_verbs_window);
  }

  [[nodiscard]] std::unique_ptr<transport::VerbsRing> open_ring(std::uint32_t most, std::uint32_t packet_elements) const {
    netreduce::WorkerConfig shape;
    shape.window = most;
    shape.message_packets = message_packets(packet_elements);
    shape.mtu = packet_elements * 4;
    shape.unacknowledged = 2 * netreduce::roomy_window(shape.window, shape.message_packets) - shape.window;
    transport::VerbsOptions verbs;
    verbs.device = settings().verbs;
    verbs.settings = settings().verbs_settings;
    verbs.mtu = shape.mtu;
    verbs.messages = shape.unacknowledged;
    verbs.send_bytes = netreduce::Worker::send_bytes(shape);
    verbs.receive_bytes = netreduce::Worker::receive_bytes(shape);
    verbs.first_psn = settings().first_psn;
    return transport::open_verbs_ring(verbs);
  }
};

}  // namespace

std::unique_ptr<RankProtocol> make_rank(const Options& options, const NetReduce& settings) {
  if (settings.verbs.empty()) return std::make_unique<UdpRingRank>(options, settings);
  return std::make_unique<VerbsRingRank>(options, settings);
}

}  // namespace netsum::collective
