// ATP at the rank: packets go to the switch that the rank is at, and through it to the parameter servers.
#include <algorithm>
#include <bit>
#include <utility>

#include "collective/rank_protocol.h"
#include "jobs/atp_job.h"
#include "protocol/atp/worker_lane.h"
#include "seal/sealer.h"
#include "transport/addresses/addresses.h"
#include "transport/system/caches.h"
#include "wire/atp.h"

namespace netsum::collective {
namespace {

// Defaults: congestion control's largest window, if buffers hold it; and the packets that fill a slot of a switch with
// default settings, if the MTU allows longer ones. Of jobs on one host slots and packets are longer.
constexpr std::uint32_t default_window = 256;
constexpr std::uint32_t longest_default_packet = 2048;

// Windows on this host are no shorter than this many packets, or bytes of longer ones: else threads wake for too little at a
// time.
constexpr std::uint32_t least_near_packets = 16, least_near_bytes = 128 << 10;

[[nodiscard]] std::uint32_t near_window(std::uint32_t packet_bytes) {
  const std::uint32_t least = std::min(least_near_packets, std::bit_ceil(least_near_bytes / packet_bytes));
  return std::clamp(std::bit_floor(transport::near_path().window_bytes / packet_bytes), least, default_window);
}

class AtpRank final : public RankProtocol {
 public:
  AtpRank(const Options& options, const Atp& settings) : RankProtocol(options), settings_(settings) {}

  [[nodiscard]] session::ProtocolRules rules() const override { return jobs::atp_rules(); }
  void check() const override {
    if (!options().private_sums) return;
    throw Error(ErrorCode::bad_argument,
                "private sums require SwitchML or NetReduce: ATP's aggregators look at values, for sums that overflow");
  }

  [[nodiscard]] std::string switch_address() const override { return settings_.switch_address; }
  void pass_switch() override { settings_.switch_address.clear(); }

  [[nodiscard]] Reach reach(Time deadline) override {
    Reach reach;
    reach.hop = reach_switch(options(), settings_.switch_address, deadline);
    for (const std::string& address : options().aggregators) {
      reach.sites.push_back(reach_behind(options(), address, reach.hop, deadline));
    }
    reach.packet_elements = options().packet_elements;
    const std::uint32_t slot = slot_elements(reach);
    if (reach.packet_elements > slot) {
      throw Error(ErrorCode::refused,
                  "switch " + settings_.switch_address + " has slots of " + std::to_string(slot) +
                      " elements, and packets of " + std::to_string(reach.packet_elements) +
                      " elements do not fit: start it with a larger --pool-elements, or ask for fewer elements per packet");
    }
    stays_here_ =
        std::all_of(reach.sites.begin(), reach.sites.end(), [&](const Site& site) { return stays_here(reach, site); });
    if (reach.packet_elements == 0) reach.packet_elements = most_elements(reach, deadline);
    return reach;
  }

  void complete(session::JoinRequest& request, const Reach& reach, const Site&) const override {
    request.near = stays_here_ && !settings_.local_checksums;
    const auto pool = jobs::pool_in(reach.hop.profiles);
    request.own = jobs::own_part(jobs::AtpAsk{pool ? pool->slots : 0});
  }

  void measure_windows(Reach& reach, Time) override {
    for (Site& site : reach.sites) {
      site.slots_measured = stays_here(reach, site) ? near_window(reach.packet_elements * 4) : default_window;
    }
  }

