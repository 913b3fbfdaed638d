#include "collective/join.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <future>
#include <set>
#include <utility>

#include "collective/rank_protocol.h"
#include "collective/reach.h"
#include "kernels/kernels.h"
#include "runtime/cpus.h"
#include "runtime/thread.h"
#include "seal/private_sums.h"
#include "session/check.h"
#include "session/words.h"
#include "transport/addresses/interfaces.h"
#include "transport/datagram/lossy.h"
#include "transport/system/numa.h"
#include "transport/system/random.h"

namespace netsum::collective {
namespace {

using runtime::now;
using std::chrono::milliseconds;

// For an aggregator to answer, if the others may do without it: as a job begins, while daemons may be starting, too; and
// later.
constexpr milliseconds reach_first{2000}, reach_again{1000};
// For all that an attempt to join again asks of the network. With survivors, a rank that takes longer counts as dead.
constexpr milliseconds paths_again{5000}, paths_of_survivors{1000};

std::unique_ptr<transport::Transport> with_loss(const Options& options, std::unique_ptr<transport::Transport> transport,
                                                std::uint32_t lane) {
  if (options.loss == 0) return transport;
  const std::uint64_t stream = std::uint64_t{options.rank} * 4096 + lane;
  return std::make_unique<transport::Lossy>(std::move(transport), options.loss, options.loss_seed, stream);
}

[[nodiscard]] std::optional<std::uint32_t> node_of(const Lane& lane) {
  const auto interface = transport::interface_of(lane.local());
  return interface ? transport::node_of(interface->name) : std::nullopt;
}

// Gives each warning of small buffers once.
void warn_of_buffers(const Options& options, const Reach& reach) {
  if (!options.log) return;
  std::set<std::string> warnings;
  for (const Site& site : reach.sites) {
    for (const Lane& lane : site.lanes) {
      if (const std::string warning = lane.buffer_warning(); !warning.empty()) warnings.insert(warning);
    }
  }
  for (const std::string& warning : warnings) options.log("warning: " + warning);
}

[[nodiscard]] PacketSecurity least_security(const Options& options) {
  return options.require_keys ? std::max(options.packet_security, PacketSecurity::tag) : options.packet_security;
}

// As far as this host's routes tell.
[[nodiscard]] bool sends_to_other_hosts(const Reach& reach, const Site& site) {
  const std::vector<Endpoint>& hop = reach.hop.lanes;
  return !std::all_of(hop.begin(), hop.end(), transport::is_of_this_host) ||
         !std::all_of(site.lanes.begin(), site.lanes.end(),
                      [](const Lane& lane) { return transport::is_of_this_host(lane.aggregator); });
}

// Whether packets to other hosts are protected as the rank demands. Throws Error: refused.
void check_security(const Options& options, const Reach& reach) {
  const PacketSecurity least = least_security(options);
  for (const Site& site : reach.sites) {
    if (!sends_to_other_hosts(reach, site)) continue;
    if (least != PacketSecurity::none && options.tls_ca.empty()) {
      throw Error(ErrorCode::refused,
                  "rank " + std::to_string(options.rank) +
                      " requires packet keys, and keys require TLS: pass --tls-ca (NETSUM_TLS_CA), and start aggregator " +
                      site.address + " with --tls-cert and --tls-key");
    }
    if (least == PacketSecurity::none && site.security == PacketSecurity::none && options.log) {
      options.log("warning: packets between rank " + std::to_string(options.rank) + " and aggregator " + site.address +
                  " have no keys" + (options.tls_ca.empty() ? ", because there is no TLS" : "") +
                  ": hosts in between can change the sums");
      return;  // one is enough
    }
  }
}

void make_lanes(const Options& options, const RankProtocol& protocol, Reach& reach,
                const std::vector<session::Admission>& admissions, Joined& joined) {
  LaneNumber number;
  number.lanes = static_cast<std::uint32_t>(lanes_of(reach));
  for (std::size_t i = 0; i < reach.sites.size(); ++i) {
    Site& site = reach.sites[i];
    const session::Admission& admission = admissions[i];
    for (number.of_site = 0; number.of_site < site.lanes.size(); ++number.of_site, ++number.of_rank) {
      runtime::LaneSetup lane = protocol.make_lane(admission, reach, site, number);
      lane.transport = with_loss(options, std::move(lane.transport), number.of_rank);
      joined.lanes.push_back(std::move(lane));
      joined.aggregator_of_lane.push_back(i);
      joined.slots += admission.slots * protocol.packets_of_slot(admission);
    }
  }
}

// `starting`: or will be there until then.
[[nodiscard]] bool reachable(const Options& options, const std::string& address, Time deadline, bool starting) {
  try {
    control::Client client({address, options.token, options.tls_ca});
    static_cast<void>(client.hello(remaining(deadline), {}, options.stop, starting));
    return true;
  } catch (const Error&) {
    return false;
  }
}

[[nodiscard]] std::vector<std::string> reachable_ones(const Options& options, Time deadline, bool starting) {
  std::vector<std::future<bool>> answers;
  for (const std::string& address : options.aggregators) {
    answers.push_back(
        std::async(std::launch::async, [&, deadline] { return reachable(options, address, deadline, starting); }));
  }
  std::vector<std::string> found;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (answers[i].get()) found.push_back(options.aggregators[i]);
  }
  return found;
}

std::unique_ptr<Attempt> attempt_with(Options options, const MakeRank& make, Time deadline) {
  auto attempt = std::make_unique<Attempt>();
  attempt->options = std::move(options);
  attempt->deadline = deadline;
  attempt->protocol = make(attempt->options);
  return attempt;
}

[[nodiscard]] seal::Agreement drawn_agreement(const PrivateSums& privacy) {
  std::array<std::byte, std::tuple_size_v<seal::PublicKey>> drawn{};
  transport::random_bytes(drawn);
  seal::Agreement agreement(privacy.key, drawn);
  seal::wipe(drawn);
  return agreement;
}

[[nodiscard]] bool is_in(const std::vector<std::string>& addresses, const std::string& address) {
  return std::find(addresses.begin(), addresses.end(), address) != addresses.end();
}

void reach_all(Attempt& attempt, Time deadline) {
  attempt.reach = attempt.protocol->reach(deadline);
  for (Site& site : attempt.reach.sites) site.standby = is_in(attempt.options.standbys, site.address);
  if (attempt.options.private_sums) attempt.reach.agreement = drawn_agreement(*attempt.options.private_sums);
  claim_queues(attempt.options, attempt.reach);
  warn_of_buffers(attempt.options, attempt.reach);
  check_security(attempt.options, attempt.reach);
  if (attempt.options.slots == 0) attempt.protocol->measure_windows(attempt.reach, deadline);
  prove_endpoints(attempt.reach, deadline);
}

}  // namespace

