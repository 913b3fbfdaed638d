#include "sim/cluster.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "sim/aggregator_host.h"
#include "sim/clock.h"
#include "sim/drawn_calls.h"
#include "sim/event_queue.h"
#include "sim/network.h"
#include "sim/promises.h"
#include "sim/switch_host.h"
#include "sim/trace.h"
#include "sim/verdict.h"
#include "sim/worker_host.h"

namespace netsum::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t socket_buffer = 512;              // datagrams held for a host that does not run
constexpr Duration leftover = std::chrono::minutes(1);  // after the last rank has ended: by then all resources must be free

class Cluster final : public Surroundings, public Witness {
 public:
  Cluster(const Scenario& scenario, const RunOptions& options, Outcome& outcome)
      : scenario_(scenario),
        outcome_(outcome),
        tally_(outcome.tally),
        own_protocol_(options.protocol == nullptr ? make_protocol(scenario.settings.protocol) : nullptr),
        protocol_(options.protocol == nullptr ? *own_protocol_ : *options.protocol),
        tap_(protocol_.tap(scenario)),
        trace_(options.text, options.pcap),
        verdict_(scenario, protocol_.names_missing()),
        forgeries_(derive(scenario.seed, 0xf0)) {
    std::size_t hosts = scenario.aggregators + scenario.parent_of_switch.size();
    first_worker_ = static_cast<HostId>(hosts);
    for (const JobPlan& job : scenario.jobs) hosts += job.workers;
    nodes_.resize(hosts + 1);
    stranger_ = static_cast<HostId>(hosts);
    network_.emplace(scenario, hosts + 1, tally_);
    Random random(derive(scenario.seed, 0xc10c));
    for (Node& node : nodes_) {
      const double rate = scenario.skew * (2 * random.unit() - 1);
      if (rate != 0) tally_.count(Fault::skew);
      node.clock = Clock(rate, scenario.skew == 0 ? seconds(1) : Duration(random.between(seconds(1), seconds(100'000))));
    }
    for (HostId id = 0; id < scenario.aggregators; ++id) nodes_[id].host = make_aggregator(id);
    for (HostId id = scenario.aggregators; id < first_worker_; ++id) nodes_[id].host = make_switch(id);
    HostId id = first_worker_;
    for (std::uint32_t job = 0; job < scenario.jobs.size(); ++job) {
      first_host_.push_back(id);
      for (std::uint32_t rank = 0; rank < scenario.jobs[job].workers; ++rank, ++id) {
        nodes_[id].place = {job, rank, 0, 0, first_worker_port};
        nodes_[id].worker = true;
        const Time start{Duration(random.between(std::chrono::microseconds(0), milliseconds(2)))};
        nodes_[id].host = make_worker(id, start);
        nodes_[id].boot = start;
      }
    }
    for (std::size_t i = 0; i < scenario.node_faults.size(); ++i) push(scenario.node_faults[i].at, NodeFaultDue{i});
    if (scenario.lasting) push(scenario.lasting->at, LastingFaultDue{});
    for (const JobPlan& job : scenario.jobs) has_.emplace_back(job.workers, std::vector<bool>(job.calls.size()));
    promises_ = promises(scenario, protocol_);
    for (std::size_t i = 0; i < promises_.size(); ++i) push(promises_[i].by, PromiseDue{i});
    for (HostId host = 0; host < nodes_.size(); ++host) schedule(host);
  }

  void run() {
    while (!queue_.empty() && !all_ended()) step();
    const Time end = now_ + leftover;
    while (!queue_.empty() && queue_.first().at <= end) step();
    if (!all_ended()) throw Violation("a rank waits for ever");
    for (const Promise& promise : promises_) check(promise);
    for (HostId id = 0; id < scenario_.aggregators; ++id) {
      if (nodes_[id].host) aggregator(id).check_idle();
    }
    for (HostId id = scenario_.aggregators; id < first_worker_; ++id) {
      if (nodes_[id].host) switch_below(id).check_idle();
    }
  }

  // Also after a violation.
  void close() {
    for (HostId id = 0; id < scenario_.aggregators; ++id) {
      if (nodes_[id].host) aggregator(id).count_events(tally_);
    }
    for (HostId id = scenario_.aggregators; id < first_worker_; ++id) {
      if (nodes_[id].host) switch_below(id).count_events(tally_);
    }
    for (HostId id = first_worker_; id < stranger_; ++id) {
      if (nodes_[id].host) worker(id).count_events(tally_);
    }
    tap_->count_events(tally_);
    trace_.fold(tally_.packets);
    tally_.virtual_seconds = std::chrono::duration<double>(now_.time_since_epoch()).count();
    outcome_.trace_hash = trace_.hash();
    for (const JobPlan& job : scenario_.jobs) {
      double turns = 0;
      for (const auto& call : job.calls) {
        const double per_turn =
            static_cast<double>(job.slots) * scenario_.lanes * scenario_.aggregators * job.packet_elements;
        turns += std::ceil(static_cast<double>(stream::wire_elements(call)) / per_turn);
      }
      outcome_.turns_of_window = std::max(outcome_.turns_of_window, turns);
    }
  }

 private:
  struct ArrivalDue {
    HostId to;
    Datagram datagram;
  };
  struct TurnDue {
    HostId host;
  };
  struct CallDue {
    HostId to;
    ControlCall call;
  };
  struct ReplyDue {
    HostId to;
    ControlReply reply;
  };
  struct NodeFaultDue {
    std::size_t index;
  };
  struct LastingFaultDue {};
  struct PromiseDue {
    std::size_t index;
  };
  struct BypassEnds {
    HostId host;
    std::uint32_t life;
  };
  struct RestartDue {
    HostId host;
    bool same_ports;
  };
  struct ResumeDue {
    HostId host;
  };
  using What = std::variant<ArrivalDue, TurnDue, CallDue, ReplyDue, NodeFaultDue, BypassEnds, RestartDue, ResumeDue,
                            LastingFaultDue, PromiseDue>;
  struct Node {
    std::unique_ptr<Host> host;  // null: down
    Clock clock{0, Duration::zero()};
    bool worker = false;
    WorkerHost::Place place;
    Time boot{};
    std::uint32_t life = 0;
    Time ran_since = never;  // a worker: when its attempt began
    Time paused_until{};
    Time silent_until{};  // answers no call until then
    Duration slow_by{};   // delay of its answers to calls
    Duration turns_apart{};
    Time next_turn{};
    Time turn_at = never;  // the earliest queued turn
    std::vector<Datagram> inbox;
    std::vector<std::variant<ControlCall, ControlReply>> mail;  // while paused
  };

  [[nodiscard]] std::unique_ptr<Host> make_aggregator(HostId id) {
    return std::make_unique<AggregatorHost>(*this, id, scenario_, protocol_, nodes_[id].life);
  }
  [[nodiscard]] std::unique_ptr<Host> make_switch(HostId id) {
    return std::make_unique<SwitchHost>(*this, id, scenario_, protocol_, nodes_[id].life);
  }
  [[nodiscard]] std::unique_ptr<Host> make_worker(HostId id, Time start) {
    const WorkerHost::Place& place = nodes_[id].place;
    auto calls = std::make_unique<DrawnCalls>(scenario_, place.job, place.rank, *this, tally_);
    return std::make_unique<WorkerHost>(*this, id, scenario_, protocol_, *this, tally_, place, std::move(calls),
                                        nodes_[id].clock.local(start));
  }
  [[nodiscard]] AggregatorHost& aggregator(HostId id) { return static_cast<AggregatorHost&>(*nodes_[id].host); }
  [[nodiscard]] SwitchHost& switch_below(HostId id) { return static_cast<SwitchHost&>(*nodes_[id].host); }
  void set_bypass(HostId id, bool on) {
    if (id < scenario_.aggregators) {
      aggregator(id).bypass(on);
    } else {
      switch_below(id).bypass(on);
    }
  }
  [[nodiscard]] WorkerHost& worker(HostId id) { return static_cast<WorkerHost&>(*nodes_[id].host); }

  [[nodiscard]] bool all_ended() {
    for (HostId id = first_worker_; id < stranger_; ++id) {
      if (restarting_ != 0 || (nodes_[id].host && !worker(id).ended())) return false;
    }
    return true;
  }

  // ---- the clock

  void push(Time at, What what) {
    if (unused_.empty()) {
      unused_.push_back(whats_.size());
      whats_.emplace_back();
    }
    const std::size_t place = unused_.back();
    unused_.pop_back();
    whats_[place] = std::move(what);
    queue_.add(at, place);
  }

  void schedule(HostId id) {
    Node& node = nodes_[id];
    if (!node.host) return;
    const Time wake = node.clock.global(node.host->next_wake());
    schedule(id, node.inbox.empty() ? wake : std::min(wake, now_ + scenario_.coalesce));
  }
  void schedule(HostId id, Time at) {
    Node& node = nodes_[id];
    at = std::max({at, node.paused_until, node.next_turn, now_});
    if (at == never || at >= node.turn_at) return;
    node.turn_at = at;
    push(at, TurnDue{id});
  }

  // Called after every activity of a host: records the attempt's begin, and schedules the next turn.
  void settle(HostId id) {
    Node& node = nodes_[id];
    if (node.worker && node.host) {
      const bool running = worker(id).running();
      if (running && node.ran_since == never) node.ran_since = now_;
      if (!running) node.ran_since = never;
    }
    schedule(id);
  }

  void step() {
    const auto event = queue_.take();
    What& what = whats_[event.what];
    now_ = event.at;
    trace_.fold(static_cast<std::uint64_t>(now_.time_since_epoch().count()) ^ std::uint64_t{what.index()} << 60);
    std::visit([&](auto& due) { handle(due); }, what);
    what = TurnDue{};  // frees what it holds
    unused_.push_back(event.what);
  }

  void handle(ArrivalDue& due) {
    Node& node = nodes_[due.to];
    if (!node.host || node.inbox.size() >= socket_buffer) return;
    trace_.fold(due.datagram.bytes.size() << 16 | due.to);
    node.inbox.push_back(std::move(due.datagram));
    schedule(due.to, now_ + scenario_.coalesce);
  }

  void handle(TurnDue& due) {
    Node& node = nodes_[due.host];
    if (!node.host || node.turn_at != now_) return;
    node.turn_at = never;
    if (now_ < node.paused_until) return schedule(due.host);
    node.next_turn = now_ + node.turns_apart;
    const std::vector<Datagram> arrived = std::exchange(node.inbox, {});
    node.host->turn(arrived, node.clock.local(now_));
    settle(due.host);
  }

  void handle(CallDue& due) {
    Node& node = nodes_[due.to];
    if (!node.host || now_ < node.silent_until) return;
    if (now_ < node.paused_until) return void(node.mail.emplace_back(std::move(due.call)));
    node.host->on_call(due.call, node.clock.local(now_));
    settle(due.to);
  }

  void handle(ReplyDue& due) {
    Node& node = nodes_[due.to];
    if (!node.host) return;
    if (now_ < node.paused_until) return void(node.mail.emplace_back(std::move(due.reply)));
    node.host->on_reply(due.reply, node.clock.local(now_));
    settle(due.to);
  }

  void handle(ResumeDue& due) {
    Node& node = nodes_[due.host];
    if (now_ < node.paused_until) return;
    for (auto& item : std::exchange(node.mail, {})) {
      if (!node.host) break;
      if (const auto* call = std::get_if<ControlCall>(&item)) {
        node.host->on_call(*call, node.clock.local(now_));
      } else {
        node.host->on_reply(std::get<ControlReply>(item), node.clock.local(now_));
      }
    }
    settle(due.host);
  }

  // ---- faults of nodes

  // All its processes have come to their end, and none is started again.
  [[nodiscard]] bool is_over(std::uint32_t job) {
    const HostId first = first_host_[job];
    for (HostId id = first; id < first + scenario_.jobs[job].workers; ++id) {
      if (!nodes_[id].host || !worker(id).ended()) return false;
    }
    return true;
  }

  void handle(NodeFaultDue& due) {
    const NodeFault& fault = scenario_.node_faults[due.index];
    const HostId site = fault.site + (fault.below ? scenario_.aggregators : 0);
    const HostId rank = first_host_[fault.job] + fault.rank;
    const HostId victim = fault.aggregator ? site : rank;
    if (victim >= first_worker_ && is_over(fault.job)) return;
    if (fault.kind == Fault::partition) {
      if (!nodes_[rank].host) return;
      tally_.count(Fault::partition);
      trace_.line(now_,
                  "the link " + who(fault.outward ? rank : site) + " -> " + who(fault.outward ? site : rank) + " is dead");
      network_->cut(fault.outward ? rank : site, fault.outward ? site : rank, now_ + fault.lasts);
      verdict_.rank_disturbed(fault.job, fault.rank);
      return;
    }
    Node& node = nodes_[victim];
    if (!node.host) return;
    tally_.count(fault.kind);
    trace_.line(now_, who(victim) + what_happens(fault.kind));
    if (fault.kind == Fault::intrude) return intrude(victim, fault);
    if (fault.below && !protocol_.rules().switches_needed) {
      // Soft state: its loss excuses no error.
    } else if (fault.aggregator) {
      verdict_.aggregator_disturbed();
    } else {
      verdict_.rank_disturbed(fault.job, fault.rank);
    }
    if (fault.kind == Fault::bypass) {
      set_bypass(victim, true);
      push(now_ + fault.lasts, BypassEnds{victim, node.life});
      return;
    }
    if (fault.kind == Fault::silent_switch) {
      node.silent_until = now_ + fault.lasts;
      return;
    }
    if (fault.kind == Fault::slow_switch) {
      node.slow_by = fault.lasts;
      return;
    }
    if (fault.kind == Fault::no_memory) return aggregator(victim).lack_memory(node.clock.local(now_ + fault.lasts));
    if (fault.kind == Fault::pause) {
      node.paused_until = std::max(node.paused_until, now_ + fault.lasts);
      push(node.paused_until, ResumeDue{victim});
      return;
    }
    if (fault.below) {
      switch_below(victim).count_events(tally_);
      ++tally_.events["switch_died"];
    } else if (fault.aggregator) {
      aggregator(victim).count_events(tally_);
    } else {
      if (worker(victim).inside_operation()) ++tally_.events["died_inside_operation"];
      if (worker(victim).running()) died_.push_back({fault.job, now_, notice_bound});
      node.ran_since = never;
      node.place.attempts_used = worker(victim).attempts_used();
      worker(victim).die();
    }
    node.host.reset();
    node.inbox.clear();
    node.mail.clear();
    node.paused_until = Time{};
    node.turn_at = never;
    ++restarting_;
    push(now_ + fault.lasts, RestartDue{victim, fault.same_ports});
  }

  // ---- faults that never heal

  void handle(LastingFaultDue&) {
    const LastingFault& fault = *scenario_.lasting;
    const JobPlan& job = scenario_.jobs[fault.job];
    const HostId rank = first_host_[fault.job] + fault.rank;
    const std::uint32_t at = job.switch_of_rank.empty() ? UINT32_MAX : job.switch_of_rank[fault.rank];
    const HostId site = at == UINT32_MAX ? fault.site : switch_host(scenario_, at);
    const auto ways = [&](HostId near, HostId far, const auto& what) {
      if (fault.outward) what(near, far);
      if (fault.inward) what(far, near);
    };
    tally_.count(fault.kind);
    switch (fault.kind) {
      case Fault::slow_rank:
        nodes_[rank].turns_apart = fault.turn;
        return trace_.line(now_, who(rank) + " is slow from now on");
      case Fault::lossy_lane: {
        const std::uint32_t parent = at == UINT32_MAX ? UINT32_MAX : scenario_.parent_of_switch[at];
        const HostId above = parent == UINT32_MAX ? fault.site : switch_host(scenario_, parent);
        ways(fault.trunk ? site : rank, fault.trunk ? above : site, [&](HostId from, HostId to) {
          trace_.line(now_, "lane " + std::to_string(fault.lane) + " from " + who(from) + " to " + who(to) +
                                " loses every third packet");
          network_->lose_every(3, from, to, static_cast<std::uint16_t>(aggregator_port + fault.lane), fault.kind);
        });
        return;
      }
      default:
        break;
    }
    verdict_.rank_disturbed(fault.job, fault.rank);
    for (std::uint32_t each = 0; each < job.workers; ++each) {
      WorkerHost& other = worker(first_host_[fault.job] + each);
      began_whole_ = began_whole_ && (other.running() || other.ended());
    }
    for (HostId other = 0; other < first_worker_; ++other) {
      if (other != site && fault.reach != LastingFault::Reach::cable) continue;
      ways(rank, other, [&](HostId from, HostId to) {
        trace_.line(now_, "the link " + who(from) + " -> " + who(to) + " is dead");
        if (fault.reach == LastingFault::Reach::packets) {
          network_->lose_every(1, from, to, 0, fault.kind);
        } else {
          network_->cut(from, to, never);
        }
      });
    }
    const bool noticed = fault.outward || protocol_.names_missing();
    if (fault.reach == LastingFault::Reach::cable && noticed && worker(rank).running())
      died_.push_back({fault.job, now_, fault.outward ? notice_bound : deaf_notice_bound});
  }

  void handle(PromiseDue& due) { check(promises_[due.index]); }

  void check(const Promise& promise) {
    // No job begins without a rank, survivors or not.
    if (promise.results != 0 && !began_whole_ && promise.job == scenario_.lasting->job) return;
    const std::vector<bool>& has = has_[promise.job][promise.rank];
    const std::string what = scenario_.jobs[promise.job].name + " rank " + std::to_string(promise.rank);
    if (promise.results == 0 && !worker(first_host_[promise.job] + promise.rank).ended())
      throw Violation(what + " has not ended by the time that was promised");
    for (std::size_t call = 0; call < promise.results; ++call) {
      if (!has[call])
        throw Violation(what + " has no result of operation " + std::to_string(call) + " by the time that was promised");
    }
  }

  static const char* what_happens(Fault kind) {
    switch (kind) {
      case Fault::pause:
        return " stops for a while";
      case Fault::bypass:
        return " lets packets pass";
      case Fault::silent_switch:
        return " answers no calls";
      case Fault::slow_switch:
        return " answers calls late";
      case Fault::no_memory:
        return " has no memory for jobs that begin";
      case Fault::intrude:
        return " hears from an intruder";
      default:
        return " dies";
    }
  }

  // Another tenant that knows everything about the jobs. Its actions excuse no errors.
  void intrude(HostId to, const NodeFault& fault) {
    const JobPlan& plan = scenario_.jobs[fault.job];
    const auto say = [&](auto what) {
      const std::uint64_t number = ++intrusions_;
      call(stranger_, to, {number, stranger_, std::move(what), std::string(intruder)});
      return number;
    };
    for (std::uint32_t rank = 0; rank <= plan.workers; ++rank) {
      session::JoinRequest request;
      request.protocol_version = protocol_.rules().version;
      request.protocol = protocol_.rules().name;
      request.job = plan.name;
      request.tenant = intruder;
      request.rank = rank;
      request.world_size = plan.workers + 2;  // so it never completes
      request.packet_elements = plan.packet_elements;
      request.slots_fixed = plan.slots;
      for (std::uint32_t lane = 0; lane < scenario_.lanes; ++lane) {
        request.endpoints.push_back(endpoint_of(stranger_, static_cast<std::uint16_t>(stranger_port + lane)));
      }
      protocol_.complete(request, scenario_, plan, 0);
      const std::uint64_t join = say(JoinCall{std::move(request)});
      push(now_ + fault.lasts, CallDue{to, {++intrusions_, stranger_, CancelCall{join}, std::string(intruder)}});
    }
    for (const LeaveCall& member : aggregator(to).memberships()) {
      say(BeatCall{member.job_epoch, member.rank, member.rank_epoch});
      say(member);
    }
  }

  void handle(BypassEnds& due) {
    const Node& node = nodes_[due.host];
    if (node.host && node.life == due.life) set_bypass(due.host, false);
  }

  void handle(RestartDue& due) {
    Node& node = nodes_[due.host];
    --restarting_;
    ++node.life;
    if (node.worker) {
      tally_.count(Fault::restart);
      node.place.life = node.life;
      if (!due.same_ports) node.place.first_port = static_cast<std::uint16_t>(node.place.first_port + ports_per_life);
      if (std::any_of(nodes_.begin(), nodes_.end(), [&](const Node& other) {
            return other.host && other.worker && other.place.job == node.place.job &&
                   static_cast<const WorkerHost&>(*other.host).inside_operation();
          })) {
        ++tally_.events["restarted_inside_operation"];
      }
      node.host = make_worker(due.host, now_);
    } else {
      tally_.count(Fault::aggregator_restart);
      node.host = due.host < scenario_.aggregators ? make_aggregator(due.host) : make_switch(due.host);
    }
    trace_.line(now_, who(due.host) + " is up again");
    schedule(due.host);
  }

  // ---- Surroundings

  [[nodiscard]] bool live(HostId a, HostId b) {
    const HostId id = std::max(a, b);  // the worker
    return id < stranger_ && nodes_[id].worker && nodes_[id].host && worker(id).running();
  }

  void send(HostId from, const Endpoint& source, const Endpoint& destination, std::span<const std::byte> bytes) override {
    const HostId to = host_of(destination);
    if (to >= nodes_.size()) throw Violation("a datagram to nobody");
    if (scenario_.checked) tap_->on_send(source, destination, bytes);
    if (to == stranger_) return;  // answers to a stranger
    const bool alive = live(from, to);
    transfer(from, to, source, destination, bytes, alive);
    if (scenario_.links.forge > 0 && scenario_.settings.limits.kinds.contains(Fault::forge) &&
        forgeries_.chance(scenario_.links.forge)) {
      Random random(forgeries_.next());
      const Forgery forgery = protocol_.forge(bytes, random);
      tally_.count(Fault::forge);
      if (alive) ++tally_.live_faults;
      const Endpoint stranger = endpoint_of(stranger_, stranger_port);
      transfer(stranger_, to, forgery.spoofed ? source : stranger, destination, forgery.bytes, false);
    }
  }

  void transfer(HostId from, HostId to, const Endpoint& source, const Endpoint& destination,
                std::span<const std::byte> bytes, bool alive) {
    const auto arrivals = network_->send(now_, from, to, source, destination, bytes, alive);
    if (trace_.verbose()) {
      std::string fate = network_->last_fate();
      if (arrivals.empty()) fate = "LOST (" + fate + ")";
      trace_.line(
          now_, who(from) + " -> " + who(to) + "  " + protocol_.describe(bytes) + (fate.empty() ? "" : "  [" + fate + "]"));
      trace_.datagram(now_, source, destination, bytes, !arrivals.empty() && arrivals.front().datagram.marked);
    }
    for (auto& arrival : arrivals) push(arrival.at, ArrivalDue{to, std::move(arrival.datagram)});
  }

  void call(HostId from, HostId to, ControlCall call) override {
    const auto fate = network_->control(now_, from, to);
    if (std::holds_alternative<JoinCall>(call.what) && (network_->is_dead(from, to) || network_->is_dead(to, from))) return;
    // Joins and their cancellation travel over a connection that keeps their order, and whose failure is detected.
    if (std::holds_alternative<JoinCall>(call.what) || std::holds_alternative<CancelCall>(call.what)) {
      Time& last = connections_[{from, to}];
      last = std::max(last, now_ + fate.delay);
      return push(last, CallDue{to, std::move(call)});
    }
    if (fate.lost) return from < first_worker_ || from == stranger_ ? void() : disturbed(from);
    if (fate.repeated) push(now_ + 2 * fate.delay, CallDue{to, call});
    push(now_ + fate.delay, CallDue{to, std::move(call)});
  }

  void reply(HostId from, HostId to, ControlReply reply) override {
    if (to == stranger_) return;
    auto fate = network_->control(now_, from, to);
    fate.delay += nodes_[from].slow_by;
    if (fate.lost && from < first_worker_ && to < first_worker_) return;  // the caller repeats it
    if (fate.lost && std::holds_alternative<session::HeartbeatReply>(reply.what)) return disturbed(to);
    if (network_->is_dead(from, to)) return;
    push(now_ + fate.delay, ReplyDue{to, std::move(reply)});
  }

  void disturbed(HostId rank) { verdict_.rank_disturbed(nodes_[rank].place.job, nodes_[rank].place.rank); }

  void say(HostId host, const std::string& what) override {
    if (trace_.verbose()) trace_.line(now_, who(host) + ": " + what);
  }

  // ---- Witness

  void began(std::uint32_t job, std::uint32_t rank, std::span<const std::uint64_t> epochs, std::uint32_t process,
             const RankSet& members, std::uint32_t life) override {
    verdict_.began(job, rank, epochs, process, members, life);
    if (!members.empty() && members.size() < scenario_.jobs[job].workers) ++tally_.events["went_on_without_a_rank"];
  }
  void introduced(std::uint32_t job, std::uint32_t rank, std::uint64_t number, std::span<const std::byte> here_before,
                  std::span<const std::uint64_t> epochs, const RankSet& summed) override {
    verdict_.introduced(job, rank, number, here_before, epochs, summed);
  }
  void forgot(std::uint32_t job, std::uint32_t rank) override { verdict_.forgot(job, rank); }

  void delivered(std::uint32_t job, std::uint32_t rank, const stream::Operation& call, std::span<const std::byte> result,
                 std::span<const std::uint64_t> epochs, const RankSet& summed) override {
    verdict_.delivered(job, rank, call, result, epochs, summed);
    if (!summed.empty() && summed.size() < scenario_.jobs[job].workers) ++tally_.events["summed_without_a_rank"];
    has_[job][rank][call.number] = true;
    ++tally_.operations;
    for (std::size_t i = 0; i + 8 <= result.size(); i += 8) trace_.fold(load_le<std::uint64_t>(result.data() + i));
  }

  void failed(std::uint32_t job, std::uint32_t rank, const Error& error, std::optional<std::uint64_t>) override {
    verdict_.failed(job, rank, error);
    check_noticed(job, rank);
    ++tally_.errors;
    ++tally_.events[std::string("error_") + netsum::to_string(error.code())];
  }

  // If nodes die and there are no other faults, every rank that ran together with a dead worker notices in time.
  void check_noticed(std::uint32_t job, std::uint32_t rank) const {
    const Profile profile = scenario_.settings.profile;
    if ((profile != Profile::crash && profile != Profile::dead_link) || scenario_.links.control_loss > 0) return;
    const Time began = nodes_[first_host_[job] + rank].ran_since;
    for (const Death& death : died_) {
      if (death.job == job && death.at > began && now_ > death.at + death.noticed_within) {
        throw Violation(scenario_.jobs[job].name + " rank " + std::to_string(rank) +
                        " noticed too late that a rank had died");
      }
    }
  }

  void straggled() override { tally_.count(Fault::straggle); }

  [[nodiscard]] std::string who(HostId id) const {
    if (id == stranger_) return "stranger";
    if (!nodes_[id].worker) return (id < scenario_.aggregators ? "aggregator" : "switch") + std::to_string(id);
    return scenario_.jobs[nodes_[id].place.job].name + "/" + std::to_string(nodes_[id].place.rank);
  }

  struct Death {
    std::uint32_t job;
    Time at;
    Duration noticed_within;
  };

  const Scenario& scenario_;
  Outcome& outcome_;
  Tally& tally_;
  const std::unique_ptr<Protocol> own_protocol_;
  const Protocol& protocol_;
  std::unique_ptr<Tap> tap_;
  Trace trace_;
  Verdict verdict_;
  Random forgeries_;
  std::optional<Network> network_;
  std::map<std::pair<HostId, HostId>, Time> connections_;  // the latest arrival of an ordered call
  std::vector<Node> nodes_;                                // aggregators, switches, workers by job and rank, the stranger
  std::vector<HostId> first_host_;
  HostId first_worker_ = 0;
  HostId stranger_ = 0;
  std::uint32_t restarting_ = 0;
  std::uint64_t intrusions_ = 0;                     // calls
  std::vector<Death> died_;                          // workers of running jobs
  std::vector<std::vector<std::vector<bool>>> has_;  // results, by job, rank and call
  std::vector<Promise> promises_;
  bool began_whole_ = true;        // the job with a dead link, before it died
  EventQueue<std::size_t> queue_;  // places in whats_
  std::deque<What> whats_;         // places stay where they are
  std::vector<std::size_t> unused_;
  Time now_{};
};

}  // namespace

Outcome run(const Scenario& scenario, const RunOptions& options) {
  Outcome outcome;
  try {
    Cluster cluster(scenario, options, outcome);
    try {
      cluster.run();
    } catch (const std::exception& violation) {
      outcome.failure = violation.what();
    }
    cluster.close();
  } catch (const std::exception& error) {
    outcome.failure = error.what();
  }
  return outcome;
}

}  // namespace netsum::sim
