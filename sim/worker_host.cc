#include "sim/worker_host.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "sim/oracle.h"
#include "wire/switchml.h"

namespace netsum::sim {
namespace {

constexpr std::uint64_t worker_label = 0x3057;

std::vector<std::string> addresses(const Scenario& scenario) {
  std::vector<std::string> list;
  for (std::uint32_t site = 0; site < scenario.aggregators; ++site) list.push_back("switch" + std::to_string(site));
  return list;
}

}  // namespace

WorkerHost::WorkerHost(Surroundings& surroundings, HostId id, const Scenario& scenario, const Protocol& protocol,
                       Witness& witness, Tally& tally, const Place& place, Time start)
    : Host(surroundings, id),
      scenario_(scenario),
      protocol_(protocol),
      witness_(witness),
      tally_(tally),
      place_(place),
      random_(derive(derive(derive(scenario.seed, worker_label), id), place.life)),
      attempt_(place.attempts_used),
      next_attempt_(start),
      next_call_((std::uint64_t{place.life} << 32) + 1),
      former_epochs_(scenario.aggregators) {
  if (attempt_ >= plan().attempts) phase_ = Phase::ended;
}

// ---- joining

// Odd ranks' paths may allow longer packets than even ranks'.
std::uint32_t WorkerHost::measured_elements() const {
  return place_.rank % 2 == 0 ? plan().packet_elements
                              : std::max(plan().packet_elements, wire::switchml::most_sharing_blocks);
}

void WorkerHost::begin(Time now) {
  ++attempt_;
  next_beat_ = never;
  join_deadline_ = now + scenario_.connect_deadline;
  refusal_.reset();
  sites_.clear();
  sites_.resize(scenario_.aggregators);
  if (!plan().measured) return join();
  phase_ = Phase::probing;
  for (std::uint32_t i = 0; i < scenario_.aggregators; ++i) {
    Site& site = sites_[i];
    const std::uint32_t lane = i * scenario_.lanes;
    site.probe = protocol_.path_probe(aggregator_endpoint(lane), measured_elements());
    site.probe_sink = std::make_unique<HostSink>(surroundings_, id(), own_endpoint(lane));
    site.probe->start(now, *site.probe_sink);
    site.probe_sink->flush();
  }
}

void WorkerHost::probe(std::span<const Datagram> datagrams, Time now) {
  std::vector<RxView> views;
  for (const Datagram& datagram : datagrams) views.push_back(view_of(datagram));
  bool done = true;
  for (Site& site : sites_) {
    if (site.probe->done()) continue;
    site.probe->on_packets(views, now, *site.probe_sink);
    site.probe->on_timer(now, *site.probe_sink);
    site.probe_sink->flush();
    done = done && site.probe->done();
  }
  if (!done) return;
  if (std::all_of(sites_.begin(), sites_.end(), [](const Site& site) { return site.probe->slots(); })) return join();
  fail(Error(ErrorCode::unreachable, name() + ": an aggregator does not answer probes"), now);
}

void WorkerHost::join() {
  phase_ = Phase::joining;
  for (std::uint32_t i = 0; i < scenario_.aggregators; ++i) {
    session::JoinRequest request;
    request.protocol_version = protocol_.rules().version;
    request.protocol = scenario_.settings.protocol;
    request.job = plan().name;
    request.rank = place_.rank;
    request.world_size = plan().workers;
    request.packet_elements = plan().packet_elements;
    if (plan().measured) {
      request.packet_elements = measured_elements();
      request.packet_elements_measured = true;
      request.slots_measured = *sites_[i].probe->slots();
    } else {
      request.slots_fixed = plan().slots;
    }
    for (std::uint32_t lane = 0; lane < scenario_.lanes; ++lane) {
      request.endpoints.push_back(own_endpoint(i * scenario_.lanes + lane));
    }
    request.recovers = plan().recovers;
    if (plan().recovers) {
      if (log_) request.progress = log_->progress();
      request.aggregators = addresses(scenario_);
      request.former_epoch = former_epochs_[i];
    }
    if (!plan().switch_of_rank.empty()) {
      // A restarted host may be in another rack (ATP §A.3), if that has room for one more rank and sums do not depend on the
      // placement.
      const auto all = static_cast<std::uint32_t>(scenario_.parent_of_switch.size());
      const bool may_move = plan().workers + all < 32 && plan().numbers != Numbers::in_order;
      const std::uint32_t moved = may_move ? place_.life : 0;
      const std::uint32_t at = plan().switch_of_rank[place_.rank];
      request.pool_slots = scenario_.pool_slots;
      if (at != session::Placement::at_server) request.switch_address = std::to_string((at + moved) % all);
    }
    protocol_.complete(request, plan(), place_.life * 64 + attempt_);
    sites_[i].join = next_call_++;
    surroundings_.call(id(), i, {sites_[i].join, id(), JoinCall{request}});
  }
}

void WorkerHost::on_reply(const ControlReply& reply, Time now) {
  if (phase_ != Phase::joining && phase_ != Phase::running) return;
  Site& site = sites_[reply.from];
  if (const auto* outcome = std::get_if<session::JoinOutcome>(&reply.what)) {
    if (site.join != reply.number) return;
    site.join = 0;
    if (outcome->refusal == session::Refusal::none) {
      site.admission = outcome->admission;
      next_beat_ = std::min(next_beat_, now + session::beat_interval);
    } else if (!refusal_) {
      refusal_ = Error(ErrorCode::refused, outcome->reason);
    }
    if (std::any_of(sites_.begin(), sites_.end(), [](const Site& s) { return s.join != 0; })) return;
    if (refusal_) return fail(Error(*refusal_), now);
    return start(now);
  }
  if (site.beat != reply.number) return;
  site.beat = 0;
  site.beat_deadline = never;
  if (phase_ == Phase::joining) return;
  auto error = supervisor_->on_reply(reply.from, std::get<session::HeartbeatReply>(reply.what), now);
  if (!error) error = supervisor_->check_left(oldest_stall());
  if (error) fail(*error, now);
}

void WorkerHost::start(Time now) {
  phase_ = Phase::running;
  join_deadline_ = never;
  supervisor_.emplace(session::Supervisor::Config{plan().name, place_.rank, addresses(scenario_),
                                                  protocol_.predecessor(place_.rank, plan().workers)},
                      now);
  next_beat_ = now;
  for (const Site& site : sites_) {
    const std::string what = session::disagreement(*sites_[0].admission, *site.admission);
    if (!what.empty()) return fail(Error(ErrorCode::refused, name() + ": the aggregators do not agree " + what), now);
  }
  witness_.began(place_.job, place_.rank, sites_[0].admission->job_epoch, process());
  const std::uint32_t lanes = scenario_.lanes * scenario_.aggregators;
  for (std::uint32_t lane = 0; lane < lanes; ++lane) {
    const std::uint32_t site = lane / scenario_.lanes;
    WorkerLanePlan p;
    p.admission = *sites_[site].admission;
    p.rank = place_.rank;
    p.world_size = plan().workers;
    p.lane = lane;
    p.lanes = lanes;
    p.aggregator = aggregator_endpoint(lane);
    p.scenario = &scenario_;
    p.plan = &plan();
    const Endpoint self = own_endpoint(lane);
    lanes_.push_back(
        {protocol_.worker_lane(p), std::make_unique<HostSink>(surroundings_, id(), self), site, 0, self, false});
  }
  surroundings_.say(id(), name() + " runs, attempt " + std::to_string(attempt_));
  resume();
  schedule_issue(now);
}

// Corresponds to collective/monitor.cc and runtime/worker_engine.cc in the binaries.
void WorkerHost::resume() {
  if (!plan().recovers) {
    next_operation_ = delivered_ = 0;
    return;
  }
  if (!log_) log_.emplace(random_.chance(0.5) ? 0 : std::size_t{1} << 20);
  std::deque<UnderWay> before;
  before.swap(under_way_);
  const stream::Resumption& resumption = sites_[0].admission->resumption;
  for (const stream::Operation& sent : log_->resume(resumption)) {
    const auto found =
        std::find_if(before.begin(), before.end(), [&](const UnderWay& u) { return u.call.number == sent.number; });
    UnderWay next;
    if (found != before.end() && found->lanes_remaining != 0 && !found->replay) {
      next = std::move(*found);
      ++tally_.events["operation_resumed"];
    } else {
      next.call = sent;
      next.replay = true;
      ++tally_.events["result_replayed"];
    }
    next.sent = sent;
    next.lanes_remaining = static_cast<std::uint32_t>(lanes_.size());
    under_way_.push_back(std::move(next));
  }
  if (log_->next_issue() != next_operation_) {  // a new process
    NETSUM_CHECK(next_operation_ == 0);
    next_operation_ = delivered_ = log_->next_issue();
    ++tally_.events["succeeded_a_process"];
  }
}

// ---- operations

void WorkerHost::schedule_issue(Time now) {
  if (next_operation_ == plan().calls.size() || under_way_.size() >= plan().window) {
    next_issue_ = never;
    return;
  }
  Duration gap = random_.between(Duration::zero(), plan().gap);
  if (random_.chance(plan().straggle) && scenario_.settings.limits.kinds.contains(Fault::straggle)) {
    witness_.straggled();
    gap += plan().straggle_for;
  }
  next_issue_ = now + gap;
}

void WorkerHost::issue(Time now) {
  UnderWay next;
  next.call = plan().calls[next_operation_];
  if (const auto& mismatch = plan().mismatch;
      mismatch && mismatch->rank == place_.rank && mismatch->call.number == next_operation_) {
    next.call = mismatch->call;
    tally_.count(Fault::mismatch);
  }
  ++next_operation_;
  next.tensor = tensor_of(plan(), next.call, place_.rank, process());
  next.call.data = next.tensor.data();
  next.sent = log_ ? log_->issue(next.call) : next.call;
  next.issued = now;
  next.deadline = now + plan().operation_deadline;
  next.lanes_remaining = static_cast<std::uint32_t>(lanes_.size());
  under_way_.push_back(std::move(next));
  schedule_issue(now);
}

void WorkerHost::submit(Lane& lane, Time now) {
  while (lane.queued < under_way_.size() && lane.lane->submit(under_way_[lane.queued].sent, now, *lane.sink)) ++lane.queued;
}

void WorkerHost::collect(Lane& lane, Time now) {
  for (const std::uint64_t number : lane.lane->take_completed()) {
    const auto done =
        std::find_if(under_way_.begin(), under_way_.end(), [&](const UnderWay& u) { return u.call.number == number; });
    if (done == under_way_.end() || done->lanes_remaining == 0)
      throw Violation(name() + " completed operation " + std::to_string(number) + " twice");
    if (--done->lanes_remaining != 0) continue;
    if (log_) log_->finish(number);
    if (done->replay) continue;
    witness_.delivered(place_.job, place_.rank, done->call, done->tensor, sites_[0].admission->job_epoch);
    ++delivered_;
  }
  // A lane may complete operations out of order; they are removed from the front.
  while (!under_way_.empty() && under_way_.front().lanes_remaining == 0) {
    under_way_.pop_front();
    for (Lane& each : lanes_) --each.queued;
    if (next_issue_ == never) schedule_issue(now);
  }
}

void WorkerHost::turn(std::span<const Datagram> datagrams, Time now) {
  if (phase_ == Phase::waiting && now >= next_attempt_) begin(now);
  if (phase_ == Phase::probing) return probe(datagrams, now);
  if (phase_ == Phase::joining && now >= join_deadline_) {
    for (std::size_t i = 0; i < sites_.size(); ++i) {
      if (sites_[i].join != 0)
        surroundings_.call(id(), static_cast<HostId>(i), {next_call_++, id(), CancelCall{sites_[i].join}});
    }
    fail(Error(ErrorCode::unreachable, name() + ": the job did not become complete in time"), now);
  }
  if (phase_ == Phase::joining && now >= next_beat_) {
    for (Site& site : sites_) site.beat = 0;  // regardless of the previous one
    beat(now);
  }
  if (phase_ != Phase::running) return;

  std::vector<RxView> views;
  for (Lane& lane : lanes_) {
    views.clear();
    for (const Datagram& datagram : datagrams) {
      if (datagram.to == lane.self) views.push_back(view_of(datagram));
    }
    if (!views.empty()) lane.lane->on_packets(views, now, *lane.sink);
    if (now >= lane.lane->next_timeout()) lane.lane->on_timer(now, *lane.sink);
    collect(lane, now);
  }
  while (now >= next_issue_) issue(now);
  bool more = true;
  while (more) {  // an operation without a part on a lane may complete at submission, and make room
    more = false;
    for (Lane& lane : lanes_) {
      const std::uint64_t before = delivered_;
      submit(lane, now);
      collect(lane, now);
      more |= delivered_ != before;
    }
  }
  for (Lane& lane : lanes_) {
    lane.sink->flush();
    lane.lane->check();
  }
  if (const auto error = look(now)) return fail(*error, now);
  if (delivered_ == plan().calls.size() && parted(now)) {
    surroundings_.say(id(), name() + " has every result");
    if (attempt_ > 1) ++tally_.events["recovered_after_an_error"];
    leave();
    close();
    phase_ = Phase::ended;
  }
}

// Whether no other rank needs this one any more (collective/communicator.cc).
bool WorkerHost::parted(Time now) {
  if (parting_ == never) parting_ = now + plan().operation_deadline;
  const bool drained = std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.lane->drained(); });
  return drained || now >= parting_ || supervisor_->left().contains((place_.rank + 1) % plan().workers);
}