void check(const Options& options, const RankProtocol& protocol) {
  const auto bad = [](const std::string& what) { return Error(ErrorCode::bad_argument, what); };
  if (options.aggregators.empty()) throw bad("no aggregator is named");
  // The message of a join takes no other text, and its library does not say so.
  if (const std::string error = session::check_job_name(options.job); !error.empty()) throw bad(error);
  const session::ProtocolRules rules = protocol.rules();
  if (const std::string error =
          session::first_of({session::between("world size", options.world_size, 1, rules.max_world_size),
                             session::check_rank(options.rank, options.world_size)});
      !error.empty()) {
    throw bad(error);
  }
  if (options.packet_elements != 0) {
    if (const std::string error = rules.check_packet(options.packet_elements); !error.empty()) throw bad(error);
  }
  if (const std::string error = session::check_slots(options.slots); !error.empty()) throw bad(error);
  if (const std::string own = protocol.switch_address(); is_in(options.aggregators, own)) {
    throw bad(own +
              " is this rank's switch, and also one of the aggregators above it: name different daemons, or no switch");
  }
  const std::vector<std::uint32_t> allowed = runtime::allowed_cpus();
  for (const std::uint32_t cpu : options.cpus) {
    if (std::find(allowed.begin(), allowed.end(), cpu) != allowed.end()) continue;
    throw bad("CPU " + std::to_string(cpu) +
              " of cpus is outside of this process's affinity mask (taskset -cp PID shows it)");
  }
  if (options.private_sums && options.private_sums->key.size() < seal::least_secret_bytes) {
    throw bad("private sums require a job key of at least " + std::to_string(seal::least_secret_bytes) +
              " bytes, and it has " + std::to_string(options.private_sums->key.size()) +
              ": `openssl rand -hex 32` makes one, for the file of NETSUM_JOB_KEY_FILE or --job-key-file");
  }
  constexpr int least_scale = -kernels::exponent_bias, most_scale = kernels::largest_block_exponent - kernels::exponent_bias;
  if (options.private_sums) {
    const int scale = options.private_sums->fixed_scale.value_or(0);
    if (scale < least_scale || scale > most_scale)
      throw bad("a fixed scale is between " + std::to_string(least_scale) + " and " + std::to_string(most_scale) + ", not " +
                std::to_string(scale));
  }
  if (options.private_sums && options.world_size > seal::most_private_ranks) {
    throw bad("private sums have at most " + std::to_string(seal::most_private_ranks) + " ranks, not " +
              std::to_string(options.world_size));
  }
  if (!options.standbys.empty() && options.recovery.count() <= 0)
    throw bad("standbys require recovery: set Options::recovery above 0");
  if (options.aggregators.size() + options.standbys.size() > session::most_aggregators)
    throw bad("a job has at most " + std::to_string(session::most_aggregators) + " aggregators, not " +
              std::to_string(options.aggregators.size() + options.standbys.size()));
  for (const std::string& address : options.standbys) {
    if (is_in(options.aggregators, address))
      throw bad("address " + address + " is in both the aggregators and the standbys: remove it from one of them");
  }
  if (options.survivors > options.world_size)
    throw bad("survivors must be at most the world size, " + std::to_string(options.world_size) + ", not " +
              std::to_string(options.survivors));
  if (options.survivors != 0 && options.recovery.count() <= 0)
    throw bad("survivors require recovery: set Options::recovery above 0");
  if (options.straggler_deadline.count() < 0 || options.straggler_deadline > session::longest_straggler_deadline)
    throw bad("the straggler deadline must be between 0 and " + session::in_seconds(session::longest_straggler_deadline) +
              ", not " + session::in_seconds(options.straggler_deadline));
  if (options.straggler_deadline.count() != 0 && options.survivors == 0)
    throw bad("a straggler deadline requires survivors: set Options::survivors above 0");
  if (options.loss < 0 || options.loss >= 1) throw bad("loss must be at least 0 and below 1");
  protocol.check();
}

