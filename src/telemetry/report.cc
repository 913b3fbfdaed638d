#include "telemetry/report.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "netsum/error.h"
#include "session/check.h"
#include "session/words.h"
#include "telemetry/shallow_json.h"
#include "transport/addresses/addresses.h"

namespace netsum::telemetry {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t longest_report = 16 << 20;

std::vector<std::uint32_t> members(const RankSet& set, std::uint32_t world_size) {
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = 0; rank < world_size; ++rank) {
    if (set.contains(rank)) ranks.push_back(rank);
  }
  return ranks;
}

ordered_json counters_json(const Counters& counters) {
  ordered_json json = ordered_json::object();
  for (const auto& [name, value] : counters) json[name] = value;
  return json;
}

Error nonsense(const std::string& why) {
  return {ErrorCode::internal, "invalid report from the aggregator: " + why};
}

// Values from an untrusted aggregator: a number in range, a text of one line.
template <class Number>
Number number_of(const ordered_json& json) {
  const auto value = json.is_number_unsigned() ? json.get<std::uint64_t>() : UINT64_MAX;
  const bool fits = json.is_number_unsigned() && value <= std::numeric_limits<Number>::max();
  if (!fits) throw nonsense("a number is out of range, or of another type");
  return static_cast<Number>(value);
}

std::string text_of(const ordered_json& json) {
  auto text = json.get<std::string>();
  if (text.size() > session::longest_text || !session::printable(text))
    throw nonsense("a text is too long, or not printable");
  return text;
}

Counters counters_of(const ordered_json& json) {
  if (!json.is_object()) throw nonsense("counters have no names");
  Counters counters;
  for (const auto& [name, value] : json.items()) counters.add(text_of(name), number_of<std::uint64_t>(value));
  return counters;
}

std::vector<std::uint32_t> ranks_of(const ordered_json& json) {
  if (!json.is_array() || json.size() > max_world_size) throw nonsense("the ranks are not a list, or too many");
  std::vector<std::uint32_t> ranks;
  for (const auto& rank : json) {
    ranks.push_back(number_of<std::uint32_t>(rank));
    if (ranks.back() >= max_world_size) throw nonsense("a rank is out of range");
  }
  return ranks;
}

RankSet set_of(const ordered_json& json) {
  RankSet set;
  for (const std::uint32_t rank : ranks_of(json)) set.insert(rank);
  return set;
}

// Non-zero counters, on as many lines as needed.
std::string counters_text(const std::string& indent, const Counters& counters) {
  constexpr std::size_t width = 118;
  std::string text, line;
  for (const auto& [name, value] : counters) {
    if (value == 0) continue;
    const std::string word = " " + name + "=" + std::to_string(value);
    if (!line.empty() && indent.size() + line.size() + word.size() > width) {
      text += indent + line.substr(1) + "\n";
      line.clear();
    }
    line += word;
  }
  return line.empty() ? text : text + indent + line.substr(1) + "\n";
}

template <class... Args>
std::string format(const char* pattern, Args... args) {
  const int size = std::snprintf(nullptr, 0, pattern, args...);
  std::string text(static_cast<std::size_t>(size) + 1, '\0');
  std::snprintf(text.data(), text.size(), pattern, args...);
  text.pop_back();
  return text;
}