// ---- liveness

void WorkerHost::beat(Time now) {
  for (std::size_t i = 0; i < sites_.size(); ++i) {
    Site& site = sites_[i];
    if (site.beat != 0 || !site.admission) continue;
    site.beat = next_call_++;
    site.beat_deadline = now + session::beat_patience;
    surroundings_.call(id(), static_cast<HostId>(i),
                       {site.beat, id(), BeatCall{site.admission->job_epoch, place_.rank, site.admission->rank_epoch}});
  }
  next_beat_ = now + (supervisor_ ? supervisor_->interval() : session::beat_interval);
}

// Corresponds to the monitor's thread in the binaries (collective/monitor.cc).
std::optional<Error> WorkerHost::look(Time now) {
  for (Lane& lane : lanes_) {
    const auto failure = lane.lane->failure();
    if (!failure || lane.failure_seen) continue;
    lane.failure_seen = true;
    if (failure->mismatch) {
      const auto own = std::find_if(under_way_.begin(), under_way_.end(),
                                    [&](const UnderWay& u) { return u.call.number == failure->operation; });
      return supervisor_->mismatch(failure->operation, failure->first_rank, failure->second_rank,
                                   own == under_way_.end() ? "" : stream::to_string(own->call));
    }
    if (!failure->unsealed.empty()) return supervisor_->unsealed(lane.site, failure->operation, failure->unsealed);
    supervisor_->on_job_dropped(lane.site);
    sites_[lane.site].beat = 0;  // an answer in flight predates this
    sites_[lane.site].beat_deadline = never;
    next_beat_ = now;
  }
  const auto overdue = [&](const UnderWay& u) { return u.lanes_remaining != 0 && now >= u.deadline; };
  if (const auto urgent = std::find_if(under_way_.begin(), under_way_.end(), overdue); urgent != under_way_.end()) {
    return supervisor_->overdue(urgent->call.number, stream::to_string(urgent->call), plan().operation_deadline,
                                oldest_stall());
  }
  for (std::size_t i = 0; i < sites_.size(); ++i) {
    if (now < sites_[i].beat_deadline) continue;
    sites_[i].beat = 0;
    sites_[i].beat_deadline = never;
    if (auto error = supervisor_->on_no_reply(i, "no answer", now)) return error;
  }
  if (now >= next_beat_) beat(now);
  return std::nullopt;
}

