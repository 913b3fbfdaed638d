// SwitchML at the rank: all ranks send to every aggregator, by UDP or in shared memory.
#include <algorithm>
#include <optional>
#include <utility>

#include "collective/rank_protocol.h"
#include "jobs/chip_profile.h"
#include "jobs/switchml_job.h"
#include "jobs/switchml_terms.h"
#include "protocol/shared/layout.h"
#include "protocol/switchml/windows.h"
#include "protocol/switchml/worker_lane.h"
#include "seal/sealer.h"
#include "transport/addresses/addresses.h"
#include "transport/system/caches.h"
#include "wire/epochs.h"
#include "wire/switchml.h"
#include "wire/switchml_chip.h"

namespace netsum::collective {
namespace {

// Whether a network carries the groups' packets shows only once there are some: the aggregator then sees which ranks receive
// them.
void join_groups(const Options& options, Site& site) {
  if (site.groups.size() != site.lanes.size()) return;
  // Between two ranks on one host a group saves as much as one more socket costs.
  if (options.world_size <= 2 && is_near_alone(site.lanes.front().aggregator)) return;
  try {
    for (std::size_t i = 0; i < site.groups.size(); ++i) {
      Lane& lane = site.lanes[i];
      lane.group = std::make_unique<transport::GroupSocket>(site.groups[i], lane.local(), lane.aggregator,
                                                            transport::socket_buffer_bytes);
    }
    site.listens = true;
  } catch (const Error& error) {
    for (Lane& lane : site.lanes) lane.group.reset();
    if (options.log) {
      options.log(std::string("warning: ") + error.what() + ", so rank " + std::to_string(options.rank) +
                  " receives its results by unicast");
    }
  }
}

// `more`: elements behind a packet's values.
[[nodiscard]] std::size_t longest_datagram(std::uint32_t packet_elements, std::uint32_t more) {
  wire::switchml::ChunkHeader header;
  header.elements = static_cast<std::uint16_t>(packet_elements + more);
  header.exponents = static_cast<std::uint8_t>(wire::switchml::blocks_of_packet(packet_elements));
  header.masks = true;
  return wire::switchml::chunk_packet_bytes(header);
}

// `seal`: bytes behind each packet.
[[nodiscard]] std::uint32_t packet_elements_for(std::uint32_t mtu, bool ipv6, std::size_t seal, std::uint32_t more) {
  const std::size_t room = mtu - (ipv6 ? 48 : 28) - seal;
  std::uint32_t best = wire::switchml::packet_step;
  for (std::uint32_t elements = best; elements <= wire::switchml::max_packet_elements;
       elements += wire::switchml::packet_step) {
    if (wire::switchml::possible_packet(elements) && longest_datagram(elements, more) <= room) best = elements;
  }
  return best;
}

[[nodiscard]] std::uint32_t packet_elements_at_chip(const jobs::ChipProfile& chip, std::uint32_t mtu, bool ipv6) {
  const std::size_t room = mtu - (ipv6 ? 48 : 28);
  const auto& lengths = chip.packet_elements;
  std::uint32_t best = *std::min_element(lengths.begin(), lengths.end());
  for (const std::uint32_t elements : lengths) {
    if (wire::chip::packet_bytes(elements) <= room) best = std::max(best, elements);
  }
  return best;
}

class SwitchMlRank final : public RankProtocol {
 public:
  SwitchMlRank(const Options& options, const SwitchMl& settings) : RankProtocol(options), settings_(settings) {}

  // From reach() on those of the data plane that is there.
  [[nodiscard]] session::ProtocolRules rules() const override {
    return chip_ ? jobs::switchml_chip_rules(*chip_) : jobs::switchml_rules();
  }

  void check() const override {
    const auto bad = [](const std::string& what) { return Error(ErrorCode::bad_argument, what); };
    if (settings_.shared_memory == SharedMemory::required &&
        (options().recovery.count() > 0 || options().loss > 0 || settings_.wire != WireFormat::native)) {
      throw bad("shared memory cannot be required together with recovery, injected losses or a wire format");
    }
    if (settings_.nearest && !rounds_blocks(settings_.wire))
      throw bad("rounding to nearest requires the wire format int8 or int4");
    if (options().private_sums && settings_.wire != WireFormat::native && settings_.wire != WireFormat::float32) {
      throw bad(std::string("private sums require the wire format native or float32, not ") + to_string(settings_.wire) +
                ": aggregators add its values as floats");
    }
    if (options().private_sums && settings_.shared_memory == SharedMemory::required) {
      throw bad("private sums travel in packets: shared memory cannot be required");
    }
    if (settings_.spin && (!options().busy_poll || settings_.shared_memory == SharedMemory::off)) {
      throw bad("spin requires busy_poll, and shared memory must not be off");
    }
    if (settings_.shared_memory == SharedMemory::required && !settings_.switch_address.empty()) {
      throw bad("shared memory cannot be required at a switch below the aggregators");
    }
  }

  [[nodiscard]] std::string switch_address() const override { return settings_.switch_address; }
  void pass_switch() override { settings_.switch_address.clear(); }