std::unique_ptr<Attempt> prepare(Options options, const MakeRank& make, Time deadline) {
  std::vector<std::string> found;
  if (options.recovery.count() > 0 && options.aggregators.size() > 1)
    found = reachable_ones(options, std::min(deadline, now() + reach_first), true);
  for (const std::string& address : options.aggregators) {
    if (found.empty() || is_in(options.standbys, address) || is_in(found, address)) continue;
    if (options.log)
      options.log("warning: aggregator " + address + " cannot be reached: job '" + options.job + "' begins without it");
  }
  if (found.empty()) {
    std::erase_if(options.aggregators, [&](const std::string& address) { return is_in(options.standbys, address); });
  } else {
    options.aggregators = std::move(found);
  }
  auto attempt = attempt_with(std::move(options), make, deadline);
  reach_all(*attempt, deadline);
  return attempt;
}

std::unique_ptr<Attempt> prepare_again(Options options, const MakeRank& make, std::uint32_t packet_elements, bool past,
                                       Time deadline) {
  options.packet_elements = packet_elements;
  std::vector<std::string> found = reachable_ones(options, std::min(deadline, now() + reach_again), false);
  if (found.empty()) {
    throw Error(ErrorCode::unreachable, options.aggregators.size() == 1
                                            ? "aggregator " + options.aggregators.front() + " cannot be reached"
                                            : "none of the aggregators can be reached");
  }
  options.aggregators = std::move(found);
  auto attempt = attempt_with(std::move(options), make, std::min(deadline, now() + longest_join));
  RankProtocol& protocol = *attempt->protocol;
  const std::string at = protocol.switch_address();
  const Time answers_by = std::min(deadline, now() + reach_again);
  if (!at.empty() && (past || !reachable(attempt->options, at, answers_by, false))) {
    protocol.pass_switch();
    attempt->past_switch = true;
  }
  reach_all(*attempt, std::min(deadline, now() + (attempt->options.survivors != 0 ? paths_of_survivors : paths_again)));
  return attempt;
}

