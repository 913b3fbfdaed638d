#include "telemetry/flight_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "netsum/error.h"
#include "session/check.h"
#include "session/words.h"
#include "telemetry/report.h"
#include "telemetry/shallow_json.h"

namespace netsum::telemetry {
namespace {

using nlohmann::ordered_json;
using session::FailureCause;

constexpr int record_format = 1;
constexpr std::size_t longest_file = 16 << 20, longest_name = 60;
constexpr char suffix[] = ".flight.json";

struct CauseWords {
  FailureCause cause;
  const char* advice;  // what to do
};
constexpr auto causes = std::to_array<CauseWords>({
    {FailureCause::none, "Nothing: it did not fail. If an operation waits, look at the ranks that it waits for."},
    {FailureCause::ended_by_operator,
     "Nothing is wrong with the job: `netsum end` ended it. A launcher that starts jobs again starts this one again."},
    {FailureCause::silent,
     "Look at that rank's host first: is the process alive (its own log, `dmesg` for the OOM killer), is the host up, does "
     "TCP reach this daemon from it (`nc -zv`)? A process that was only stopped (a debugger, a swapping host) counts as "
     "dead "
     "too: raise --heartbeat-timeout-ms where that is usual. With Options::recovery the job waits for a new process "
     "instead."},
    {FailureCause::died,
     "The kernel closed the rank's connection, so its process has ended: its own log, its exit status and `dmesg` "
     "(OOM killer) say why. Start the job again, or use Options::recovery."},
    {FailureCause::gave_up,
     "A rank's connect deadline passed before all ranks were there. Start all ranks at about the same time, or raise "
     "Options::connect_deadline; then find out why the missing ranks did not join: check the address that they were given, "
     "the token, and a firewall in front of this daemon's TCP port."},
    {FailureCause::left,
     "The rank ended its communicator while others were in a collective call: its own log says why (an exception, a missed "
     "deadline, fewer iterations than the others). All ranks must make the same calls."},
    {FailureCause::mismatch,
     "The ranks named above issued different calls at the same place: another collective, another length or type, another "
     "order. Compare what they call there; conditions on the rank number are the usual reason."},
    {FailureCause::started_again,
     "Nothing, if a launcher started the job again: a later start ends an earlier one. Otherwise two jobs have the same "
     "name: give one another name."},
    {FailureCause::straggler,
     "Nothing, if the job shall continue without ranks that are late (Options::straggler_deadline). If that happens often, "
     "look "
     "at why these ranks are slower, or give them more time."},
    {FailureCause::shutting_down,
     "This daemon was stopped while the job ran. Stop daemons between jobs, or use Options::recovery with several "
     "aggregators."},
    {FailureCause::not_started,
     "This daemon could not serve the job; the reason above says what it lacked. Ask for fewer slots, or give the daemon "
     "more memory."},
    {FailureCause::refused, "The ranks were refused before the job ran; the reason above says what to change."},
    {FailureCause::other, "The reason above says what went wrong."},
    {FailureCause::deadline,
     "An operation had no result in time. Where a rank is named that it waited for, look at that rank first. Where the "
     "packets of all ranks have no answer, look at the path: `netsum doctor --switch` says whether UDP passes. Raise "
     "Options::operation_deadline where ranks may be that late."},
    {FailureCause::aggregator_lost,
     "The ranks could no longer use one of the job's aggregators, as the reason above says. Check that it runs, and check "
     "the network between it and the ranks."},
});

const CauseWords& words_of(FailureCause cause) {
  return *std::find_if(causes.begin(), causes.end(), [&](const CauseWords& words) { return words.cause == cause; });
}
const CauseWords& words_of(const std::string& name) {
  const auto* const found =
      std::find_if(causes.begin(), causes.end(), [&](const CauseWords& words) { return name == name_of(words.cause); });
  return found == causes.end() ? words_of(FailureCause::other) : *found;
}

double seconds(Duration duration) {
  return std::round(std::chrono::duration<double>(duration).count() * 1e3) / 1e3;
}

std::string utc(double unix_seconds, const char* pattern) {
  constexpr double far = 1e11;  // some thousand years
  const auto whole = static_cast<std::time_t>(std::clamp(unix_seconds, -far, far));
  std::tm parts{};
  if (gmtime_r(&whole, &parts) == nullptr) return "?";
  char text[64];
  return std::strftime(text, sizeof text, pattern, &parts) == 0 ? "?" : text;
}

// ---- reading: values from anywhere

std::string line_of(const ordered_json& json) {
  return session::one_line(json.get<std::string>());
}

std::string ranks_in_words(const ordered_json& ranks) {
  RankSet set;
  for (const auto& rank : ranks) {
    const auto number = rank.get<std::uint64_t>();
    if (number < max_world_size) set.insert(static_cast<std::uint32_t>(number));
  }
  return set.empty() ? "no rank" : session::name_ranks(set);
}

// "rank 3 (10.0.0.4)", where the file says which host that is.
std::string with_host(const ordered_json& file, std::uint64_t rank) {
  std::string text = "rank " + std::to_string(rank);
  for (const auto& host : file.value("hosts", ordered_json::array())) {
    const auto& ranks = host.at("ranks");
    const auto at = static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
    if (at == ranks.size()) continue;
    const auto processes = host.value("processes", std::vector<std::uint64_t>());
    return text + " (" +
           place_in_words(line_of(host.at("address")), session::one_line(host.value("name", "")),
                          at < processes.size() ? processes[at] : 0) +
           ")";
  }
  return text;
}

std::string event_line(const ordered_json& file, const ordered_json& event) {
  char time[32];
  std::snprintf(time, sizeof time, "%+10.3f s  ", event.at("seconds").get<double>());
  std::string text = std::string("  ") + time + line_of(event.at("kind"));
  text.resize(std::max<std::size_t>(text.size(), 28), ' ');
  if (event.contains("rank")) text += with_host(file, event.at("rank").get<std::uint64_t>());
  const std::string what = line_of(event.at("what"));
  if (!what.empty()) text += (event.contains("rank") ? ": " : "") + what;
  return text + "\n";
}

// Runs of ranks that joined, or left, in one line each.
std::string events_text(const ordered_json& file) {
  std::string text;
  const auto& events = file.at("events");
  for (std::size_t i = 0; i < events.size(); ++i) {
    const auto& first = events[i];
    const auto plain = [&](const ordered_json& event) {
      return event.at("kind") == first.at("kind") && event.contains("rank") && event.at("what") == "";
    };
    std::size_t end = i;
    RankSet ranks;
    while (end < events.size() && plain(events[end])) {
      const auto rank = events[end++].at("rank").get<std::uint64_t>();
      if (rank < max_world_size) ranks.insert(static_cast<std::uint32_t>(rank));
    }
    if (end < i + 3) {
      text += event_line(file, first);
      continue;
    }
    ordered_json all = first;
    all.erase("rank");
    char until[32];
    std::snprintf(until, sizeof until, ", until %+.3f s", events[end - 1].at("seconds").get<double>());
    all["what"] = session::name_ranks(ranks) + until;
    text += event_line(file, all);
    i = end - 1;
  }
  return text;
}

std::string stalls_text(const ordered_json& file) {
  if (file.at("stalled").empty()) return "  no operation waited for a rank at the last look\n";
  std::string text, last;
  for (const auto& stall : file.at("stalled")) {
    const auto& missing = stall.at("missing");
    std::string line = "  " + line_of(file.at("stalled_unit")) + " " +
                       std::to_string(stall.at("operation").get<std::uint64_t>()) + " waited for ";
    line += missing.size() == 1 ? with_host(file, missing[0].get<std::uint64_t>()) : ranks_in_words(missing);
    if (line != last) text += line + "\n";  // another chunk of it
    last = line;
  }
  return text;
}

// Words in lines of a terminal's width, each behind two spaces.
std::string wrapped(const std::string& text) {
  constexpr std::size_t width = 110;
  std::string lines, line;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (!line.empty() && line.size() + 1 + word.size() > width) {
      lines += "  " + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
    at = end + 1;
  }
  return lines + "  " + line + "\n";
}

// What the counters add to the reason.
std::string hints(const ordered_json& file) {
  const auto& counters = file.at("counters");
  const auto value = [&](const char* name) { return counters.contains(name) ? counters.at(name).get<std::uint64_t>() : 0; };
  std::string text;
  const std::uint64_t packets = value("packets"), again = value("repeats_answered") + value("sums_asked_for");
  if (packets != 0 && again * 100 > packets) {
    text += "  " + std::to_string(again) + " of " + std::to_string(packets) +
            " packets were answered again: the network, or a receive buffer, lost answers. `netsum doctor` looks at both.\n";
  }
  if (value("dropped_mismatch") != 0) {
    text += "  " + std::to_string(value("dropped_mismatch")) +
            " packets belonged to another call than the packets of the other ranks.\n";
  }
  if (value("dropped_source") + value("dropped_rank_epoch") != 0) {
    text += "  " + std::to_string(value("dropped_source") + value("dropped_rank_epoch")) +
            " packets came from another address or process than that of the rank in their header.\n";
  }
  if (value("dropped_seal") != 0) {
    text += "  " + std::to_string(value("dropped_seal")) + " packets were forged or damaged: their tag was wrong.\n";
  }
  return text;
}

std::string explained(const ordered_json& file) {
  const double written = file.at("written_unix_seconds").get<double>();
  const double lasted = file.at("seconds").get<double>();
  std::string text = "job '" + line_of(file.at("job")) + "'";
  if (const std::string tenant = line_of(file.at("tenant")); !tenant.empty()) text += " of tenant '" + tenant + "'";
  text += ", " + std::to_string(file.at("world_size").get<std::uint64_t>()) + " ranks";
  if (const std::string protocol = line_of(file.at("protocol")); !protocol.empty()) text += ", " + protocol;
  text += ", at " + line_of(file.at("daemon")) + " " + line_of(file.at("address")) + " (netsum " +
          line_of(file.at("version")) + ")\n";
  text += "from " + utc(written - lasted, "%F %T") + " until " + utc(written, "%F %T") + " UTC\n\n";
  const std::string failure = line_of(file.at("failure"));
  text += "What happened\n" + wrapped(!failure.empty()            ? failure
                                      : file.value("ended", true) ? "it ended in good order"
                                                                  : "it has not ended");
  text += "\nRanks that it waited for\n" + stalls_text(file);
  text += "\nEvents\n";
  if (const auto omitted = file.at("events_omitted").get<std::uint64_t>(); omitted != 0) {
    text += "  (" + std::to_string(omitted) + " earlier ones are not kept)\n";
  }
  text += events_text(file);
  text += "\nWhat to do\n" + hints(file);
  const std::string cause = line_of(file.at("cause"));
  const CauseWords& words = words_of(cause);
  if (file.contains("rank") && words.cause != FailureCause::started_again) {
    text += "  The rank in question: " + with_host(file, file.at("rank").get<std::uint64_t>()) + ".\n";
  }
  return text + wrapped(words.advice);
}

}  // namespace

std::string to_json(const FlightRecord& record, const FlightFileOrigin& origin) {
  ordered_json events = ordered_json::array(), stalled = ordered_json::array(), switches = ordered_json::array(),
               counters = ordered_json::object();
  for (const FlightEvent& event : record.events) {
    ordered_json json = {{"seconds", seconds(event.at - record.began)}, {"kind", event.kind}};
    if (event.rank) json["rank"] = *event.rank;
    json["what"] = session::one_line(event.what);
    events.push_back(std::move(json));
  }
  const session::JobReport none, &looked = record.looked ? *record.looked : none;
  for (const auto& stall : looked.stalled) {
    stalled.push_back({{"operation", stall.operation}, {"chunk", stall.chunk}, {"missing", stall.missing}});
  }
  for (const auto& each : looked.switches) {
    switches.push_back({{"address", each.address}, {"parent", each.parent}, {"ranks", each.ranks}});
  }
  for (const auto& [name, value] : looked.counters) counters[name] = value;
  ordered_json json = {
      {"netsum_flight_record", record_format},
      {"version", origin.version},
      {"daemon", origin.daemon},
      {"address", origin.address},
      {"written_unix_seconds", std::chrono::duration<double>(origin.written.time_since_epoch()).count()},
      {"job", record.job},
      {"job_epoch", record.job_epoch},
      {"tenant", record.tenant},
      {"protocol", looked.job.protocol},
      {"world_size", record.world_size},
      {"seconds", seconds(origin.now - record.began)},
      {"cause", name_of(record.cause)},
      {"failure", session::one_line(record.failure)},
      {"ended", record.ended.has_value()},
  };
  if (record.lost) json["rank"] = *record.lost;
  json["events_omitted"] = record.omitted;
  json["events"] = std::move(events);
  json["stalled_unit"] = looked.stalled_unit;
  json["stalled"] = std::move(stalled);
  json["hosts"] = hosts_json(looked.hosts);
  json["switches"] = std::move(switches);
  json["counters"] = std::move(counters);
  return json.dump(2) + "\n";
}

namespace {

Error no_record(const std::string& why) {
  return {ErrorCode::bad_argument, "this is not a netsum flight record: " + session::one_line(why)};
}

}  // namespace

std::string printable_record(const std::string& json) {
  return read_json(
      json, [](const ordered_json& record) { return record.dump(2, ' ', true) + "\n"; }, &no_record);
}

std::string explain(const std::string& json) {
  if (json.size() > longest_file) throw no_record("it has " + std::to_string(json.size()) + " bytes");
  return read_json(
      json,
      [](const ordered_json& file) {
        const auto version = file.at("netsum_flight_record").get<std::int64_t>();
        if (version != record_format) {
          throw Error(ErrorCode::bad_argument, "the flight record has format " + std::to_string(version) +
                                                   ", and this netsum reads format " + std::to_string(record_format) +
                                                   ": use the version that wrote it");
        }
        return explained(file);
      },
      &no_record);
}

namespace {

// As part of a file's name.
std::string plain(const std::string& text) {
  std::string name;
  for (const char c : text.substr(0, longest_name)) {
    const bool same = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
    name += same ? c : '_';
  }
  return name;
}

}  // namespace

FlightFolder::FlightFolder(std::string path, std::size_t most_files) : path_(std::move(path)), most_files_(most_files) {
  std::error_code error;
  std::filesystem::create_directories(path_, error);
  const std::string probe = path_ + "/.netsum-" + std::to_string(std::time(nullptr));
  if (!std::ofstream(probe)) {
    throw Error(ErrorCode::bad_argument, "cannot write flight records to '" + path_ +
                                             "': " + (error ? error.message() : "no file can be made there") +
                                             "; name a folder that this daemon's user may write to (--flight-records)");
  }
  std::filesystem::remove(probe, error);
}

std::string FlightFolder::write(const FlightRecord& record, const FlightFileOrigin& origin) const {
  const std::string tenant = record.tenant.empty() ? "" : plain(record.tenant) + ".";
  const double written = std::chrono::duration<double>(origin.written.time_since_epoch()).count();
  char number[32];
  std::snprintf(number, sizeof number, ".%03d-%06x-", static_cast<int>((written - std::floor(written)) * 1e3),
                static_cast<unsigned>(record.job_epoch & 0xffffff));
  const std::string when = utc(written, "%Y%m%dT%H%M%S") + number;  // in front, so that files are sorted by time
  const std::string path = path_ + "/" + when + tenant + plain(record.job) + suffix;
  const std::string unfinished = path + ".new";
  std::error_code error;
  {
    std::ofstream file(unfinished, std::ios::binary);
    file << to_json(record, origin);
    if (file.flush()) std::filesystem::rename(unfinished, path, error);
    if (!file || error) {
      std::filesystem::remove(unfinished, error);
      throw Error(ErrorCode::internal, "the flight record '" + path + "' cannot be written: is the disk full?");
    }
  }
  // No tenant's failures push another's out.
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(path_, error)) {
    const std::string each = entry.path().filename().string();
    if (!each.ends_with(suffix) || each.size() < when.size()) continue;
    const std::string_view whose =
        std::string_view(each).substr(when.size(), each.size() - when.size() - std::strlen(suffix));
    if (tenant.empty() ? whose.find('.') == whose.npos : whose.starts_with(tenant)) files.push_back(each);
  }
  std::sort(files.begin(), files.end());
  for (std::size_t i = 0; i + most_files_ < files.size(); ++i) std::filesystem::remove(path_ + "/" + files[i], error);
  return path;
}

}  // namespace netsum::telemetry