  [[nodiscard]] Reach reach(Time deadline) override {
    Reach reach;
    reach.hop = reach_switch(options(), switch_address(), deadline);
    const bool tree = !reach.hop.lanes.empty();
    for (const std::string& address : options().aggregators) {
      Site& site = reach.sites.emplace_back(tree ? reach_behind(options(), address, reach.hop, deadline)
                                                 : reach_site(options(), address, deadline));
      if (settings_.multicast && !tree) join_groups(options(), site);
    }
    chip_ = profile_of(reach);
    reach_memory(reach.sites.front(), deadline);
    reach.packet_elements = options().packet_elements;
    if (reach.packet_elements != 0) return reach;
    std::uint32_t mtu = 65535;
    bool ipv6 = false;
    std::size_t seal = 0;  // all ranks' packets are as long: a rank may be sealed where this one is not
    for (const Site& site : reach.sites) {
      const Endpoint& next = next_of(reach, site, 0);
      mtu = std::min(mtu, mtu_for_all(options(), reach.hop, site, deadline));
      if (is_near_alone(next)) {
        mtu = std::min(mtu, transport::near_path().datagram_bytes);
      } else {
        seal = seal::longest_trailer;
      }
      ipv6 |= tree || !transport::is_ipv4(next);  // switches use IPv6 among themselves
    }
    const std::uint32_t more = options().private_sums ? wire::switchml::check_words : 0;
    reach.packet_elements = chip_ ? packet_elements_at_chip(*chip_, mtu, ipv6) : packet_elements_for(mtu, ipv6, seal, more);
    return reach;
  }

  void measure_windows(Reach& reach, Time deadline) override {
    WindowRule rule;
    rule.least = 4;  // with fewer, losses are detected only by time-out (stream/overtaken.h)
    // Few ranks leave room in the cache for twice as much: with two packets, one end sleeps whenever the other is kept from
    // running.
    rule.most_near_bytes = (options().world_size <= 4 ? 2 : 1) * transport::near_path().window_bytes;
    // A chunk may wait in the queues of both directions, as two windows fill them.
    rule.wanted = [](std::uint32_t packets) { return switchml::windows * packets; };
    rule.through_switch = true;
    measure_lanes(reach, rule, deadline);
  }

  void complete(session::JoinRequest& request, const Reach& reach, const Site& site) const override {
    request.near = site.near && is_near_alone(site.lanes.front().aggregator) && !settings_.local_checksums;
    jobs::SwitchMlAsk ask;
    ask.privacy = privacy_of(reach);
    request.own = jobs::own_part(ask);
  }

  [[nodiscard]] runtime::LaneSetup make_lane(const session::Admission& admission, const Reach& reach, Site& site,
                                             const LaneNumber& number) const override {
    Lane& lane = site.lanes[number.of_site];
    switchml::WorkerConfig config;
    config.job_epoch = admission.job_epoch;
    config.rank = options().rank;
    config.world_size = options().world_size;
    config.rank_epoch = admission.rank_epoch;
    config.folded_epochs = wire::fold_epochs(admission.rank_epochs);
    config.packet_elements = admission.packet_elements;
    config.slots = admission.slots;
    config.lane = number.of_rank;
    config.lanes = number.lanes;
    config.aggregator = next_of(reach, site, number.of_site);
    config.in_tree = !reach.hop.lanes.empty();
    config.checksums = settings_.local_checksums || !site.near;
    jobs::take_keys(admission, number.of_site, config);
    if (reach.agreement) config.pads = pads_of(*reach.agreement, jobs::public_keys(admission), site);
    config.fixed_exponent = fixed_exponent();
    config.chip = chip_.has_value();
    if (config.chip) config.member = jobs::member_of(admission.placement, options().rank);
    return {lane.take_transport(), switchml::make_worker_lane(config)};
  }

  [[nodiscard]] RankTraits traits(const Reach& reach, const session::Admission& admission,
                                  std::uint32_t slots) const override {
    RankTraits traits;
    traits.protocol = "SwitchML at a chip";
    traits.wire = settings_.wire;
    traits.nearest = settings_.nearest;
    traits.spin = settings_.spin;
    traits.every_reduction = !chip_;
    traits.every_collective = !chip_ && !admission.local;
    traits.in_place = admission.local;
    if (admission.local) {
      traits.placement = "switchml in shared memory: all " + std::to_string(options().world_size) +
                         " ranks are on the host of " + options().aggregators.front() +
                         ", and sum there themselves; no packets";
      return traits;
    }
    if (options().log && settings_.shared_memory != SharedMemory::off && !reach.sites.front().local_socket.empty()) {
      options().log("no shared memory: " + admission.why_not_local);
    }
    if (!settings_.switch_address.empty()) {
      traits.placement = in_tree(lanes_of(reach), admission, slots);
      return traits;
    }
    traits.placement = describe(lanes_of(reach), admission.packet_elements, slots);
    const bool by_group = std::all_of(reach.sites.begin(), reach.sites.end(), [](const Site& site) { return site.listens; });
    if (by_group && options().world_size > 1) traits.placement += "; results by IP multicast";
    return traits;
  }