ordered_json json_of(const JobReport& entry) {
  const session::JobStatus& job = entry.job;
  ordered_json stalled = ordered_json::array(), switches = ordered_json::array(), events = ordered_json::array();
  for (const auto& stall : entry.stalled) {
    stalled.push_back(
        {{"operation", stall.operation}, {"chunk", stall.chunk}, {"slot", stall.slot}, {"missing", stall.missing}});
  }
  for (const auto& each : entry.switches) {
    switches.push_back({{"address", each.address}, {"parent", each.parent}, {"ranks", each.ranks}});
  }
  for (const auto& event : entry.events) {
    ordered_json json = {{"age_seconds", event.age_seconds}, {"kind", event.kind}};
    if (event.rank) json["rank"] = *event.rank;
    json["what"] = session::one_line(event.what);
    events.push_back(std::move(json));
  }
  return {{"job", job.job},
          {"job_epoch", job.job_epoch},
          {"state", state_of(job)},
          {"failure", session::one_line(job.failure)},
          {"protocol", job.protocol},
          {"world_size", job.world_size},
          {"packet_elements", job.packet_elements},
          {"slots", job.slots},
          {"lanes", job.lanes},
          {"tenant", job.tenant},
          {"memory_bytes", job.memory_bytes},
          {"joined", members(job.joined, job.world_size)},
          {"left", members(job.left, job.world_size)},
          {"absent", job.absent},
          {"late", members(job.late, job.world_size)},
          {"hosts", hosts_json(entry.hosts)},
          {"switches", std::move(switches)},
          {"counters", counters_json(entry.counters)},
          {"stalled_unit", entry.stalled_unit},
          {"stalled_seconds", entry.stalled_seconds},
          {"stalled", std::move(stalled)},
          {"events", std::move(events)}};
}

// What daemons before 0.2 do not say.
void read_place(const ordered_json& job, JobReport& entry) {
  if (job.contains("protocol")) entry.job.protocol = text_of(job.at("protocol"));
  if (job.contains("absent")) {
    for (const auto& address : job.at("absent")) entry.job.absent.push_back(text_of(address));
  }
  if (job.contains("late")) entry.job.late = set_of(job.at("late"));
  if (job.contains("stalled_unit")) entry.stalled_unit = text_of(job.at("stalled_unit"));
  if (job.contains("stalled_seconds")) entry.stalled_seconds = job.at("stalled_seconds");
  if (job.contains("hosts")) {
    for (const auto& host : job.at("hosts")) {
      JobReport::Host& read = entry.hosts.emplace_back();
      read.address = text_of(host.at("address"));
      read.ranks = ranks_of(host.at("ranks"));
      if (!host.contains("name")) continue;
      read.name = text_of(host.at("name"));
      for (const auto& process : host.at("processes")) read.processes.push_back(number_of<std::uint32_t>(process));
    }
  }
  if (job.contains("switches")) {
    for (const auto& each : job.at("switches")) {
      entry.switches.push_back({text_of(each.at("address")), text_of(each.at("parent")), ranks_of(each.at("ranks"))});
    }
  }
  if (!job.contains("events")) return;
  for (const auto& event : job.at("events")) {
    JobReport::Event read;
    read.age_seconds = event.at("age_seconds");
    read.kind = text_of(event.at("kind"));
    if (event.contains("rank")) read.rank = number_of<std::uint32_t>(event.at("rank"));
    read.what = text_of(event.at("what"));
    entry.events.push_back(std::move(read));
  }
}

EndedJob read_ended(const ordered_json& json) {
  EndedJob ended;
  ended.job = text_of(json.at("job"));
  ended.tenant = text_of(json.at("tenant"));
  ended.job_epoch = number_of<std::uint64_t>(json.at("job_epoch"));
  ended.world_size = number_of<std::uint32_t>(json.at("world_size"));
  ended.protocol = text_of(json.at("protocol"));
  ended.cause = text_of(json.at("cause"));
  ended.failure = text_of(json.at("failure"));
  if (json.contains("rank")) ended.rank = number_of<std::uint32_t>(json.at("rank"));
  ended.place = text_of(json.at("place"));
  ended.age_seconds = json.at("age_seconds");
  ended.lasted_seconds = json.at("lasted_seconds");
  return ended;
}

ordered_json json_of(const EndedJob& ended) {
  ordered_json json = {{"job", ended.job},
                       {"job_epoch", ended.job_epoch},
                       {"tenant", ended.tenant},
                       {"protocol", ended.protocol},
                       {"world_size", ended.world_size},
                       {"cause", ended.cause},
                       {"failure", session::one_line(ended.failure)}};
  if (ended.rank) json["rank"] = *ended.rank;
  json["place"] = ended.place;
  json["age_seconds"] = ended.age_seconds;
  json["lasted_seconds"] = ended.lasted_seconds;
  return json;
}

