#include "sim/worker_host.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "wire/switchml.h"

namespace netsum::sim {
namespace {

constexpr std::uint64_t worker_label = 0x3057;

std::vector<std::string> addresses(const std::vector<HostId>& aggregators) {
  std::vector<std::string> list;
  for (const HostId aggregator : aggregators) list.push_back("switch" + std::to_string(aggregator));
  return list;
}

}  // namespace

WorkerHost::WorkerHost(Surroundings& surroundings, HostId id, const Scenario& scenario, const Protocol& protocol,
                       Witness& witness, Tally& tally, const Place& place, std::unique_ptr<Program> program, Time start)
    : Host(surroundings, id),
      scenario_(scenario),
      protocol_(protocol),
      witness_(witness),
      tally_(tally),
      place_(place),
      program_(std::move(program)),
      random_(derive(derive(derive(scenario.seed, worker_label), id), place.life)),
      next_launch_(start),
      attempt_(place.attempts_used),
      next_call_((std::uint64_t{place.life} << 32) + 1) {
  if (attempt_ >= plan().attempts) next_launch_ = never;
  aggregators_ = plan().aggregators;
  if (!aggregators_.empty()) return;
  for (HostId aggregator = 0; aggregator < scenario.aggregators; ++aggregator) aggregators_.push_back(aggregator);
}

// ---- joining

// Odd ranks' paths may allow longer packets than even ranks'.
std::uint32_t WorkerHost::measured_elements() const {
  return place_.rank % 2 == 0 ? plan().packet_elements
                              : std::max(plan().packet_elements, wire::switchml::most_sharing_blocks);
}

void WorkerHost::launch(Time now) {
  next_launch_ = never;
  free_since_ = now;
  session::Rank::Config config;
  config.job = plan().name;
  config.rank = place_.rank;
  config.aggregators = addresses(aggregators_);
  config.standbys = plan().standbys;
  if (may_move()) config.switch_address = switch_address();
  config.predecessor = protocol_.predecessor(place_.rank, plan().workers);
  config.recovers = plan().recovers;
  config.survivors = plan().survivors;
  config.straggler_deadline = plan().straggler_deadline;
  config.silence = heartbeat_timeout;
  config.pause = [this] {
    return random_.between(Duration(std::chrono::milliseconds(10)), Duration(std::chrono::seconds(2)));
  };
  rank_.emplace(std::move(config), static_cast<Operations&>(*this));
  rank_->begin(now + scenario_.connect_deadline);
  carry_out(now);
}

void WorkerHost::carry_out(Time now) {
  while (rank_) {
    const auto actions = rank_->take_actions();
    if (actions.empty()) return;
    for (const auto& action : actions) {
      std::visit([&](const auto& a) { carry_out(a, now); }, action);
    }
    constexpr std::uint32_t looks = 300;  // of a late rank whose program makes no call
    const bool given_up = rank_->waiting() && attempt_ >= plan().attempts + (rank_->aside() ? looks : 0);
    if (!rank_->ended() && !given_up) continue;
    rank_.reset();
    probing_ = false;
    asked_.clear();
    looked_.clear();
    reached_by_ = never;
  }
}

template <class What>
void WorkerHost::call(std::size_t site, std::uint64_t number, What what) {
  surroundings_.call(id(), aggregators_[sites_[site].number], {number, id(), std::move(what)});
}

void WorkerHost::carry_out(const session::Rank::Prepare& prepare, Time now) {
  ++attempt_;
  if (rank_->aside()) ++tally_.events["looked_in_while_late"];
  join_deadline_ = prepare.again ? now + scenario_.connect_deadline : prepare.deadline;
  const std::vector<std::string> all = addresses(aggregators_);
  past_switch_ = prepare.past_switch;
  reached_.clear();
  asked_.clear();
  for (const std::string& address : prepare.aggregators) {
    const auto number = static_cast<std::uint32_t>(std::find(all.begin(), all.end(), address) - all.begin());
    if (!plan().recovers || all.size() == 1) {
      reached_.push_back(number);
      continue;
    }
    asked_[next_call_] = number;
    surroundings_.call(id(), aggregators_[number], {next_call_++, id(), BeatCall{}});
  }
  if (asked_.empty()) return reach(now);
  reached_by_ = now + random_.between(Duration(std::chrono::milliseconds(50)), Duration(std::chrono::seconds(1)));
}

void WorkerHost::reach(Time now) {
  reached_by_ = never;
  asked_.clear();
  if (reached_.empty()) return rank_->on_unprepared(Error(ErrorCode::unreachable, name() + ": no aggregator answers"), now);
  std::sort(reached_.begin(), reached_.end());
  sites_.clear();
  for (const std::uint32_t number : reached_) sites_.emplace_back().number = number;
  if (!plan().measured) return prepared(now);
  probing_ = true;
  for (Site& site : sites_) {
    const std::uint32_t lane = site.number * scenario_.lanes;
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
  probing_ = false;
  if (std::all_of(sites_.begin(), sites_.end(), [](const Site& site) { return site.probe->slots(); })) return prepared(now);
  rank_->on_unprepared(Error(ErrorCode::unreachable, name() + ": an aggregator does not answer probes"), now);
}

void WorkerHost::prepared(Time now) {
  const std::vector<std::string> all = addresses(aggregators_);
  std::vector<std::string> reached;
  for (const Site& site : sites_) reached.push_back(all[site.number]);
  rank_->on_prepared(std::move(reached), join_deadline_, now, past_switch_);
}

void WorkerHost::carry_out(const session::Rank::Join& join, Time) {
  Site& site = sites_[join.site];
  session::JoinRequest request;
  request.protocol_version = protocol_.rules().version;
  request.protocol = protocol_.rules().name;
  request.job = plan().name;
  request.rank = place_.rank;
  request.world_size = plan().workers;
  request.packet_elements = plan().packet_elements;
  if (plan().measured) {
    request.packet_elements = measured_elements();
    request.packet_elements_measured = true;
    request.slots_measured = *site.probe->slots();
  } else {
    request.slots_fixed = plan().slots;
  }
  for (std::uint32_t lane = 0; lane < scenario_.lanes; ++lane) {
    request.endpoints.push_back(own_endpoint(site.number * scenario_.lanes + lane));
  }
  // Those with fewer ranks than before may be left without one that limits the lanes.
  const std::uint32_t spare = plan().survivors == 0 && place_.rank % 2 == 1 ? scenario_.spare_lanes : 0;
  for (std::uint32_t lane = 0; lane < spare; ++lane) {
    request.endpoints.push_back(own_endpoint(scenario_.aggregators * scenario_.lanes + site.number * spare + lane));
  }
  if (log_) request.progress = log_->progress();
  rank_->complete(join.site, request);
  if (!past_switch_) request.switch_address = switch_address();
  protocol_.complete(request, scenario_, plan(), attempt_number());
  site.join = next_call_++;
  call(join.site, site.join, JoinCall{std::move(request)});
}

// A restarted host may be in another rack (ATP §A.3), if that has room for one more rank and sums do not depend on the
// placement.
std::string WorkerHost::switch_address() const {
  if (plan().switch_of_rank.empty() || plan().switch_of_rank[place_.rank] == session::Placement::at_server) return "";
  const auto all = static_cast<std::uint32_t>(scenario_.parent_of_switch.size());
  const std::uint32_t moved = may_move() ? place_.life : 0;
  return std::to_string((plan().switch_of_rank[place_.rank] + moved) % all);
}

void WorkerHost::carry_out(const session::Rank::Cancel& cancel, Time) {
  call(cancel.site, next_call_++, CancelCall{std::exchange(sites_[cancel.site].join, 0)});
}

void WorkerHost::carry_out(const session::Rank::Beat& beat, Time) {
  sites_[beat.site].beat = next_call_++;
  call(beat.site, sites_[beat.site].beat,
       BeatCall{beat.life.job_epoch, place_.rank, beat.life.rank_epoch, beat.call, beat.seen, beat.pace});
}

void WorkerHost::carry_out(const session::Rank::Look& look, Time now) {
  looked_[next_call_] = {look.number, now + session::look_patience};
  const HostId host = look.number == session::Rank::own_switch
                          ? switch_host(scenario_, static_cast<std::uint32_t>(std::stoul(look.address)))
                          : aggregators_[look.number];
  surroundings_.call(id(), host, {next_call_++, id(), BeatCall{}});
}

void WorkerHost::carry_out(const session::Rank::Leave& leave, Time) {
  call(leave.site, next_call_++, LeaveCall{leave.life.job_epoch, place_.rank, leave.life.rank_epoch, leave.why});
}

void WorkerHost::on_reply(const ControlReply& reply, Time now) {
  if (!rank_) return;
  if (const auto asked = asked_.extract(reply.number)) {
    reached_.push_back(asked.mapped());
    if (asked_.empty()) reach(now);
    return carry_out(now);
  }
  if (const auto looked = looked_.extract(reply.number)) {
    rank_->on_looked(looked.mapped().number, true, now);
    return carry_out(now);
  }
  const auto found =
      std::find_if(sites_.begin(), sites_.end(), [&](const Site& site) { return aggregators_[site.number] == reply.from; });
  if (found == sites_.end()) return;
  Site& site = *found;
  const auto from = static_cast<std::size_t>(found - sites_.begin());
  if (const auto* outcome = std::get_if<session::JoinOutcome>(&reply.what)) {
    if (site.join != reply.number) return;
    site.join = 0;
    if (outcome->refusal == session::Refusal::none) {
      rank_->on_admitted(from, *outcome->admission, now);
    } else {
      const bool excluded = outcome->refusal == session::Refusal::excluded;
      rank_->on_refused(from, Error(excluded ? ErrorCode::excluded : ErrorCode::refused, outcome->reason), now);
    }
  } else {
    if (site.beat != reply.number) return;
    site.beat = 0;
    rank_->on_reply(from, std::get<session::HeartbeatReply>(reply.what), now);
  }
  carry_out(now);
}

void WorkerHost::carry_out(const session::Rank::Start& start, Time now) {
  const std::vector<session::Admission> admissions = rank_->admissions();
  std::vector<Site> sites;
  job_epochs_.assign(aggregators_.size(), 0);
  for (std::size_t i = 0; i < start.sites.size(); ++i) {
    sites.push_back(std::move(sites_[start.sites[i]]));
    job_epochs_[sites.back().number] = admissions[i].job_epoch;
  }
  sites_ = std::move(sites);
  if (sites_.size() < aggregators_.size() - plan().standbys) ++tally_.events["ran_without_an_aggregator"];
  if (plan().standbys != 0 && sites_.front().number >= aggregators_.size() - plan().standbys)
    ++tally_.events["ran_at_a_standby"];
  if (past_switch_) ++tally_.events["went_around_its_switch"];
  // Connections to the life before end.
  for (const auto& [number, closed] : std::exchange(connected_, {}))
    surroundings_.call(id(), aggregators_[number], {next_call_++, id(), closed});
  for (std::size_t i = 0; i < sites_.size(); ++i)
    connected_[sites_[i].number] = {admissions[i].job_epoch, place_.rank, admissions[i].rank_epoch};
  members_ = admissions.front().resumption.members;
  late_ = admissions.front().aside;
  witness_.began(place_.job, place_.rank, job_epochs_, process(), members_, admissions.front().life);
  const auto lanes = static_cast<std::uint32_t>(scenario_.lanes * sites_.size());
  for (std::uint32_t lane = 0; lane < lanes; ++lane) {
    const std::uint32_t site = lane / scenario_.lanes;
    const std::uint32_t port = sites_[site].number * scenario_.lanes + lane % scenario_.lanes;
    WorkerLanePlan p;
    p.admission = admissions[site];
    p.number = place_.rank;
    p.rank = members_.empty() ? place_.rank : members_.place_of(place_.rank);
    p.world_size = members_.empty() ? plan().workers : members_.size();
    p.lane = lane;
    p.lanes = lanes;
    p.life = attempt_number();
    p.aggregator = aggregator_endpoint(port);
    p.own = own_endpoint(port);
    p.scenario = &scenario_;
    p.plan = &plan();
    const std::uint64_t window = std::uint64_t{p.admission.slots} * protocol_.packets_of_slot(p.admission);
    lanes_.push_back({std::make_unique<CheckedLane>(protocol_.worker_lane(p), window),
                      std::make_unique<HostSink>(surroundings_, id(), p.own), site, 0, p.own, false});
  }
  surroundings_.say(id(), name() + " runs, attempt " + std::to_string(attempt_));
  resume(admissions.front().resumption);
  rank_->on_started(now);
  schedule_issue(now);
}

// Corresponds to runtime/worker_engine.cc in the binaries.
void WorkerHost::resume(const stream::Resumption& resumption) {
  if (!plan().recovers) {
    next_operation_ = delivered_ = 0;
    position_ = {};
    return;
  }
  const double forgetful = plan().straggler_deadline.count() != 0 ? 0.02 : 0.5;
  const bool is_new = !log_;
  if (is_new) log_.emplace(random_.chance(forgetful) ? 0 : std::size_t{1} << 20);
  std::deque<UnderWay> before;
  before.swap(under_way_);
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
    next.has_result = resumption.replays.contains(sent.number);
    next.lanes_remaining = static_cast<std::uint32_t>(lanes_.size());
    under_way_.push_back(std::move(next));
  }
  if (log_->next_issue() != next_operation_) {  // a new process
    NETSUM_CHECK(next_operation_ == 0);
    next_operation_ = delivered_ = position_.index = log_->next_issue();
    ++tally_.events["succeeded_a_process"];
  }
  if (is_new && !plan().admits.empty()) take_position(resumption);
}

// Of a new process in its program: that of the others.
void WorkerHost::take_position(const stream::Resumption& resumption) {
  if (next_operation_ != 0) {
    const Position* known = nullptr;
    for (const bool ended : {true, false}) {
      members_.for_each([&](std::uint32_t other) {
        const Witness::Positions& its = witness_.positions[{place_.job, other}];
        const auto found = its.before.find(next_operation_);
        if (other != place_.rank && its.ended == ended && found != its.before.end()) known = &found->second;
      });
    }
    if (known == nullptr) throw Violation(name() + " begins where no other rank is");
    position_ = *known;
    delivered_ = position_.index;
  }
  came_in_ = resumption.boundary;
  if (came_in_) {
    position_.admittance.emplace(place_.rank, plan().workers, resumption);
  } else if (position_.admittance) {
    position_.admittance.emplace(place_.rank, plan().workers);
    for (std::uint32_t step = 0; step < position_.steps; ++step) position_.admittance->next(std::vector<std::int32_t>{1});
  }
  witness_.positions[{place_.job, place_.rank}] = {};
  keep_position();
}

void WorkerHost::keep_position() {
  if (!plan().admits.empty()) witness_.positions[{place_.job, place_.rank}].before[next_operation_] = position_;
}

// ---- operations

bool WorkerHost::must_admit() const {
  const std::vector<bool>& admits = plan().admits;
  return position_.admittance || (position_.index < admits.size() && admits[position_.index] && !position_.admitted);
}

void WorkerHost::schedule_issue(Time now) {
  const auto calls = static_cast<std::size_t>(std::count_if(
      under_way_.begin(), under_way_.end(), [](const UnderWay& each) { return !each.replay && each.lanes_remaining != 0; }));
  next_issue_ = never;
  if (!must_admit()) {
    next_issue_ = program_->next(position_.index, calls, now, random_);
  } else if (calls == 0 && !(position_.admittance && position_.admittance->lets_in())) {
    const bool again = !position_.admittance && position_.admits != 0;
    next_issue_ = now + (again ? plan().admit_pause : Duration::zero());
  }
}

// As collective/communicator.cc does with it.
void WorkerHost::issue_admittance(UnderWay& next) {
  if (!position_.admittance) {
    position_.admittance.emplace(place_.rank, plan().workers);
    position_.steps = 0;
  }
  const std::vector<std::int32_t> values = position_.admittance->values(!rank_->knocking().empty());
  next.admits = true;
  next.tensor.resize(values.size() * sizeof(std::int32_t));
  std::copy_n(std::as_bytes(std::span(values)).begin(), next.tensor.size(), next.tensor.begin());
  next.call.collective = values.empty() ? stream::Collective::barrier : stream::Collective::all_reduce;
  if (!values.empty()) next.call.dtype = DType::int32;
  next.call.elements = values.size();
  next.call.data = next.tensor.data();
}

void WorkerHost::end_admittance(const UnderWay& done, const RankSet& summed) {
  stream::Admittance& admittance = *position_.admittance;
  std::vector<std::int32_t> sums(done.call.elements);
  std::copy_n(done.tensor.begin(), done.tensor.size(), std::as_writable_bytes(std::span(sums)).begin());
  admittance.next(sums);
  ++position_.steps;
  if (!admittance.done()) return keep_position();
  const RankSet newcomers = admittance.newcomers(summed);
  if (position_.steps > 1 || came_in_) {
    witness_.introduced(place_.job, place_.rank, done.call.number, done.tensor, job_epochs_, summed);
    if (newcomers.contains(place_.rank) != std::exchange(came_in_, false))
      throw Violation(name() + " does not know whether it is new");
  }
  if (!newcomers.empty()) ++tally_.events["let_a_process_in"];
  position_.admittance.reset();
  position_.admitted = ++position_.admits > plan().admit_again || summed.size() == plan().workers;
  keep_position();
}

// Whether that is the program's next step.
bool WorkerHost::let_in(Time now) {
  if (!position_.admittance || !position_.admittance->lets_in()) return false;
  position_.admittance->next();
  ++position_.steps;
  keep_position();
  schedule_issue(now);
  return true;
}

void WorkerHost::issue(Time now) {
  UnderWay next;
  if (must_admit()) {
    issue_admittance(next);
  } else {
    Program::Call call = program_->make(position_.index, process());
    next.index = position_.index;
    position_ = {.index = next.index + 1};
    next.call = call.operation;
    next.tensor = std::move(call.tensor);
  }
  next.call.number = next_operation_++;
  next.sent = log_ ? log_->issue(next.call) : next.call;
  next.issued = now;
  next.deadline = after(now, plan().operation_deadline);
  next.lanes_remaining = std::max(1U, static_cast<std::uint32_t>(lanes_.size()));  // none: of a rank that is late
  under_way_.push_back(std::move(next));
  keep_position();
  schedule_issue(now);
}

void WorkerHost::submit(Lane& lane, Time now) {
  // As runtime/worker_engine.cc does.
  const auto held = [&](const UnderWay& operation) {
    return !late_.empty() && waits_for_all(operation) && !operation.has_result;
  };
  while (lane.queued < under_way_.size() && !held(under_way_[lane.queued]) &&
         lane.lane->submit(under_way_[lane.queued].sent, now, *lane.sink))
    ++lane.queued;
}

void WorkerHost::collect(Lane& lane, Time now) {
  for (const std::uint64_t number : lane.lane->take_completed()) {
    const auto done =
        std::find_if(under_way_.begin(), under_way_.end(), [&](const UnderWay& u) { return u.call.number == number; });
    if (done == under_way_.end() || done->lanes_remaining == 0)
      throw Violation(name() + " completed operation " + std::to_string(number) + " twice");
    if (--done->lanes_remaining != 0) continue;
    const RankSet summed = log_ ? log_->finish(number) : RankSet();
    if (done->replay) continue;
    if (done->admits) {
      end_admittance(*done, summed);
      continue;
    }
    stream::Operation call = done->call;
    call.number = done->index;
    witness_.delivered(place_.job, place_.rank, call, done->tensor, job_epochs_, summed);
    program_->completed(call, done->tensor, now);
    ++delivered_;
    free_since_ = now;
  }
  // A lane may complete operations out of order; they are removed from the front.
  while (!under_way_.empty() && under_way_.front().lanes_remaining == 0) {
    under_way_.pop_front();
    for (Lane& each : lanes_) --each.queued;
    if (next_issue_ == never) schedule_issue(now);
  }
}

void WorkerHost::turn(std::span<const Datagram> datagrams, Time now) {
  if (now >= next_launch_) launch(now);
  if (rank_ && now >= reached_by_) {
    reach(now);
    carry_out(now);
  }
  std::erase_if(looked_, [&](const auto& entry) {
    const bool late = now >= entry.second.until;
    if (late && rank_) rank_->on_looked(entry.second.number, false, now);
    return late;
  });
  if (rank_ && !rank_->running()) {
    if (rank_->aside()) static_cast<void>(let_in(now));
    while (rank_->aside() && now >= next_issue_) {
      ++tally_.events["called_late"];
      issue(now);
    }
    rank_->on_timer(now);
    carry_out(now);
  }
  if (!rank_) return;
  if (probing_) {
    probe(datagrams, now);
    return carry_out(now);
  }
  if (!rank_->running()) return;
  serve(datagrams, now);
  if (let_in(now)) {
    rank_->let_in(now);
    carry_out(now);
    if (!running()) return;
  }
  report_failures(now);
  rank_->on_timer(now);
  carry_out(now);
  if (!running() || !program_->ended(delivered_) || !parted(now)) return;
  surroundings_.say(id(), name() + " has every result");
  if (attempt_ > 1) ++tally_.events["recovered_after_an_error"];
  rank_->leave();
  carry_out(now);
  close_lanes();
}

void WorkerHost::serve(std::span<const Datagram> datagrams, Time now) {
  for (Lane& lane : lanes_) {
    views_.clear();
    for (const Datagram& datagram : datagrams) {
      if (datagram.to == lane.self) views_.push_back(view_of(datagram));
    }
    if (!views_.empty()) lane.lane->on_packets(views_, now, *lane.sink);
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
    if (scenario_.checked) lane.lane->check();
  }
}

// Whether no other rank needs this one any more (collective/communicator.cc).
bool WorkerHost::parted(Time now) {
  if (parting_ == never) parting_ = now + plan().operation_deadline;
  // Another rank may need a replay.
  const bool drained =
      under_way_.empty() && std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.lane->drained(); });
  return drained || now >= parting_ || rank_->left().contains(after_this());
}