 private:
  // Only the first aggregator serves shared memory; the others only hold memberships.
  void reach_memory(Site& site, Time deadline) const {
    site.needs_local = settings_.shared_memory == SharedMemory::required;
    if (options().private_sums) {
      site.why_not_local = "its sums are private";
    } else if (settings_.shared_memory == SharedMemory::off) {
      site.why_not_local = "this rank has it off";
    } else if (!settings_.switch_address.empty()) {
      site.why_not_local = "this rank is at a switch below the aggregators";
    } else if (options().world_size > shared::max_world_size) {
      site.why_not_local = "shared memory serves at most " + std::to_string(shared::max_world_size) + " ranks";
    } else if (options().recovery.count() > 0) {
      site.why_not_local = "a job with recovery uses the network";
    } else if (options().loss > 0) {
      site.why_not_local = "injected losses need packets";
    } else if (chip_) {
      site.why_not_local = "its aggregator has the chip profile";  // and with it a chip's rounding
    } else if (settings_.wire != WireFormat::native) {
      site.why_not_local = "this rank has set a wire format";  // and with it that format's rounding
    } else {
      const LocalRanks::Config config{site.local_socket, options().rank, options().world_size, options().threads};
      site.local = LocalRanks::reach(config, deadline, site.why_not_local);
    }
  }

  // Where the rank's packets go on a lane.
  [[nodiscard]] static const Endpoint& next_of(const Reach& reach, const Site& site, std::size_t lane) {
    return reach.hop.lanes.empty() ? site.lanes[lane].aggregator : reach.hop.lanes[lane];
  }

  [[nodiscard]] std::string in_tree(std::size_t lanes, const session::Admission& admission, std::uint32_t slots) const {
    return "switchml over " + counted_aggregators("root") + "), below them " +
           std::to_string(admission.placement.switches.size()) + " switches, this rank at " + settings_.switch_address +
           ", " + std::to_string(lanes) + " lanes of " + std::to_string(slots) + " slots, " +
           std::to_string(admission.packet_elements) + " elements per packet" + (chip_ ? ", chip profile" : "") +
           "; each worker and each switch sends |U| upstream" +
           (chip_ ? "" : " (a switch about twice that, of 16 bits or fewer)") + ", however many ranks are below it";
  }

  [[nodiscard]] std::string describe(std::size_t lanes, std::uint32_t packet_elements, std::uint32_t slots) const {
    const std::size_t aggregators = options().aggregators.size();
    const std::uint32_t ranks = options().world_size;
    const std::string text = "switchml over " + counted_aggregators("aggregator") + "), " + std::to_string(lanes) +
                             " lanes of " + std::to_string(slots) + " slots, " + std::to_string(packet_elements) +
                             " elements per packet" + (chip_ ? ", chip profile; " : "; ");
    if (aggregators == 1) {
      return text + "each worker sends and receives |U|; expect a gain over a ring where the aggregator's port carries " +
             std::to_string(ranks) + "|U| at once (a switch, a fat port, the workers' own host)";
    }
    if (aggregators >= ranks) {
      return text +
             "with a shard on every worker's host a host's port carries as many bytes as in a ring, and an all-reduce "
             "waits one round trip instead of " +
             std::to_string(2 * (ranks - 1));
    }
    return text + "each aggregator carries " + std::to_string(ranks) + "/" + std::to_string(aggregators) +
           " |U|; expect a gain over a ring where its port is as fast as that many workers'";
  }

  // What all aggregators and the rank's switch state, which is the same. Throws Error: refused, this rank cannot keep to it.
  [[nodiscard]] std::optional<jobs::ChipProfile> profile_of(const Reach& reach) const {
    const Site& first = reach.sites.front();
    const std::optional<jobs::ChipProfile> chip = jobs::chip_in(first.profiles);
    const auto demand_same = [&](const std::vector<session::Profile>& profiles, const std::string& address) {
      if (jobs::chip_in(profiles) == chip) return;
      throw Error(ErrorCode::refused,
                  first.address + " and " + address + " do not have the same profile: start both with the same --profile");
    };
    for (const Site& site : reach.sites) demand_same(site.profiles, site.address);
    if (!reach.hop.lanes.empty()) demand_same(reach.hop.profiles, reach.hop.address);
    if (!chip) return std::nullopt;
    std::string why = jobs::why_not_at_chip(*chip, options().packet_elements, settings_.wire);
    if (why.empty() && fixed_exponent()) why = "exchanges exponents: private sums with a fixed scale are not possible there";
    if (!why.empty())
      throw Error(ErrorCode::refused, "aggregator " + first.address + " is a chip (--profile chip): it " + why);
    return chip;
  }

  SwitchMl settings_;
  std::optional<jobs::ChipProfile> chip_;  // of the aggregators, once they are reached
};

}  // namespace

std::unique_ptr<RankProtocol> make_rank(const Options& options, const SwitchMl& settings) {
  return std::make_unique<SwitchMlRank>(options, settings);
}

}  // namespace netsum::collective