std::optional<session::Stall> WorkerHost::oldest_stall() const {
  std::optional<session::Stall> oldest;
  for (const Lane& lane : lanes_) {
    auto stall = lane.lane->oldest_stall();
    if (!stall) continue;
    stall->site = lane.site;
    if (!oldest || std::pair(stall->operation, stall->chunk) < std::pair(oldest->operation, oldest->chunk)) oldest = stall;
  }
  return oldest;
}

// ---- the end

void WorkerHost::fail(const Error& error, Time now) {
  surroundings_.say(id(), name() + " ends: " + error.what());
  std::optional<std::uint64_t> operation;
  if (!under_way_.empty()) operation = under_way_.front().call.number;
  witness_.failed(place_.job, place_.rank, error, operation);
  const ErrorCode code = error.code();
  const bool curable = session::recoverable(code) || phase_ != Phase::running;
  for (std::size_t i = 0; i < sites_.size(); ++i) {
    if (sites_[i].admission) former_epochs_[i] = sites_[i].admission->rank_epoch;
  }
  if (!recovering() || !curable || phase_ == Phase::joining) leave();  // the others learn that this rank will not contribute
  if (recovering() && !curable) {                                      // the process ends, and a launcher starts another
    log_.reset();
    under_way_.clear();
    next_operation_ = delivered_ = 0;
    ++restarts_;
    former_epochs_.assign(former_epochs_.size(), 0);
    witness_.forgot(place_.job, place_.rank);
  }
  end_attempt(now);
}

