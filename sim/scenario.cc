#include "sim/scenario.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "sim/labels.h"
#include "sim/protocol.h"
#include "sim/random.h"

namespace netsum::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using stream::Collective;
using stream::Operation;

struct LimitField {
  const char* name;
  std::uint64_t Limits::*value;
};
constexpr LimitField limit_fields[] = {
    {"workers", &Limits::workers},         {"jobs", &Limits::jobs},         {"operations", &Limits::operations},
    {"elements", &Limits::elements},       {"slots", &Limits::slots},       {"lanes", &Limits::lanes},
    {"aggregators", &Limits::aggregators}, {"attempts", &Limits::attempts}, {"faults", &Limits::faults},
    {"node-faults", &Limits::node_faults},
};

std::uint32_t limited(std::uint64_t value, std::uint64_t limit) {
  return static_cast<std::uint32_t>(std::max<std::uint64_t>(1, std::min(value, limit)));
}

// Log-uniform: short times are as likely as long ones.
Duration log_uniform(Random& random, Duration least, Duration most) {
  const double ratio = std::chrono::duration<double>(most) / std::chrono::duration<double>(least);
  return Duration(static_cast<std::int64_t>(static_cast<double>(least.count()) * std::pow(ratio, random.unit())));
}

bool has_lasting_fault(Profile profile) {
  return profile == Profile::dead_link || profile == Profile::slow_rank || profile == Profile::lossy_lane;
}

LinkFaults draw_links(Random& random, Profile profile) {
  LinkFaults links;
  links.least_delay = microseconds(5 + random.below(30));
  links.most_delay = links.least_delay;
  if (profile == Profile::none) return links;
  links.most_delay += microseconds(random.below(200));
  if (has_lasting_fault(profile)) return links;
  if (profile == Profile::crash || profile == Profile::leave) {
    links.control_loss = random.chance(0.3) ? 0.05 : 0;
    if (profile == Profile::leave && random.chance(0.3))
      links.loss = 0.1 * random.unit();  // some ranks lack what others have
    return links;
  }
  const auto some = [&](double often, double most) {
    return random.chance(often) ? most * random.unit() * random.unit() : 0;
  };
  links.loss = 0.002 + some(0.9, 0.2);
  links.burst = some(0.5, 0.02);
  links.burst_length = log_uniform(random, microseconds(20), milliseconds(20));
  links.duplicate = 0.005 + some(0.9, 0.3);
  links.late = some(0.8, 0.1);
  links.latest = log_uniform(random, milliseconds(1), seconds(8));
  links.corrupt = some(0.7, 0.1);
  links.truncate = some(0.5, 0.05);
  if (random.chance(0.4)) {
    links.bytes_per_second = 2'000'000U << random.below(8);
    links.queue_bytes = 4000U << random.below(6);
    links.mark_bytes = links.queue_bytes / 4;
  }
  if (profile == Profile::chaos) {
    links.forge = some(0.5, 0.1);
    links.control_loss = some(0.5, 0.3);
    links.control_repeat = some(0.5, 0.3);
  }
  return links;
}

