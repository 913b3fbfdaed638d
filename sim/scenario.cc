#include "sim/scenario.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "sim/random.h"

namespace netsum::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using stream::Collective;
using stream::Operation;

// Labels of the streams derived from the seed. One per purpose, so that removing something leaves the rest unchanged.
enum Label : std::uint64_t {
  topology = 1,
  network,
  nodes,
  switches,
  of_job = 1000,
  of_placement = 2000,
  of_recovery = 3000,
  of_scaling = 4000,
  of_ring = 5000,
  of_bypass = 6000,
  of_wire = 7000,
  of_control = 8000
};

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

LinkFaults draw_links(Random& random, Profile profile) {
  LinkFaults links;
  links.least_delay = microseconds(5 + random.below(30));
  links.most_delay = links.least_delay;
  if (profile == Profile::none) return links;
  links.most_delay += microseconds(random.below(200));
  if (profile == Profile::crash) {
    links.control_loss = random.chance(0.3) ? 0.05 : 0;
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

// A switch's slots have 256 elements each.
std::uint32_t units_of(const JobPlan& job) {
  return (job.packet_elements + 255) / 256;
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
  const bool crashing = settings.profile == Profile::crash;
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
    job.recovers = recovery.chance(0.5);
    if (job.recovers) job.attempts = limited(job.attempts + 2, limits.attempts);
  }
  const std::uint64_t operations = limited(random.between(3, 8), limits.operations);
  for (std::uint64_t number = 0; number < operations; ++number) {
    job.calls.push_back(draw_call(random, job, number, scenario.lanes * scenario.aggregators, limits.elements));
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

// SwitchML: the wire format of floats. A rank with a bug may use another format, and has no other bug.
void draw_wires(Scenario& scenario) {
  constexpr WireFormat formats[] = {WireFormat::native,  WireFormat::native,  WireFormat::native,
                                    WireFormat::float32, WireFormat::float16, WireFormat::bfloat16};
  for (std::uint32_t index = 0; index < scenario.jobs.size(); ++index) {
    JobPlan& job = scenario.jobs[index];
    Random random(derive(scenario.seed, Label::of_wire + index));
    for (Operation& call : job.calls) call.wire = random.pick(formats);
    if (!job.mismatch) continue;
    Operation& other = job.mismatch->call;
    const Operation& right = job.calls[other.number];
    other.wire = right.wire;
    Operation differs = right;
    differs.wire = random.pick(formats);
    if (stream::wire_dtype(differs) != stream::wire_dtype(right)) other = differs;
  }
}

constexpr std::uint32_t rack_ranks = 32;  // the most below one switch
constexpr std::uint32_t small_job = 24;   // ranks that may be placed anywhere

// ATP: a tree of switches, rarely enough slots, and the placement of ranks.
void draw_switches(Scenario& scenario) {
  Random random(derive(scenario.seed, Label::switches));
  std::uint64_t racks = random.between(1, 4);
  bool second_level = random.chance(0.5);
  // A switch has at most 32 children, and so has the parameter server: large jobs fill racks evenly, under a second level.
  std::uint32_t largest = 0;
  for (const JobPlan& job : scenario.jobs) largest = std::max(largest, job.workers);
  const bool large = largest > small_job;
  if (large) {
    racks = (largest + rack_ranks - 1) / rack_ranks;
    second_level = true;
  }
  for (std::uint64_t i = 0; i < racks; ++i) scenario.parent_of_switch.push_back(UINT32_MAX);
  if (second_level) {
    const auto top = static_cast<std::uint32_t>(racks);
    scenario.parent_of_switch.push_back(UINT32_MAX);
    for (std::uint32_t i = 0; i < top; ++i) {
      if (large || random.chance(0.8)) scenario.parent_of_switch[i] = top;
    }
  }
  std::uint32_t need = 0;
  for (std::uint32_t index = 0; index < scenario.jobs.size(); ++index) {
    JobPlan& job = scenario.jobs[index];
    Random place(derive(scenario.seed, Label::of_placement + index));
    job.numbers = Numbers::scaled;
    job.measured = false;
    job.indexing = static_cast<std::uint32_t>(place.below(3));
    job.saturating = place.chance(0.2);
    job.congestion_control = place.chance(0.7);
    job.rescaled = Random(derive(scenario.seed, Label::of_scaling + index)).chance(0.4);
    // Loss halves windows, and overflowing floats take a second round, in which each rank may lose packets again.
    if (!job.impatient) job.operation_deadline *= std::max(4U, job.workers);
    need += job.slots * scenario.aggregators;
    scenario.pool_elements = std::max(scenario.pool_elements, job.packet_elements);
    const auto all = static_cast<std::uint32_t>(scenario.parent_of_switch.size());
    for (std::uint32_t rank = 0; rank < job.workers; ++rank) {
      if (large) {
        job.switch_of_rank.push_back(rank % static_cast<std::uint32_t>(racks));
        continue;
      }
      // Only few ranks directly at the parameter server: its bitmap is as long as a switch's.
      const bool at_server = rank < 4 && place.chance(0.1);
      job.switch_of_rank.push_back(at_server ? UINT32_MAX : static_cast<std::uint32_t>((place.below(all) + rank) % all));
    }
  }
  const std::uint64_t share = random.below(4);  // fraction of the total demand at once
  scenario.pool_slots = std::max<std::uint32_t>(1, static_cast<std::uint32_t>(need * (share == 3 ? 6 : share) / 3));
}

// NetReduce: rings with messages of several packets, whose numbers wrap in half of the jobs.
void draw_rings(Scenario& scenario) {
  std::uint32_t need = 0;
  for (std::uint32_t index = 0; index < scenario.jobs.size(); ++index) {
    JobPlan& job = scenario.jobs[index];
    Random random(derive(scenario.seed, Label::of_ring + index));
    job.numbers = Numbers::in_order;
    job.packet_elements = std::bit_floor(job.packet_elements);  // a path MTU
    job.message_packets = static_cast<std::uint32_t>(random.between(1, 6));
    const std::uint64_t psns = std::uint64_t{1} << 24;
    job.first_psn = static_cast<std::uint32_t>(random.chance(0.5) ? psns - 1 - random.below(500) : random.below(psns));
    job.unordered = random.chance(0.2);
    // Ranks repair a loss one after the other, in ring order.
    if (!job.impatient) job.operation_deadline *= std::max(4U, job.workers);
    need += job.slots * job.message_packets * job.workers * units_of(job) * scenario.lanes;
  }
  scenario.switch_slots = scenario.scarce ? need - 1 : need;
}

// NetReduce: in half of the clusters, a tree of switches; 4 racks of 8 for jobs of 32 and more.
void draw_racks(Scenario& scenario) {
  Random random(derive(scenario.seed, Label::switches));
  if (random.chance(0.5)) return;
  std::uint32_t largest = 0;
  for (const JobPlan& job : scenario.jobs) largest = std::max(largest, job.workers);
  const auto racks = static_cast<std::uint32_t>(largest >= 32 ? largest / 8 : random.between(1, 4));
  scenario.parent_of_switch.assign(racks, UINT32_MAX);
  if (random.chance(0.4)) {  // a third level, and some ranks directly below the root
    scenario.parent_of_switch.push_back(UINT32_MAX);
    for (std::uint32_t i = 0; i < racks; ++i) {
      if (random.chance(0.8)) scenario.parent_of_switch[i] = racks;
    }
  }
  const bool mixed = random.chance(0.3);  // ranks may be at any switch
  for (std::uint32_t index = 0; index < scenario.jobs.size(); ++index) {
    JobPlan& job = scenario.jobs[index];
    Random place(derive(scenario.seed, Label::of_placement + index));
    const bool in_turn = place.chance(0.3);  // neighbours in the ring are never in one rack
    for (std::uint32_t rank = 0; rank < job.workers; ++rank) {
      const std::uint32_t block = rank * racks / job.workers;
      std::uint32_t at = in_turn ? rank % racks : block;
      if (mixed && place.chance(0.3)) {
        const auto any = static_cast<std::uint32_t>(place.below(scenario.parent_of_switch.size() + 1));
        at = any == scenario.parent_of_switch.size() ? UINT32_MAX : any;
      }
      job.switch_of_rank.push_back(at);
    }
  }
}

std::vector<NodeFault> draw_node_faults(const Scenario& scenario) {
  const Limits& limits = scenario.settings.limits;
  const Profile profile = scenario.settings.profile;
  if (profile != Profile::chaos && profile != Profile::crash) return {};
  std::vector<NodeFault> faults;
  Random random(derive(scenario.seed, Label::nodes)), bypasses(derive(scenario.seed, Label::of_bypass));
  const bool netreduce = scenario.settings.protocol == "netreduce";
  const std::uint64_t count = profile == Profile::crash ? random.between(1, 2) : random.below(5);
  for (std::uint64_t i = 0; i < count; ++i) {
    NodeFault fault;
    constexpr Fault crashes[] = {Fault::crash, Fault::crash, Fault::crash, Fault::aggregator_crash};
    constexpr Fault all[] = {Fault::crash, Fault::aggregator_crash, Fault::pause,     Fault::pause,
                             Fault::pause, Fault::partition,        Fault::partition, Fault::partition};
    fault.kind = profile == Profile::crash ? random.pick(crashes) : random.pick(all);
    if (netreduce && bypasses.chance(0.25)) fault.kind = Fault::bypass;
    fault.aggregator = fault.kind == Fault::aggregator_crash || fault.kind == Fault::bypass ||
                       (fault.kind == Fault::pause && random.chance(0.3));
    const std::uint64_t job = random.next(), rank = random.next(), site = random.next();
    fault.job = static_cast<std::uint32_t>(job % scenario.jobs.size());
    fault.rank = static_cast<std::uint32_t>(rank % scenario.jobs[fault.job].workers);
    fault.site = static_cast<std::uint32_t>(site % scenario.aggregators);
    // Usually while a job runs: without faults a job takes a few milliseconds.
    fault.at =
        Time(log_uniform(random, microseconds(500), profile == Profile::crash ? milliseconds(100) : Duration(seconds(1))));
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

}  // namespace

const char* to_string(Profile profile) {
  constexpr const char* names[] = {"none", "lossy", "chaos", "crash"};
  return names[static_cast<std::size_t>(profile)];
}

std::optional<Profile> profile_of(const std::string& name) {
  for (const Profile profile : {Profile::none, Profile::lossy, Profile::chaos, Profile::crash}) {
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
  const Limits& limits = settings.limits;
  Scenario scenario;
  scenario.seed = seed;
  scenario.settings = settings;
  Random random(derive(seed, Label::topology));
  scenario.aggregators = limited(random.chance(0.7) ? 1 : random.between(2, 3), limits.aggregators);
  scenario.lanes = limited(random.chance(0.5) ? 1 : random.between(2, 3), limits.lanes);
  const std::uint64_t jobs = limited(random.between(settings.jobs.least, settings.jobs.most), limits.jobs);
  scenario.coalesce = random.chance(0.5) ? Duration::zero() : Duration(random.between(microseconds(1), microseconds(50)));
  const bool skewed = settings.profile == Profile::chaos && random.chance(0.5);
  const double skew = random.unit() * 0.05;
  if (skewed && limits.kinds.contains(Fault::skew)) scenario.skew = skew;
  Random network(derive(seed, Label::network));
  scenario.links = draw_links(network, settings.profile);

  for (std::uint32_t index = 0; index < jobs; ++index) scenario.jobs.push_back(draw_job(scenario, index));
  std::uint32_t need = 0;
  if (settings.protocol == "netreduce") {
    for (JobPlan& job : scenario.jobs) job.measured = false;
  }
  // A measured window takes the free slots, and halves until it fits: other jobs may find too few.
  const bool measured =
      jobs > 1 && std::any_of(scenario.jobs.begin(), scenario.jobs.end(), [](const JobPlan& job) { return job.measured; });
  for (const JobPlan& job : scenario.jobs)
    need += (job.measured ? std::max(job.slots, 2U) : job.slots) * units_of(job) * scenario.lanes;
  // Now and then too few slots for all: a late job is refused with a message, and tries again.
  scenario.scarce = settings.profile == Profile::chaos && jobs > 1 && random.chance(0.1);
  scenario.switch_slots = scenario.scarce ? need - 1 : need + static_cast<std::uint32_t>(random.below(100));
  if (settings.protocol == "netreduce") {
    draw_rings(scenario);
    draw_racks(scenario);
  }
  if (measured && settings.profile != Profile::chaos) {
    for (JobPlan& job : scenario.jobs) job.measured = false;
  }
  scenario.scarce |= measured;
  if (settings.protocol == "atp") draw_switches(scenario);
  if (settings.protocol == "switchml") draw_wires(scenario);
  scenario.node_faults = draw_node_faults(scenario);
  draw_control_faults(scenario);
  return scenario;
}

std::string Scenario::summary() const {
  std::string text = std::to_string(jobs.size()) + (jobs.size() == 1 ? " job" : " jobs") + ", " +
                     std::to_string(aggregators) + (aggregators == 1 ? " aggregator" : " aggregators") + " of " +
                     std::to_string(lanes) + (lanes == 1 ? " lane" : " lanes");
  if (!parent_of_switch.empty()) {
    text += ", " + std::to_string(parent_of_switch.size()) + " switches";
    if (pool_slots != 0) text += " of " + std::to_string(pool_slots) + " slots";
  }
  for (const JobPlan& job : jobs) {
    text += "; " + job.name + ": " + std::to_string(job.workers) + " workers, " + std::to_string(job.calls.size()) +
            " operations, " + std::to_string(job.slots) + " slots of " + std::to_string(job.packet_elements) + " elements";
  }
  return text;
}

}  // namespace netsum::sim