Report read_report(const ordered_json& json) {
  Report report;
  report.version = text_of(json.at("version"));
  if (json.contains("daemon")) report.daemon = text_of(json.at("daemon"));
  if (json.contains("address")) report.address = text_of(json.at("address"));
  report.uptime_seconds = json.at("uptime_seconds");
  if (json.contains("threads")) report.threads = number_of<std::uint32_t>(json.at("threads"));
  report.lanes = number_of<std::uint32_t>(json.at("lanes"));
  report.slots = number_of<std::uint32_t>(json.at("slots"));
  report.slots_free = number_of<std::uint32_t>(json.at("slots_free"));
  report.memory_bytes = number_of<std::uint64_t>(json.at("memory_bytes"));
  report.memory_used = number_of<std::uint64_t>(json.at("memory_used"));
  report.counters = counters_of(json.at("counters"));
  for (const auto& job : json.at("jobs")) {
    JobReport entry;
    entry.job.job = text_of(job.at("job"));
    entry.job.job_epoch = number_of<std::uint64_t>(job.at("job_epoch"));
    entry.job.running = job.at("state") == "running";
    entry.job.failure = text_of(job.at("failure"));
    entry.job.world_size = number_of<std::uint32_t>(job.at("world_size"));
    if (entry.job.world_size > max_world_size) throw nonsense("the world size of a job is out of range");
    entry.job.packet_elements = number_of<std::uint32_t>(job.at("packet_elements"));
    entry.job.slots = number_of<std::uint32_t>(job.at("slots"));
    if (job.contains("lanes")) entry.job.lanes = number_of<std::uint32_t>(job.at("lanes"));
    entry.job.tenant = text_of(job.at("tenant"));
    entry.job.memory_bytes = number_of<std::uint64_t>(job.at("memory_bytes"));
    entry.job.joined = set_of(job.at("joined"));
    entry.job.left = set_of(job.at("left"));
    entry.counters = counters_of(job.at("counters"));
    for (const auto& stall : job.at("stalled")) {
      entry.stalled.push_back({number_of<std::uint64_t>(stall.at("operation")), number_of<std::uint32_t>(stall.at("chunk")),
                               number_of<std::uint32_t>(stall.at("slot")), ranks_of(stall.at("missing"))});
    }
    read_place(job, entry);
    report.jobs.push_back(std::move(entry));
  }
  if (json.contains("interfaces")) {
    for (const auto& each : json.at("interfaces")) {
      report.interfaces.push_back({text_of(each.at("name")), each.at("attached"), text_of(each.at("state"))});
    }
  }
  if (json.contains("ended")) {
    for (const auto& ended : json.at("ended")) report.ended.push_back(read_ended(ended));
    report.draining = json.at("draining");
    report.certificate_until = json.at("certificate_expiry_unix_seconds");
  }
  return report;
}

}  // namespace

const char* state_of(const session::JobStatus& job) {
  return job.running ? "running" : job.failure.empty() ? "joining" : "failed";
}

std::string in_words(const JobReport& job, const JobReport::Stalled& stalled) {
  std::string text = job.stalled_unit + " " + std::to_string(stalled.operation);
  if (job.stalled_unit == "operation") {
    text += ", chunk " + std::to_string(stalled.chunk) + " (slot " + std::to_string(stalled.slot) + ")";
  } else if (job.stalled_unit == "message") {
    text += ", packet " + std::to_string(stalled.chunk);
  }
  RankSet missing;
  for (const std::uint32_t rank : stalled.missing) {
    if (rank < max_world_size) missing.insert(rank);
  }
  return text + " waits for " + (missing.empty() ? "the switch above" : session::name_ranks(missing));
}

Report visible_to(const std::string& tenant, const Report& report) {
  Report visible = report;
  std::erase_if(visible.jobs, [&](const JobReport& job) { return job.job.tenant != tenant; });
  std::erase_if(visible.ended, [&](const EndedJob& job) { return job.tenant != tenant; });
  return visible;
}