// The rank that gets what this one sends, in protocols in which one rank alone does.
std::uint32_t WorkerHost::after_this() const {
  if (members_.empty()) return (place_.rank + 1) % plan().workers;
  return members_.at_place((members_.place_of(place_.rank) + 1) % members_.size());
}

// ---- for the session machine

void WorkerHost::report_failures(Time now) {
  for (Lane& lane : lanes_) {
    const auto failure = lane.lane->failure();
    if (!failure || lane.failure_seen) continue;
    lane.failure_seen = true;
    protocol::LaneFailure told = *failure;
    for (std::uint32_t* const rank : {&told.first_rank, &told.second_rank}) {
      if (!members_.empty() && *rank < members_.size()) *rank = members_.at_place(*rank);
    }
    rank_->on_lane_failure(lane.site, told, now);
    if (!rank_->running()) return;
  }
}

std::string WorkerHost::call(std::uint64_t operation) {
  const auto own =
      std::find_if(under_way_.begin(), under_way_.end(), [&](const UnderWay& u) { return u.call.number == operation; });
  return own == under_way_.end() ? "" : stream::to_string(own->call);
}

std::optional<WorkerHost::Overdue> WorkerHost::overdue(Time now) {
  const auto late = std::find_if(under_way_.begin(), under_way_.end(),
                                 [&](const UnderWay& u) { return u.lanes_remaining != 0 && now >= u.deadline; });
  if (late == under_way_.end()) return std::nullopt;
  return Overdue{late->call.number, stream::to_string(late->call), plan().operation_deadline};
}