Operation draw_call(Random& random, const JobPlan& job, std::uint64_t number, std::uint32_t lanes_in_all,
                    std::uint64_t most) {
  Operation call;
  call.number = number;
  const std::uint64_t turn =
      std::uint64_t{job.slots} * lanes_in_all * job.packet_elements;  // elements in one turn of the window
  constexpr std::uint64_t edges[] = {0, 1, 63, 64, 65, 255, 256, 257, 511, 512};
  call.elements = random.chance(0.2) ? random.pick(edges)
                                     : random.below(1 + std::min<std::uint64_t>(turn * random.between(1, 8), 60'000));
  call.op = random.chance(0.3) ? ReduceOp::avg : ReduceOp::sum;
  constexpr DType types[] = {DType::float32, DType::float32, DType::float32, DType::int32,
                             DType::int32,   DType::float16, DType::bfloat16};
  call.dtype = random.pick(types);
  call.tag = static_cast<std::uint32_t>(random.below(3));
  const std::uint64_t kind = random.below(12);
  const auto root = static_cast<std::uint32_t>(random.below(job.workers));
  if (kind == 0) {
    call.collective = Collective::barrier;
    call.elements = 0;
    call.dtype = DType::float32;
    call.op = ReduceOp::sum;
  } else if (kind == 1) {
    call.collective = Collective::broadcast;
    call.root = root;
    call.dtype = DType::float32;
    call.op = ReduceOp::sum;
  }
  call.elements = std::min(call.elements, most);
  return call;
}

// Another call than `call`, as a program with a bug would issue it.
Operation draw_other(Random& random, Operation call) {
  switch (random.below(4)) {
    case 0:
      call.elements += 1 + random.below(500);
      break;
    case 1:
      call.tag += 1;
      break;
    case 2:
      if (call.collective == Collective::all_reduce) {
        call.op = call.op == ReduceOp::sum ? ReduceOp::avg : ReduceOp::sum;
        break;
      }
      [[fallthrough]];
    default: {
      const bool barrier = call.collective == Collective::barrier;
      call.collective = barrier ? Collective::all_reduce : Collective::barrier;
      call.elements = barrier ? 100 : 0;
      break;
    }
  }
  return call;
}

void leave_stragglers(Random& random, JobPlan& job, const Limits& limits) {
  job.straggler_deadline = std::chrono::ceil<milliseconds>(log_uniform(random, milliseconds(2), milliseconds(500)));
  job.straggle = 0.25;
  job.straggle_for = log_uniform(random, milliseconds(20), seconds(4));
  job.attempts = limited(job.attempts + 40, limits.attempts);  // a life ends for each
}

// What a job does about a fault that does not heal.
void draw_patience(const Scenario& scenario, JobPlan& job, std::uint32_t index) {
  const Limits& limits = scenario.settings.limits;
  Random random(derive(scenario.seed, Label::of_recovery + index));
  const bool dead = scenario.settings.profile == Profile::dead_link;
  if (scenario.settings.profile == Profile::slow_rank) job.straggle = 0;
  if (scenario.settings.profile == Profile::lossy_lane || random.chance(dead ? 0.3 : 0.7) || job.workers < 2) return;
  job.recovers = true;
  job.attempts = limited(random.between(2, 4), limits.attempts);
  const std::uint32_t least = scenario.aggregators > 1 ? job.workers / 2 + 1 : 1;
  if (least == job.workers || (dead && random.chance(0.3))) return;
  job.survivors = static_cast<std::uint32_t>(random.between(least, job.workers - 1));
  if (dead) return;
  job.straggler_deadline = std::chrono::ceil<milliseconds>(log_uniform(random, milliseconds(2), milliseconds(500)));
  job.attempts = limited(job.attempts + 40, limits.attempts);  // a life ends for each call
}

JobPlan draw_job(const Scenario& scenario, std::uint32_t index) {
  const Settings& settings = scenario.settings;
  const Limits& limits = settings.limits;
  Random random(derive(scenario.seed, Label::of_job + index));
  const bool harsh = settings.profile == Profile::chaos;
  JobPlan job;
  job.name = "job" + std::to_string(index);
  job.seed = random.next();
  job.workers = limited(random.between(settings.workers.least, settings.workers.most), limits.workers);
  constexpr std::uint32_t lengths[] = {64, 64, 64, 128, 192, 256, 320, 512};
  job.packet_elements = random.pick(lengths);
  job.slots = std::bit_floor(limited(1U << random.below(5), limits.slots));  // a power of two, also when limited
  job.window = static_cast<std::uint32_t>(random.between(1, 4));
  const bool leaving = settings.profile == Profile::leave;
  const bool crashing = settings.profile == Profile::crash || leaving;
  job.gap = random.chance(crashing ? 0 : 0.5) ? Duration::zero() : log_uniform(random, microseconds(10), milliseconds(20));
  const std::uint64_t patience = random.between(20, 60);
  job.impatient = harsh && random.chance(0.2);
  job.operation_deadline = job.impatient ? log_uniform(random, milliseconds(200), seconds(3))
                                         : Duration(seconds(harsh || crashing ? patience : 120));
  job.attempts = harsh || crashing ? limited(random.between(1, 4), limits.attempts) : 1;
  if (settings.profile != Profile::none && random.chance(0.4)) {
    job.straggle = 0.05;
    job.straggle_for = log_uniform(random, milliseconds(5), seconds(1));
  }
  if (harsh || crashing) {
    Random recovery(derive(scenario.seed, Label::of_recovery + index));
    job.recovers = recovery.chance(harsh ? 0.8 : leaving ? 1 : 0.5);
    if (job.recovers) job.attempts = limited(job.attempts + 2, limits.attempts);
    if (leaving) {
      const std::uint32_t least = scenario.aggregators > 1 ? job.workers / 2 + 1 : 1;
      job.survivors = static_cast<std::uint32_t>(recovery.between(least, job.workers));
      if (recovery.chance(0.4)) leave_stragglers(recovery, job, limits);
    }
    if (job.recovers && scenario.aggregators > 1 && recovery.chance(0.5)) job.standbys = 1;
  }
  if (has_lasting_fault(settings.profile)) draw_patience(scenario, job, index);
  const std::uint64_t operations = limited(random.between(3, 8), limits.operations);
  for (std::uint64_t number = 0; number < operations; ++number) {
    job.calls.push_back(draw_call(random, job, number, scenario.lanes * scenario.aggregators, limits.elements));
  }
  if (Random admits(derive(scenario.seed, Label::of_admits + index)); leaving && admits.chance(0.7)) {
    for (std::uint64_t number = 0; number < operations; ++number) job.admits.push_back(admits.chance(0.5));
    job.admit_again = static_cast<std::uint32_t>(admits.below(20));
    job.admit_pause = log_uniform(admits, milliseconds(1), milliseconds(300));
    job.attempts = limited(job.attempts + 4, limits.attempts);
  }
  job.measured = random.chance(0.1);
  const bool mismatched = harsh && random.chance(0.08);
  const auto rank = static_cast<std::uint32_t>(random.below(job.workers));
  const std::size_t at = random.below(job.calls.size());
  if (mismatched && job.workers > 1 && limits.kinds.contains(Fault::mismatch)) {
    job.mismatch = JobPlan::Mismatch{rank, draw_other(random, job.calls[at])};
  }
  return job;
}

std::vector<NodeFault> draw_node_faults(const Scenario& scenario, const Protocol& protocol) {
  const Limits& limits = scenario.settings.limits;
  const Profile profile = scenario.settings.profile;
  if (profile != Profile::chaos && profile != Profile::crash && profile != Profile::leave) return {};
  const bool crashing = profile == Profile::crash, leaving = profile == Profile::leave;
  std::vector<NodeFault> faults;
  Random random(derive(scenario.seed, Label::nodes)), bypasses(derive(scenario.seed, Label::of_bypass));
  const std::uint64_t count = crashing ? random.between(1, 2) : leaving ? random.between(1, 4) : random.below(5);
  for (std::uint64_t i = 0; i < count; ++i) {
    NodeFault fault;
    constexpr Fault crashes[] = {Fault::crash, Fault::crash, Fault::crash, Fault::aggregator_crash};
    constexpr Fault all[] = {Fault::crash, Fault::aggregator_crash, Fault::pause,     Fault::pause,
                             Fault::pause, Fault::partition,        Fault::partition, Fault::partition};
    constexpr Fault leaves[] = {Fault::crash, Fault::crash, Fault::crash,     Fault::crash,
                                Fault::pause, Fault::pause, Fault::partition, Fault::aggregator_crash};
    fault.kind = crashing ? random.pick(crashes) : leaving ? random.pick(leaves) : random.pick(all);
    const bool bypassed = protocol.can_bypass() && bypasses.chance(0.25);
    if (bypassed && scenario.security == PacketSecurity::none) fault.kind = Fault::bypass;
    fault.aggregator = fault.kind == Fault::aggregator_crash || fault.kind == Fault::bypass ||
                       (fault.kind == Fault::pause && random.chance(0.3));
    const std::uint64_t job = random.next(), rank = random.next(), site = random.next();
    fault.job = static_cast<std::uint32_t>(job % scenario.jobs.size());
    fault.rank = static_cast<std::uint32_t>(rank % scenario.jobs[fault.job].workers);
    fault.site = static_cast<std::uint32_t>(site % scenario.aggregators);
    // Usually while a job runs: without faults a job takes a few milliseconds.
    fault.at = Time(log_uniform(random, microseconds(500), crashing || leaving ? milliseconds(100) : Duration(seconds(1))));
    fault.lasts = log_uniform(random, milliseconds(1), seconds(6));
    fault.same_ports = random.chance(0.7);
    fault.outward = random.chance(0.5);
    if (fault.aggregator && !scenario.parent_of_switch.empty() && random.chance(0.6)) {
      fault.below = true;
      fault.site = static_cast<std::uint32_t>(site % scenario.parent_of_switch.size());
    }
    if (limits.kinds.contains(fault.kind) && faults.size() < limits.node_faults) faults.push_back(fault);
  }
  return faults;
}

// Faults at job start, and another tenant's interference. Added to the faults above, which stay unchanged.
void draw_control_faults(Scenario& scenario) {
  const Limits& limits = scenario.settings.limits;
  if (scenario.settings.profile != Profile::chaos) return;
  Random random(derive(scenario.seed, Label::of_control));
  const auto add = [&](Fault kind, double often, Duration latest, Duration longest) {
    NodeFault fault;
    fault.kind = kind;
    fault.aggregator = true;
    fault.below = kind == Fault::silent_switch || kind == Fault::slow_switch;
    const bool happens = random.chance(often);
    const std::uint64_t job = random.next(), site = random.next();
    fault.at = Time(latest == Duration::zero() ? latest : log_uniform(random, microseconds(500), latest));
    fault.lasts = log_uniform(random, milliseconds(1), longest);
    const std::size_t sites = fault.below ? scenario.parent_of_switch.size() : scenario.aggregators;
    if (!happens || sites == 0 || !limits.kinds.contains(kind) || scenario.node_faults.size() >= limits.node_faults) return;
    fault.job = static_cast<std::uint32_t>(job % scenario.jobs.size());
    fault.site = static_cast<std::uint32_t>(site % sites);
    scenario.node_faults.push_back(fault);
  };
  add(Fault::silent_switch, 0.15, Duration::zero(), seconds(6));
  add(Fault::slow_switch, 0.15, Duration::zero(), seconds(1));
  add(Fault::no_memory, 0.1, milliseconds(20), seconds(1));
  add(Fault::intrude, 0.2, seconds(1), seconds(6));
}

std::optional<LastingFault> draw_lasting_fault(const Scenario& scenario) {
  Random random(derive(scenario.seed, Label::of_lasting));
  LastingFault fault;
  const Profile profile = scenario.settings.profile;
  if (!has_lasting_fault(profile)) return std::nullopt;
  fault.kind = profile == Profile::dead_link   ? Fault::dead_link
               : profile == Profile::slow_rank ? Fault::slow_rank
                                               : Fault::lossy_lane;
  const Limits& limits = scenario.settings.limits;
  if (!limits.kinds.contains(fault.kind) || limits.node_faults == 0) return std::nullopt;
  const std::uint64_t job = random.next(), rank = random.next(), site = random.next(), lane = random.next();
  fault.job = static_cast<std::uint32_t>(job % scenario.jobs.size());
  const JobPlan& plan = scenario.jobs[fault.job];
  fault.rank = static_cast<std::uint32_t>(rank % plan.workers);
  fault.site = static_cast<std::uint32_t>(site % scenario.aggregators);
  fault.lane = static_cast<std::uint32_t>(lane % scenario.lanes);
  constexpr LastingFault::Reach reaches[] = {LastingFault::Reach::cable, LastingFault::Reach::path,
                                             LastingFault::Reach::packets};
  fault.reach = random.pick(reaches);
  const std::uint64_t way = random.below(3);
  fault.outward = way != 0;
  fault.inward = way != 1;
  const bool at_switch = !plan.switch_of_rank.empty() && plan.switch_of_rank[fault.rank] != UINT32_MAX;
  fault.trunk = random.chance(0.5) && at_switch;
  if (profile == Profile::dead_link) fault.at = Time(log_uniform(random, microseconds(500), milliseconds(100)));
  fault.turn = log_uniform(random, microseconds(100), milliseconds(50));
  fault.late = random.chance(0.5) ? Duration::zero() : log_uniform(random, milliseconds(1), milliseconds(500));
  return fault;
}

}  // namespace

const char* to_string(Profile profile) {
  constexpr const char* names[] = {"none", "lossy", "chaos", "crash", "leave", "dead-link", "slow-rank", "lossy-lane"};
  return names[static_cast<std::size_t>(profile)];
}

std::optional<Profile> profile_of(const std::string& name) {
  for (auto profile = Profile::none; profile <= Profile::lossy_lane;
       profile = static_cast<Profile>(static_cast<std::uint8_t>(profile) + 1)) {
    if (name == to_string(profile)) return profile;
  }
  return std::nullopt;
}

std::string Limits::text() const {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ",") + part; };
  for (const LimitField& field : limit_fields) {
    if (this->*field.value != unlimited) add(std::string(field.name) + "=" + std::to_string(this->*field.value));
  }
  std::string without;
  for (std::size_t i = 0; i < fault_kinds; ++i) {
    const auto fault = static_cast<Fault>(i);
    if (!kinds.contains(fault)) without += (without.empty() ? "" : "+") + std::string(to_string(fault));
  }
  if (!without.empty()) add("without=" + without);
  return text;
}

