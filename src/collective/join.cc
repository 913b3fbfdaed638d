#include "collective/join.h"

#include <algorithm>
#include <bit>
#include <future>
#include <optional>
#include <set>
#include <utility>

#include "collective/rank_protocol.h"
#include "collective/reach.h"
#include "runtime/thread.h"
#include "session/supervisor.h"
#include "transport/lossy.h"

namespace netsum::collective {
namespace {

using runtime::now;
using std::chrono::milliseconds;

// The control protocol counts milliseconds in 32 bits.
constexpr Duration longest_join = std::chrono::hours(24);

// For a heartbeat or a goodbye while other aggregators still decide.
constexpr milliseconds parting_deadline{1000};

// For an aggregator to answer, if the others may do without it.
constexpr milliseconds reach_again{1000};

void check(const Options& options, const RankProtocol& protocol) {
  const auto bad = [](const std::string& what) { return Error(ErrorCode::bad_argument, what); };
  if (options.aggregators.empty()) throw bad("no aggregator is named");
  const session::ProtocolRules rules = protocol.rules();
  if (options.world_size == 0 || options.world_size > rules.max_world_size) {
    throw bad("world size " + std::to_string(options.world_size) + " is not between 1 and " +
              std::to_string(rules.max_world_size));
  }
  if (options.rank >= options.world_size) {
    throw bad("rank " + std::to_string(options.rank) + " is not below the world size " + std::to_string(options.world_size));
  }
  if (options.packet_elements != 0) {
    if (const std::string error = rules.check_packet(options.packet_elements); !error.empty()) throw bad(error);
  }
  if (options.slots != 0 && !std::has_single_bit(options.slots)) {
    throw bad(std::to_string(options.slots) + " slots are not a power of two");
  }
  if (options.loss < 0 || options.loss >= 1) throw bad("loss must be at least 0 and below 1");
  protocol.check();
}

// An attempt to join: parameters beside the options.
struct Attempt {
  Time deadline{};
  Former* former = nullptr;
  std::stop_token stop;
};

session::Admission join_at(const Options& options, const RankProtocol& protocol, const Reach& reach, const Site& site,
                           const Attempt& attempt) {
  const session::ProtocolRules rules = protocol.rules();
  session::JoinRequest request;
  request.protocol_version = rules.version;
  request.protocol = rules.name;
  request.switch_address = protocol.switch_address();
  request.pool_slots = reach.hop.pool_slots;
  request.switch_receive_bytes = reach.hop.receive_bytes;
  request.job = options.job;
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
  request.local_ticket = site.local ? site.local->ticket() : 0;
  request.why_not_local = site.why_not_local;
  request.needs_local = site.needs_local;
  request.listens = site.listens;
  request.recovers = options.recovery.count() > 0;
  if (request.recovers) request.aggregators = options.aggregators;
  if (options.first_operation) request.progress = {*options.first_operation, *options.first_operation, {}};
  if (attempt.former != nullptr) {
    request.progress = attempt.former->progress;
    const auto known = attempt.former->rank_epochs.find(site.membership.address);
    if (known != attempt.former->rank_epochs.end()) request.former_epoch = known->second;
  }
  protocol.complete(request, site);
  return site.membership.client->join(request, remaining(attempt.deadline), attempt.stop);
}

// All at once: an aggregator answers only when every rank has joined there, and ranks must not wait for each other in turn.
// An aggregator that has admitted this rank gets heartbeats while others still wait for ranks, and a goodbye if they fail.
std::vector<session::Admission> join_all(const Options& options, const RankProtocol& protocol, const Reach& reach,
                                         const Attempt& attempt) {
  const std::vector<Site>& sites = reach.sites;
  std::vector<std::future<session::Admission>> pending;
  for (const Site& site : sites) {
    pending.push_back(std::async(std::launch::async, [&options, &protocol, &reach, &site, &attempt] {
      return join_at(options, protocol, reach, site, attempt);
    }));
  }
  std::vector<std::optional<session::Admission>> admitted(sites.size());
  std::optional<Error> error;
  for (bool waiting = true; waiting;) {
    waiting = false;
    for (std::size_t i = 0; i < sites.size(); ++i) {
      if (!pending[i].valid()) continue;
      if (pending[i].wait_for(waiting ? Duration::zero() : session::beat_interval) != std::future_status::ready) {
        waiting = true;
        continue;
      }
      try {
        admitted[i] = pending[i].get();
      } catch (const Error& refusal) {
        if (!error) error = refusal;
      }
    }
    for (const auto& admission : admitted) {
      if (waiting || error) continue;
      const session::Admission& first = *admitted.front();
      const std::string what = session::disagreement(first, *admission);
      if (what.empty()) continue;
      error = Error(ErrorCode::refused, "the aggregators of job '" + options.job + "' do not agree " + what);
    }
    for (std::size_t i = 0; i < sites.size(); ++i) {
      if (!admitted[i] || (!waiting && !error)) continue;
      try {
        control::Client& client = *sites[i].membership.client;
        if (error && !waiting) {
          if (attempt.former != nullptr) attempt.former->rank_epochs[sites[i].membership.address] = admitted[i]->rank_epoch;
          client.leave(admitted[i]->job_epoch, options.rank, admitted[i]->rank_epoch, parting_deadline);
        } else {
          static_cast<void>(
              client.heartbeat(admitted[i]->job_epoch, options.rank, admitted[i]->rank_epoch, parting_deadline));
        }
      } catch (const Error&) {
        // The monitor or the next attempt finds the cause.
      }
    }
  }
  if (error) throw Error(*error);
  std::vector<session::Admission> admissions;
  for (auto& admission : admitted) admissions.push_back(std::move(*admission));
  return admissions;
}

std::unique_ptr<transport::Transport> with_loss(const Options& options, std::unique_ptr<transport::Transport> transport,
                                                std::uint32_t lane) {
  if (options.loss == 0) return transport;
  const std::uint64_t stream = std::uint64_t{options.rank} * 4096 + lane;
  return std::make_unique<transport::Lossy>(std::move(transport), options.loss, options.loss_seed, stream);
}

// Gives each warning of small buffers once.
void warn_of_buffers(const Options& options, const Reach& reach) {
  if (!options.log) return;
  std::set<std::string> warnings;
  for (const Site& site : reach.sites) {
    for (const Lane& lane : site.lanes) {
      if (lane.socket && !lane.socket->buffer_warning().empty()) warnings.insert(lane.socket->buffer_warning());
    }
  }
  for (const std::string& warning : warnings) options.log("warning: " + warning);
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

Joined attempt_to_join(const Options& options, RankProtocol& protocol, const Attempt& attempt) {
  Reach reach = protocol.reach(attempt.deadline);
  warn_of_buffers(options, reach);
  if (options.slots == 0) protocol.measure_windows(reach, attempt.deadline);
  prove_endpoints(reach, attempt.deadline);
  const std::vector<session::Admission> admissions = join_all(options, protocol, reach, attempt);

  const session::Admission& first = admissions.front();
  Joined joined;
  joined.resumption = first.resumption;
  if (first.local) {
    joined.local = reach.sites.front().local;
    joined.local->gather(first.job_epoch, attempt.deadline);
    joined.aggregator_of_lane.assign(runtime::most_shared_lanes, 0);
  } else {
    joined.packet_elements = first.packet_elements;
    make_lanes(options, protocol, reach, admissions, joined);
  }
  const auto lanes = static_cast<std::uint32_t>(lanes_of(reach));
  joined.traits = protocol.traits(reach, first, joined.slots / lanes);
  for (std::size_t i = 0; i < reach.sites.size(); ++i) {
    Membership& membership = reach.sites[i].membership;
    membership.job_epoch = admissions[i].job_epoch;
    membership.rank_epoch = admissions[i].rank_epoch;
    joined.memberships.push_back(std::move(membership));
  }
  return joined;
}

[[nodiscard]] bool reachable(const Options& options, const std::string& address, Time deadline) {
  try {
    static_cast<void>(reach_control(options, address, std::min(deadline, now() + reach_again)));
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

Joined join(const Options& options) {
  const auto protocol = rank_protocol(options);
  check(options, *protocol);
  const Time deadline = runtime::after(now(), std::min<Duration>(longest_join, runtime::bounded(options.connect_deadline)));
  return attempt_to_join(options, *protocol, {deadline, nullptr, {}});
}

Joined join_again(const Options& options, Former& former, Time deadline, const std::stop_token& stop) {
  Options again = options;
  again.packet_elements = former.packet_elements;
  std::erase_if(again.aggregators, [&](const std::string& address) { return !reachable(options, address, deadline); });
  if (again.aggregators.empty()) {
    throw Error(ErrorCode::unreachable, options.aggregators.size() == 1
                                            ? "aggregator " + options.aggregators.front() + " cannot be reached"
                                            : "none of the aggregators can be reached");
  }
  const auto protocol = rank_protocol(again);
  const std::string at = protocol->switch_address();
  if (protocol->can_pass_switch() && !at.empty() && !reachable(options, at, deadline)) protocol->pass_switch();
  return attempt_to_join(again, *protocol, {std::min(deadline, now() + longest_join), &former, stop});
}

}  // namespace netsum::collective