session::Pace WorkerHost::pace(Time now) {
  session::Pace pace{false, next_operation_, std::chrono::duration_cast<std::chrono::milliseconds>(now - free_since_)};
  for (const UnderWay& operation : under_way_) {
    if (operation.lanes_remaining == 0 || operation.replay) continue;
    const Time since = waits_for_all(operation) ? now : operation.issued;
    return {true, operation.call.number, std::chrono::duration_cast<std::chrono::milliseconds>(now - since)};
  }
  return pace;
}

std::optional<session::Stall> WorkerHost::oldest_stall() {
  std::optional<session::Stall> oldest;
  for (const Lane& lane : lanes_) {
    const auto stall = lane.lane->oldest_stall();
    if (!stall) continue;
    if (!oldest || std::pair(stall->operation, stall->chunk) < std::pair(oldest->operation, oldest->chunk))
      oldest = session::Stall{lane.site, stall->operation, stall->chunk,
                              members_.empty() ? stall->missing : members_.at_places(stall->missing), stall->told};
  }
  return oldest;
}

// ---- the end

void WorkerHost::say_failed(const Error& error) {
  surroundings_.say(id(), name() + " ends: " + error.what());
  std::optional<std::uint64_t> operation;
  if (!under_way_.empty()) operation = under_way_.front().call.number;
  witness_.failed(place_.job, place_.rank, error, operation);
}