  [[nodiscard]] runtime::LaneSetup make_lane(const session::Admission& admission, const Reach& reach, Site& site,
                                             const LaneNumber& number) const override {
    Lane& lane = site.lanes[number.of_site];
    const std::vector<Endpoint>& hop = reach.hop.lanes;
    atp::WorkerConfig config =
        jobs::worker_config(admission, options().rank, lane.aggregator, hop.empty() ? lane.aggregator : hop[number.of_site]);
    config.lane = number.of_rank;
    config.lanes = number.lanes;
    config.congestion_control = settings_.congestion_control;
    const bool chip = jobs::atp_grant(admission).rules == atp::Rules::chip;
    const bool sealed = admission.security != PacketSecurity::none;  // then a checksum within says nothing more
    config.checksums = !sealed && !chip &&
                       (settings_.local_checksums || !stays_here(reach, site) || has_switches_between(admission.placement));
    return {lane.take_transport(),
            atp::make_worker_lane(config, jobs::lane_keys(admission, number.of_site, config.server, config.first_hop))};
  }

  [[nodiscard]] RankTraits traits(const Reach& reach, const session::Admission& admission,
                                  std::uint32_t slots) const override {
    const std::size_t lanes = lanes_of(reach);
    const std::string& at = settings_.switch_address;
    RankTraits traits;
    traits.protocol = "ATP";
    traits.placement = "atp over " + counted_aggregators("parameter server") +
                       (at.empty() ? "), no switch" : "), switch " + at) + ", " + std::to_string(lanes) +
                       (lanes == 1 ? " lane" : " lanes") + ", window of " + std::to_string(slots) + " chunks, " +
                       std::to_string(admission.packet_elements) + " elements per packet" +
                       (jobs::atp_grant(admission).rules == atp::Rules::chip ? ", chip profile" : "") +
                       "; each worker sends and receives |U|, and " +
                       (at.empty() ? "the servers receive " + std::to_string(options().world_size) + "|U|"
                                   : "chunks that find a slot at the switch reach the servers once, the others " +
                                         std::to_string(options().world_size) + " times");
    return traits;
  }

 private:
  // Elements of a slot of the rank's switch, into which a packet must fit.
  [[nodiscard]] static std::uint32_t slot_elements(const Reach& reach) {
    const auto pool = jobs::pool_in(reach.hop.profiles);
    return pool ? pool->elements : UINT32_MAX;
  }

  // Between this rank's switch and the server.
  [[nodiscard]] bool has_switches_between(const session::Placement& placement) const {
    const std::uint32_t at = placement.switch_of_rank[options().rank];
    return at != session::Placement::at_server && placement.parent_of_switch[at] != session::Placement::at_server;
  }

  // Whether its packets to and from the server leave neither this host's memory nor its loopback device.
  [[nodiscard]] static bool stays_here(const Reach& reach, const Site& site) {
    return is_near_alone(site.lanes.front().aggregator) &&
           (reach.hop.lanes.empty() || is_near_alone(reach.hop.lanes.front()));
  }

  // That the paths carry.
  [[nodiscard]] std::uint32_t most_elements(const Reach& reach, Time deadline) const {
    std::uint32_t room = 65535;
    for (const Site& site : reach.sites) {
      const Endpoint& next = reach.hop.lanes.empty() ? site.lanes.front().aggregator : reach.hop.lanes.front();
      room = std::min(room, mtu_for_all(options(), reach.hop, site, deadline) - (transport::is_ipv4(next) ? 28U : 48U));
    }
    const bool near =
        std::all_of(reach.sites.begin(), reach.sites.end(), [&](const Site& site) { return stays_here(reach, site); });
    if (near) room = std::min(room, transport::near_path().datagram_bytes);
    if (!near) room -= static_cast<std::uint32_t>(seal::longest_trailer);
    const auto fill = static_cast<std::uint32_t>((room - wire::atp::longest_header_bytes(options().world_size)) / 4);
    return std::min({fill, slot_elements(reach), near ? wire::atp::max_packet_elements : longest_default_packet});
  }

  Atp settings_;
  bool stays_here_ = false;  // on all paths
};

}  // namespace

std::unique_ptr<RankProtocol> make_rank(const Options& options, const Atp& settings) {
  return std::make_unique<AtpRank>(options, settings);
}

}  // namespace netsum::collective