void WorkerHost::leave() {
  for (std::size_t i = 0; i < sites_.size(); ++i) {
    if (!sites_[i].admission) continue;
    surroundings_.call(
        id(), static_cast<HostId>(i),
        {next_call_++, id(), LeaveCall{sites_[i].admission->job_epoch, place_.rank, sites_[i].admission->rank_epoch}});
  }
}

void WorkerHost::end_attempt(Time now) {
  close();
  if (attempt_ < plan().attempts) {
    phase_ = Phase::waiting;
    next_attempt_ = now + random_.between(Duration(std::chrono::milliseconds(10)), Duration(std::chrono::seconds(2)));
  } else {
    phase_ = Phase::ended;
  }
}

void WorkerHost::count_events(Tally& tally) const {
  for (const Lane& lane : lanes_) lane.lane->count_events(tally);
}

void WorkerHost::close() {
  count_events(tally_);
  lanes_.clear();
  if (!recovering()) under_way_.clear();
  supervisor_.reset();
  join_deadline_ = next_beat_ = next_issue_ = parting_ = never;
}

void WorkerHost::die() {
  witness_.forgot(place_.job, place_.rank);
  if (phase_ == Phase::joining) {
    for (std::size_t i = 0; i < sites_.size(); ++i) {
      if (sites_[i].join != 0)
        surroundings_.call(id(), static_cast<HostId>(i), {next_call_++, id(), CancelCall{sites_[i].join}});
    }
  }
  close();
  phase_ = Phase::ended;
}

Time WorkerHost::next_wake() const {
  switch (phase_) {
    case Phase::waiting:
      return next_attempt_;
    case Phase::probing: {
      Time next = never;
      for (const Site& site : sites_) next = std::min(next, site.probe->next_timeout());
      return next;
    }
    case Phase::joining:
      return std::min(join_deadline_, next_beat_);
    case Phase::ended:
      return never;
    case Phase::running:
      break;
  }
  Time next = std::min(next_beat_, next_issue_);
  for (const Lane& lane : lanes_) next = std::min(next, lane.lane->next_timeout());
  for (const Site& site : sites_) next = std::min(next, site.beat_deadline);
  next = std::min(next, parting_);
  for (const UnderWay& operation : under_way_) {
    if (operation.lanes_remaining != 0) next = std::min(next, operation.deadline);
  }
  return next;
}

}  // namespace netsum::sim