bool has_job(const Report& report, const session::NamedJob& named) {
  return std::any_of(report.jobs.begin(), report.jobs.end(), [&](const JobReport& job) {
    return job.job.job == named.job && (!named.tenant || job.job.tenant == *named.tenant);
  });
}

std::string in_words(const EndedJob& ended) {
  const std::string ago =
      session::in_seconds(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(ended.age_seconds))) + " ago";
  if (ended.failure.empty()) return "ended in good order " + ago;
  return "failed " + ago + ": " + ended.failure + (ended.place.empty() ? "" : " (" + ended.place + ")");
}

std::string place_in_words(const std::string& address, const std::string& name, std::uint64_t process) {
  return address + (name.empty() ? "" : ", " + name) + (process == 0 ? "" : ", process " + std::to_string(process));
}

std::string place_of(const JobReport& job, std::uint32_t rank) {
  for (const JobReport::Host& host : job.hosts) {
    const auto at = static_cast<std::size_t>(std::find(host.ranks.begin(), host.ranks.end(), rank) - host.ranks.begin());
    if (at == host.ranks.size()) continue;
    return place_in_words(host.address, host.name, at < host.processes.size() ? host.processes[at] : 0);
  }
  return "";
}

ordered_json hosts_json(const std::vector<JobReport::Host>& hosts) {
  ordered_json json = ordered_json::array();
  for (const JobReport::Host& host : hosts) {
    json.push_back({{"address", host.address}, {"ranks", host.ranks}, {"name", host.name}, {"processes", host.processes}});
  }
  return json;
}

std::vector<const JobReport*> failed_first(const std::vector<JobReport>& jobs) {
  std::vector<const JobReport*> sorted;
  for (const JobReport& job : jobs) sorted.push_back(&job);
  std::stable_partition(sorted.begin(), sorted.end(), [](const JobReport* job) { return !job->job.failure.empty(); });
  return sorted;
}

void locate(JobReport& job) {
  const session::JobStatus& status = job.job;
  std::map<std::pair<Endpoint, std::string>, std::size_t> known;  // as text an address is dear, with thousands of ranks
  std::size_t place = 0;
  status.joined.for_each([&](std::uint32_t rank) {
    if (place >= status.endpoints.size()) return;
    const session::Process process = place < status.processes.size() ? status.processes[place] : session::Process();
    Endpoint host = status.endpoints[place++];
    host.port = 0;
    const auto [found, is_new] = known.emplace(std::pair(host, process.host), job.hosts.size());
    if (is_new) {
      std::string address = transport::to_string(host);
      address.resize(address.rfind(':'));
      job.hosts.push_back({std::move(address), {}, process.host});
    }
    job.hosts[found->second].ranks.push_back(rank);
    job.hosts[found->second].processes.push_back(process.id);
  });
  const session::Placement& placement = status.placement;
  for (std::size_t i = 0; i < placement.switches.size(); ++i) {
    const std::uint32_t parent = placement.parent_of_switch[i];
    job.switches.push_back(
        {placement.switches[i], parent < placement.switches.size() ? placement.switches[parent] : "", {}});
  }
  for (std::uint32_t rank = 0; rank < placement.switch_of_rank.size(); ++rank) {
    const std::uint32_t at = placement.switch_of_rank[rank];
    if (at < job.switches.size()) job.switches[at].ranks.push_back(rank);
  }
}