Limits Limits::parse(const std::string& text) {
  Limits limits;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const std::size_t equals = part.find('=');
    const std::string name = part.substr(0, equals), value = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (name == "without") {
      std::istringstream kinds(value);
      for (std::string kind; std::getline(kinds, kind, '+');) {
        bool known = false;
        for (std::size_t i = 0; i < fault_kinds; ++i) {
          if (kind != to_string(static_cast<Fault>(i))) continue;
          limits.kinds.erase(static_cast<Fault>(i));
          known = true;
        }
        if (!known) throw std::invalid_argument("'" + kind + "' is no kind of fault");
      }
      continue;
    }
    const auto field =
        std::find_if(std::begin(limit_fields), std::end(limit_fields), [&](const LimitField& f) { return name == f.name; });
    if (field == std::end(limit_fields)) throw std::invalid_argument("'" + name + "' is nothing that can be limited");
    if (value.empty() || value.size() > 18 ||
        !std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      throw std::invalid_argument("'" + part + "' has no number after '='");
    }
    limits.*(field->value) = std::stoull(value);
  }
  return limits;
}

Scenario generate(const Settings& settings, std::uint64_t seed) {
  return generate(settings, seed, *make_protocol(settings.protocol));
}

Scenario generate(const Settings& settings, std::uint64_t seed, const Protocol& protocol) {
  const Limits& limits = settings.limits;
  Scenario scenario;
  scenario.seed = seed;
  scenario.settings = settings;
  Random random(derive(seed, Label::topology));
  scenario.aggregators = limited(random.chance(0.7) ? 1 : random.between(2, 3), limits.aggregators);
  scenario.lanes = limited(random.chance(0.5) ? 1 : random.between(2, 3), limits.lanes);
  Random spare(derive(seed, Label::of_lanes));
  if (limits.lanes == Limits::unlimited && spare.chance(0.3)) {
    scenario.spare_lanes = static_cast<std::uint32_t>(spare.between(1, 2));
  }
  const std::uint64_t jobs = limited(random.between(settings.jobs.least, settings.jobs.most), limits.jobs);
  scenario.coalesce = random.chance(0.5) ? Duration::zero() : Duration(random.between(microseconds(1), microseconds(50)));
  const bool skewed = settings.profile == Profile::chaos && random.chance(0.5);
  const double skew = random.unit() * 0.05;
  if (skewed && limits.kinds.contains(Fault::skew)) scenario.skew = skew;
  Random network(derive(seed, Label::network));
  scenario.links = draw_links(network, settings.profile);

  for (std::uint32_t index = 0; index < jobs; ++index) scenario.jobs.push_back(draw_job(scenario, index));
  std::uint32_t need = 0;
  if (!protocol.measures()) {
    for (JobPlan& job : scenario.jobs) job.measured = false;
  }
  // A measured window takes the free slots, and halves until it fits: other jobs may find too few.
  const bool measured =
      jobs > 1 && std::any_of(scenario.jobs.begin(), scenario.jobs.end(), [](const JobPlan& job) { return job.measured; });
  for (const JobPlan& job : scenario.jobs)
    need += (job.measured ? std::max(job.slots, 2U) : job.slots) * job.units() * scenario.lanes;
  // Now and then too few slots for all: a late job is refused with a message, and tries again.
  scenario.scarce = settings.profile == Profile::chaos && jobs > 1 && random.chance(0.1);
  scenario.switch_slots = scenario.scarce ? need - 1 : need + static_cast<std::uint32_t>(random.below(100));
  if (measured && settings.profile != Profile::chaos) {
    for (JobPlan& job : scenario.jobs) job.measured = false;
  }
  scenario.scarce |= measured;
  protocol.draw(scenario);
  scenario.node_faults = draw_node_faults(scenario, protocol);
  draw_control_faults(scenario);
  scenario.lasting = draw_lasting_fault(scenario);
  if (settings.profile == Profile::dead_link) {
    // Whatever the protocol allows for losses, of which there are none.
    Random patience(derive(seed, Label::of_lasting + 1));
    for (JobPlan& job : scenario.jobs) job.operation_deadline = seconds(patience.between(15, 30));
  }
  return scenario;
}