void WorkerHost::carry_out(const session::Rank::Suspend& suspend, Time now) {
  say_failed(suspend.cause);
  const Time next = next_issue_;
  close_lanes();
  if (plan().straggler_deadline.count() == 0) return;
  next_issue_ = next;  // the program goes on
  if (next_issue_ == never) schedule_issue(now);
}

void WorkerHost::carry_out(const session::Rank::Retry& retry, Time) {
  say_failed(retry.error);
}

void WorkerHost::carry_out(const session::Rank::Warn&, Time) {}

void WorkerHost::carry_out(const session::Rank::End& end, Time now) {
  say_failed(end.error);
  close_lanes();
  under_way_.clear();
  if (log_) {
    log_.reset();
    next_operation_ = delivered_ = 0;
    position_ = {};
    came_in_ = false;
    witness_.positions[{place_.job, place_.rank}].ended = true;
    ++restarts_;
    witness_.forgot(place_.job, place_.rank);
  }
  if (attempt_ < plan().attempts) {
    next_launch_ = now + random_.between(Duration(std::chrono::milliseconds(10)), Duration(std::chrono::seconds(2)));
  }
}

void WorkerHost::count_events(Tally& tally) const {
  for (const Lane& lane : lanes_) lane.lane->count_events(tally, scenario_.security != PacketSecurity::none);
}