session::Process own_process() {
  std::array<char, session::longest_name> host{};
  if (gethostname(host.data(), host.size() - 1) != 0 || !session::is_name(host.data())) host[0] = '\0';
  return {host.data(), static_cast<std::uint32_t>(getpid())};
}

session::JoinRequest request_of(const Attempt& attempt, const Site& site) {
  const Options& options = attempt.options;
  const Reach& reach = attempt.reach;
  const session::ProtocolRules rules = attempt.protocol->rules();
  session::JoinRequest request;
  request.protocol_version = rules.version;
  request.protocol = rules.name;
  request.switch_address = attempt.protocol->switch_address();
  request.switch_receive_bytes = reach.hop.receive_bytes;
  request.job = options.job;
  request.generation = options.generation;
  request.rank = options.rank;
  request.world_size = options.world_size;
  request.packet_elements = reach.packet_elements;
  request.packet_elements_measured = options.packet_elements == 0;
  request.slots_fixed = options.slots;
  request.slots_measured = site.slots_measured;
  for (const Lane& lane : site.lanes) {
    request.endpoints.push_back(lane.local());
    request.cookies.push_back(lane.cookie);
    if (!reach.hop.lanes.empty()) request.switch_cookies.push_back(lane.switch_cookie);
  }
  request.process = own_process();
  request.local_ticket = site.local ? site.local->ticket() : 0;
  request.why_not_local = site.why_not_local;
  request.needs_local = site.needs_local;
  request.listens = site.listens;
  attempt.protocol->complete(request, reach, site);
  if (!request.near) request.security = least_security(options);
  return request;
}

Joined begin_lanes(Attempt& attempt, const std::vector<session::Admission>& admissions) {
  Reach& reach = attempt.reach;
  const session::Admission& first = admissions.front();
  for (std::size_t i = 0; i < reach.sites.size(); ++i) {
    std::vector<Lane>& lanes = reach.sites[i].lanes;
    lanes.erase(lanes.begin() + admissions[i].lanes, lanes.end());
  }
  Joined joined;
  joined.resumption = first.resumption;
  joined.late_ranks = !first.aside.empty();
  const RankSet& members = first.resumption.members;
  if (!members.empty()) {  // packets number the members
    attempt.options.rank = members.place_of(attempt.options.rank);
    attempt.options.world_size = members.size();
  }
  if (first.local) {
    joined.local = reach.sites.front().local;
    joined.local->gather(first.job_epoch, attempt.deadline);
    joined.aggregator_of_lane.assign(runtime::most_shared_lanes, 0);
  } else {
    joined.packet_elements = first.packet_elements;
    if (attempt.options.pin_threads) joined.node = node_of(reach.sites.front().lanes.front());
    const transport::MemoryOf near(joined.node);  // windows are first touched here
    make_lanes(attempt.options, *attempt.protocol, reach, admissions, joined);
  }
  const auto lanes = static_cast<std::uint32_t>(lanes_of(reach));
  joined.traits = attempt.protocol->traits(reach, first, joined.slots / lanes);
  if (joined.traits.successor && !members.empty()) joined.traits.successor = members.at_place(*joined.traits.successor);
  joined.traits.private_sums = reach.agreement.has_value();
  if (reach.agreement) joined.traits.placement += "; sums are private: no aggregator can read values";
  return joined;
}

}  // namespace netsum::collective