const JobPlan& Scenario::plan_of(const std::string& job) const {
  return *std::find_if(jobs.begin(), jobs.end(), [&](const JobPlan& plan) { return plan.name == job; });
}

PacketSecurity draw_security(std::uint64_t seed) {
  constexpr PacketSecurity securities[] = {PacketSecurity::none, PacketSecurity::none, PacketSecurity::tag,
                                           PacketSecurity::encrypt};
  return Random(derive(seed, Label::of_keys)).pick(securities);
}

std::string Scenario::summary() const {
  std::string text = std::to_string(jobs.size()) + (jobs.size() == 1 ? " job" : " jobs") + ", " +
                     std::to_string(aggregators) + (aggregators == 1 ? " aggregator" : " aggregators") + " of " +
                     std::to_string(lanes) + (lanes == 1 ? " lane" : " lanes");
  if (!parent_of_switch.empty()) {
    text += ", " + std::to_string(parent_of_switch.size()) + " switches";
    if (pool_slots != 0) text += " of " + std::to_string(pool_slots) + " slots";
  }
  if (security != PacketSecurity::none) text += std::string(", packets protected by ") + to_string(security);
  for (const JobPlan& job : jobs) {
    text += "; " + job.name + (job.private_sums ? " (private): " : ": ") + std::to_string(job.workers) + " workers, " +
            std::to_string(job.calls.size()) + " operations, " + std::to_string(job.slots) + " slots of " +
            std::to_string(job.packet_elements) + " elements";
  }
  return text;
}

}  // namespace netsum::sim