std::vector<CounterValue> WorkerHost::counters() const {
  std::vector<CounterValue> sums;
  for (const Lane& lane : lanes_) {
    std::vector<CounterValue> counters = lane.lane->counters();
    if (sums.empty()) {
      sums = std::move(counters);
      continue;
    }
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i].value += counters[i].value;
  }
  return sums;
}

protocol::LaneTotals WorkerHost::totals() const {
  protocol::LaneTotals sum;
  for (const Lane& lane : lanes_) {
    const protocol::LaneTotals totals = lane.lane->totals();
    sum.retransmissions += totals.retransmissions;
    sum.window += totals.window;
  }
  return sum;
}

void WorkerHost::close_lanes() {
  count_events(tally_);
  lanes_.clear();
  next_issue_ = parting_ = never;
}

void WorkerHost::die() {
  witness_.positions[{place_.job, place_.rank}].ended = true;
  witness_.forgot(place_.job, place_.rank);
  if (rank_ && rank_->joining()) {
    for (std::size_t i = 0; i < sites_.size(); ++i) {
      if (sites_[i].join != 0) call(i, next_call_++, CancelCall{sites_[i].join});
    }
  }
  if (rank_ && rank_->running() && plan().survivors != 0 && random_.chance(0.7)) {  // else its host dies, and says nothing
    for (const auto& [number, closed] : connected_)
      surroundings_.call(id(), aggregators_[number], {next_call_++, id(), closed});
  }
  close_lanes();
  rank_.reset();
  next_launch_ = reached_by_ = never;
}

Time WorkerHost::next_wake() const {
  if (!rank_) return next_launch_;
  Time next = std::min({rank_->next_timeout(), parting_, reached_by_});
  if (rank_->running() || rank_->aside()) next = std::min(next, next_issue_);
  for (const auto& [number, looked] : looked_) next = std::min(next, looked.until);
  if (probing_) {
    for (const Site& site : sites_) next = std::min(next, site.probe->next_timeout());
  }
  for (const Lane& lane : lanes_) next = std::min(next, lane.lane->next_timeout());
  for (const UnderWay& operation : under_way_) {
    if (operation.lanes_remaining != 0) next = std::min(next, operation.deadline);
  }
  return next;
}

}  // namespace netsum::sim