std::string to_json(const Report& report, bool compact) {
  ordered_json jobs = ordered_json::array(), ended = ordered_json::array();
  for (const JobReport& entry : report.jobs) jobs.push_back(json_of(entry));
  for (const EndedJob& job : report.ended) ended.push_back(json_of(job));
  ordered_json interfaces = ordered_json::array();
  for (const transport::Attachment& each : report.interfaces) {
    interfaces.push_back({{"name", each.interface}, {"attached", each.attached}, {"state", each.state}});
  }
  const ordered_json json = {{"version", report.version},
                             {"daemon", report.daemon},
                             {"address", report.address},
                             {"uptime_seconds", report.uptime_seconds},
                             {"threads", report.threads},
                             {"lanes", report.lanes},
                             {"slots", report.slots},
                             {"slots_free", report.slots_free},
                             {"memory_bytes", report.memory_bytes},
                             {"memory_used", report.memory_used},
                             {"counters", counters_json(report.counters)},
                             {"certificate_expiry_unix_seconds", report.certificate_until},
                             {"draining", report.draining},
                             {"interfaces", std::move(interfaces)},
                             {"jobs", std::move(jobs)},
                             {"ended", std::move(ended)}};
  // Text of this host's may be anything: a path, what the system says.
  return json.dump(compact ? -1 : 2, ' ', false, ordered_json::error_handler_t::replace);
}

Report from_json(const std::string& text) {
  if (text.size() > longest_report) throw nonsense("it has " + std::to_string(text.size()) + " bytes");
  return read_json(text, &read_report, &nonsense);
}

namespace {

std::string jobs_table(const Report& report) {
  std::string text = format("\n%-20s %-8s %9s %7s %14s %12s %12s %10s %9s\n", "job", "state", "ranks", "slots", "packets",
                            "chunks", "MB in", "repeats", "in use");
  for (const JobReport* const entry : failed_first(report.jobs)) {
    const session::JobStatus& job = entry->job;
    const std::string ranks = std::to_string(job.joined.size()) + "/" + std::to_string(job.world_size);
    const std::uint64_t repeats = entry->counters.value("repeats_answered") + entry->counters.value("repeats_waiting") +
                                  entry->counters.value("repeats_silent");
    text += format("%-20s %-8s %9s %7u %14llu %12llu %12.1f %10llu %9llu\n", job.job.c_str(), state_of(job), ranks.c_str(),
                   job.slots, static_cast<unsigned long long>(entry->counters.value("packets")),
                   static_cast<unsigned long long>(entry->counters.value("chunks")),
                   static_cast<double>(entry->counters.value("bytes")) / 1e6, static_cast<unsigned long long>(repeats),
                   static_cast<unsigned long long>(entry->counters.value("slots_in_use")));
    if (!job.failure.empty()) text += "  failed: " + job.failure + "\n";
    for (const auto& stall : entry->stalled) {
      const std::string place = stall.missing.size() == 1 ? place_of(*entry, stall.missing.front()) : "";
      text += "  " + in_words(*entry, stall) + (place.empty() ? "" : " (" + place + ")") + "\n";
    }
    text += counters_text("  ", entry->counters);
  }
  return text;
}

}  // namespace

std::string to_table(const Report& report) {
  std::string text = format("netsum %s, up %.0f s, %u %s, %s, %u of %u slots free", report.version.c_str(),
                            report.uptime_seconds, report.threads, report.threads == 1 ? "thread" : "threads",
                            session::in_lanes(report.lanes).c_str(), report.slots_free, report.slots);
  const bool limited = report.memory_bytes != UINT64_MAX;
  text += ", jobs have " + session::in_bytes(report.memory_used) +
          (limited ? " of " + session::in_bytes(report.memory_bytes) : "") + " of memory\n";
  if (report.draining) text += "draining: no new job is admitted (netsum drain --undo ends that)\n";
  for (const transport::Attachment& each : report.interfaces) {
    text += (each.attached ? "interface " : "no packets pass at interface ") + each.interface + ": " + each.state + "\n";
  }
  text += report.jobs.empty() ? "no jobs\n" : jobs_table(report) + "\n";
  constexpr std::size_t most_ended = 8;
  for (std::size_t i = 0; i < std::min(most_ended, report.ended.size()); ++i) {
    const EndedJob& ended = report.ended[i];
    text += (i == 0 ? "lately\n  " : "  ") + ended.job + " " + in_words(ended) + "\n";
  }
  return text + counters_text("", report.counters);
}

}  // namespace netsum::telemetry
