#include "sweep.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/mix.h"
#include "command.h"
#include "progress.h"
#include "quantiles.h"
#include "scenario_file.h"
#include "sim/flow_level.h"
#include "sim/packet_level.h"

namespace netsum::app {
namespace {

using nlohmann::ordered_json;

constexpr std::uint64_t most_runs = 100'000;

struct Axis {
  std::string key;
  std::vector<std::string> values;
  std::uint32_t line = 0;  // of the file; 0: it is of the command line
};
struct Run {
  std::vector<std::string> values;  // of each axis
  std::uint64_t seed = 0;
  ordered_json report;  // null: not finished
};

std::string text_of(const TomlValue& value, const std::string& where) {
  if (const auto* text = value.as<std::string>()) return as_toml(*text);
  if (const auto* number = value.as<std::int64_t>()) return std::to_string(*number);
  if (const auto* number = value.as<double>()) return as_toml(*number);
  if (const auto* flag = value.as<bool>()) return *flag ? "true" : "false";
  throw UsageError(where + " is a list of numbers, strings or true and false");
}

// Without the quotes that TOML has.
std::string shown(const std::string& value) {
  return value.size() > 1 && value.front() == '"' && value.back() == '"' ? value.substr(1, value.size() - 2) : value;
}

std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 0;
  for (const char c : text) hash = mix(hash ^ static_cast<unsigned char>(c)) + 1;
  return hash;
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

class Sweep {
 public:
  explicit Sweep(const SweepPlan& plan) : plan_(plan), text_(read_whole(plan.path)), root_(parse_toml(text_, plan.path)) {
    std::string seeds = plan.seeds;
    if (const TomlValue* sweep = root_.get("sweep")) read_table(*sweep, seeds);
    root_.values.erase("sweep");
    for (const std::string& set : plan.sets) {
      const std::size_t equals = set.find('=');
      if (equals == 0 || equals == std::string::npos)
        throw UsageError("--set is KEY=A,B,C, for example job.slots=64,128, not '" + set + "'");
      add({set.substr(0, equals), split_values(set.substr(equals + 1)), 0});
    }
    const std::uint64_t own = scenario_of(root_, plan.path).seed;
    seeds_ = seeds.empty() ? SeedSpan{own, own} : span_of_seeds(seeds);
    output_ = plan.output;
    if (output_.empty()) {
      output_ = plan.path.substr(plan.path.rfind('/') + 1);
      output_ = output_.substr(0, output_.rfind(".toml")) + "-sweep";
    }
    std::string what = text_ + plan.level;
    for (const Axis& axis : axes_) what += '\n' + axis.key;
    char hash[20];
    std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(hash_of(what)));
    hash_ = hash;
    draw_up();
  }

  int run() {
    take_finished();
    const auto unfinished = static_cast<std::uint64_t>(
        std::count_if(runs_.begin(), runs_.end(), [](const Run& r) { return r.report.is_null(); }));
    if (unfinished != runs_.size())
      std::fprintf(stderr, "netsum: %zu of %zu runs are in %s.jsonl already\n",
                   runs_.size() - static_cast<std::size_t>(unfinished), runs_.size(), output_.c_str());
    run_all();
    write_csv();
    summarize();
    write_svg();
    std::fputs(plan_.json ? json().c_str() : table().c_str(), stdout);
    std::fprintf(stderr, "netsum: wrote %s.jsonl, %s.csv, %s-summary.csv and %s.svg\n", output_.c_str(), output_.c_str(),
                 output_.c_str(), output_.c_str());
    return complain();
  }

 private:
  struct Point {
    std::vector<std::string> values;
    std::string job;
    std::size_t seeds = 0;
    Spread tat, iteration;  // milliseconds
    Spread rate;            // Gbit/s
  };

  void add(Axis axis) {
    if (axis.values.empty()) throw UsageError("--set " + axis.key + " has no value");
    const auto known = std::find_if(axes_.begin(), axes_.end(), [&](const Axis& a) { return a.key == axis.key; });
    known == axes_.end() ? axes_.push_back(std::move(axis)) : void(known->values = std::move(axis.values));
  }

  [[nodiscard]] static SeedSpan span_of_seeds(const std::string& text) {
    return parse_span("seeds", text, 0, UINT64_MAX / 4);
  }

  void read_table(const TomlValue& value, std::string& seeds) {
    const auto* table = value.as<TomlTable>();
    const auto where = [&](std::uint32_t line, const std::string& key) {
      return plan_.path + ", line " + std::to_string(line) + ": `sweep" + key + "`";
    };
    if (table == nullptr) throw UsageError(where(value.line, "") + " is a table: \"job.slots\" = [64, 128]");
    for (const auto& [key, listed] : table->values) {
      const std::string here = where(listed.line, "." + key);
      if (key == "seeds") {
        const auto* text = listed.as<std::string>();
        if (text == nullptr) throw UsageError(here + " is like \"1..10\"");
        try {
          static_cast<void>(span_of_seeds(*text));
        } catch (const UsageError&) {
          throw UsageError(here + " is like \"1..10\", and not '" + *text + "'");
        }
        if (seeds.empty()) seeds = *text;
        continue;
      }
      const auto* list = listed.as<TomlList>();
      if (list == nullptr || list->empty()) throw UsageError(here + " is a list of values: [64, 128]");
      Axis axis{key, {}, listed.line};
      for (const TomlValue& each : *list) axis.values.push_back(text_of(each, here));
      add(std::move(axis));
    }
  }

  // All runs, and an early word on values that cannot be.
  void draw_up() {
    std::uint64_t count = seeds_.to - seeds_.from + 1;
    for (const Axis& axis : axes_) count = count > most_runs ? count : count * axis.values.size();
    if (count > most_runs) throw UsageError("a sweep has at most " + std::to_string(most_runs) + " runs");
    std::vector<std::size_t> at(axes_.size());
    for (bool more = true; more;) {
      Run run;
      for (std::size_t i = 0; i < axes_.size(); ++i) run.values.push_back(axes_[i].values[at[i]]);
      check(run);
      for (run.seed = seeds_.from; run.seed <= seeds_.to; ++run.seed) runs_.push_back(run);
      more = false;
      for (std::size_t i = axes_.size(); i-- > 0 && !more;) {
        more = ++at[i] < axes_[i].values.size();
        if (!more) at[i] = 0;
      }
    }
  }

  void check(const Run& run) const {
    try {
      static_cast<void>(scenario_at(run));
    } catch (const UsageError& error) {
      std::string with;
      for (std::size_t i = 0; i < axes_.size(); ++i) with += (i == 0 ? "" : ", ") + axes_[i].key + "=" + run.values[i];
      throw UsageError(axes_.empty() ? error.what() : std::string(error.what()) + "; this is with " + with);
    }
  }

  [[nodiscard]] sim::Experiment scenario_at(const Run& run) const {
    TomlTable root = root_;
    for (std::size_t i = 0; i < axes_.size(); ++i) set_value(root, axes_[i].key, run.values[i], axes_[i].line);
    sim::Experiment experiment = scenario_of(root, plan_.path);
    experiment.seed = run.seed;
    return experiment;
  }

  [[nodiscard]] std::string key_of(const std::vector<std::string>& values, std::uint64_t seed) const {
    std::string key = std::to_string(seed);
    for (const std::string& value : values) key += '\n' + value;
    return key;
  }

  void take_finished() {
    std::ifstream file(output_ + ".jsonl");
    std::map<std::string, ordered_json> finished;
    std::string kept;
    for (std::string line; std::getline(file, line);) {
      if (file.eof()) break;  // cut off while it was written
      ordered_json report = ordered_json::parse(line, nullptr, false);
      if (report.is_discarded()) continue;
      if (report.value("sweep", "") != hash_)
        throw UsageError(output_ + ".jsonl holds runs of another scenario or level: name another --output, or remove it");
      kept += line + '\n';
      std::vector<std::string> values;
      for (const auto& [key, value] : report["set"].items()) values.push_back(value.get<std::string>());
      finished.emplace(key_of(values, report["seed"].get<std::uint64_t>()), report);
    }
    file.close();
    std::ofstream(output_ + ".jsonl") << kept;
    for (Run& run : runs_) {
      const auto found = finished.find(key_of(run.values, run.seed));
      if (found != finished.end()) run.report = found->second;
    }
  }

  void run_all() {
    std::ofstream file(output_ + ".jsonl", std::ios::app);
    if (!file) throw UsageError("cannot write " + output_ + ".jsonl");
    const Progress progress(runs_.size());
    std::atomic<std::size_t> next = 0, done = 0;
    std::atomic<bool> stop = false;
    std::exception_ptr error;
    std::mutex mutex;  // guards file and error
    const auto work = [&] {
      for (std::size_t i = next++; i < runs_.size() && !stop; i = next++) {
        try {
          const bool known = !runs_[i].report.is_null();
          if (!known) runs_[i].report = report_of(runs_[i]);
          const std::lock_guard lock(mutex);
          if (!known) file << runs_[i].report.dump() << '\n' << std::flush;
          progress.show(++done);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (!error) error = std::current_exception();
          stop = true;
        }
      }
    };
    const std::uint64_t threads = plan_.threads != 0 ? plan_.threads : std::max(1U, std::thread::hardware_concurrency());
    {
      std::vector<std::jthread> others;
      for (std::uint64_t i = 1; i < std::min<std::uint64_t>(threads, runs_.size()); ++i) others.emplace_back(work);
      work();
    }
    if (error) std::rethrow_exception(error);
  }

  [[nodiscard]] ordered_json report_of(const Run& run) const {
    sim::Report report;
    try {
      const sim::Experiment experiment = scenario_at(run);
      report = plan_.level == "flow" ? sim::run_flows(experiment) : sim::run_packets(experiment);
    } catch (const sim::ImpossibleExperiment& impossible) {
      throw error_in_scenario(plan_.path, impossible.key, impossible.what());
    } catch (const std::bad_alloc&) {
      throw UsageError(plan_.path + ": the experiments do not fit into memory: use fewer --threads, elements or ranks");
    } catch (const std::invalid_argument& wrong) {
      throw UsageError(plan_.path + ": " + wrong.what());
    }
    ordered_json out{{"sweep", hash_}, {"set", ordered_json::object()}, {"seed", run.seed}};
    for (std::size_t i = 0; i < axes_.size(); ++i) out["set"][axes_[i].key] = run.values[i];
    out["virtual_seconds"] = report.seconds;
    out["lost"] = report.lost;
    if (!report.failure.empty()) out["failure"] = report.failure;
    if (!report.warnings.empty()) out["warnings"] = report.warnings;
    out["jobs"] = ordered_json::array();
    for (const sim::JobReport& job : report.jobs) {
      const double busy = job.last - job.first;
      const auto time = [](const std::vector<double>& seconds, double share) {
        if (seconds.empty()) return ordered_json();
        return ordered_json((share == 0.5 ? median(seconds) : quantile(seconds, share)) * 1e3);
      };
      out["jobs"].push_back({{"name", job.name},
                             {"ranks", job.ranks},
                             {"operations", job.operation_seconds.size()},
                             {"tat_ms", time(job.operation_seconds, 0.5)},
                             {"tat_ms_p99", time(job.operation_seconds, 0.99)},
                             {"iteration_ms", time(job.iteration_seconds, 0.5)},
                             {"gbit_per_second", busy > 0 ? static_cast<double>(job.bytes) * 8e-9 / busy : 0},
                             {"retransmissions", job.retransmissions}});
    }
    return out;
  }

  void write_csv() const {
    std::ofstream csv(output_ + ".csv");
    for (const Axis& axis : axes_) csv << csv_field(axis.key) << ',';
    csv << "seed,job,ranks,operations,tat_ms,tat_ms_p99,iteration_ms,gbit_per_second,retransmissions,lost,virtual_seconds,"
           "failure\n";
    for (const Run& run : runs_) {
      for (const ordered_json& job : run.report["jobs"]) {
        for (const std::string& value : run.values) csv << csv_field(shown(value)) << ',';
        csv << run.seed << ',' << csv_field(job["name"].get<std::string>());
        for (const char* key :
             {"ranks", "operations", "tat_ms", "tat_ms_p99", "iteration_ms", "gbit_per_second", "retransmissions"})
          csv << ',' << (job[key].is_null() ? "" : job[key].dump());
        csv << ',' << run.report["lost"].dump() << ',' << run.report["virtual_seconds"].dump() << ','
            << csv_field(run.report.value("failure", "")) << '\n';
      }
    }
  }

  void summarize() {
    for (std::size_t first = 0; first < runs_.size();) {
      std::size_t last = first;
      while (last < runs_.size() && runs_[last].values == runs_[first].values) ++last;
      for (std::size_t job = 0; job < runs_[first].report["jobs"].size(); ++job) {
        Point point{
            runs_[first].values, runs_[first].report["jobs"][job]["name"].get<std::string>(), last - first, {}, {}, {}};
        const auto spread = [&](const char* key) {
          std::vector<double> values;
          for (std::size_t i = first; i < last; ++i) {
            const ordered_json& value = runs_[i].report["jobs"][job][key];
            if (!value.is_null()) values.push_back(value.get<double>());
          }
          return spread_of(std::move(values));
        };
        point.tat = spread("tat_ms");
        point.iteration = spread("iteration_ms");
        point.rate = spread("gbit_per_second");
        points_.push_back(std::move(point));
      }
      first = last;
    }
    std::ofstream csv(output_ + "-summary.csv");
    for (const Axis& axis : axes_) csv << csv_field(axis.key) << ',';
    csv << "job,seeds";
    for (const char* what : {"tat_ms", "iteration_ms", "gbit_per_second"}) {
      for (const char* of : {"median", "p5", "p95", "mean", "mean_low", "mean_high"}) csv << ',' << what << '_' << of;
    }
    csv << '\n';
    for (const Point& point : points_) {
      for (const std::string& value : point.values) csv << csv_field(shown(value)) << ',';
      csv << csv_field(point.job) << ',' << point.seeds;
      for (const Spread* s : {&point.tat, &point.iteration, &point.rate})
        csv << ',' << s->median << ',' << s->low << ',' << s->high << ',' << s->mean << ',' << s->mean_low << ','
            << s->mean_high;
      csv << '\n';
    }
  }

  // One line for each job and each set of values behind the first axis, along that one's values.
  void write_svg() const {
    constexpr double width = 720, height = 420, left = 70, right = 190, top = 30, bottom = 60;
    std::vector<std::string> along;
    for (const std::string& value : axes_.empty() ? std::vector<std::string>{""} : axes_.front().values)
      along.push_back(value);
    std::map<std::string, std::vector<const Point*>> lines;
    double most = 0;
    for (const Point& point : points_) {
      std::string name = point.job;
      for (std::size_t i = 1; i < axes_.size(); ++i) name += ", " + axes_[i].key + " " + shown(point.values[i]);
      lines[name].push_back(&point);
      most = std::max({most, point.tat.mean_high, point.tat.mean});
    }
    if (most == 0) most = 1;
    const auto x_of = [&](const Point& point) {
      const auto at = point.values.empty() ? 0 : std::find(along.begin(), along.end(), point.values.front()) - along.begin();
      return left + (static_cast<double>(at) + 0.5) * (width - left - right) / static_cast<double>(along.size());
    };
    const auto y_of = [&](double value) { return height - bottom - value / (1.05 * most) * (height - top - bottom); };
    std::ofstream svg(output_ + ".svg");
    const auto text = [&](double x, double y, const char* anchor, const std::string& what) {
      std::string escaped;
      for (const char c : what) escaped += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
      svg << "<text x=\"" << x << "\" y=\"" << y << "\" text-anchor=\"" << anchor << "\">" << escaped << "</text>\n";
    };
    const auto line = [&](double x1, double y1, double x2, double y2, const char* colour) {
      svg << "<line x1=\"" << x1 << "\" y1=\"" << y1 << "\" x2=\"" << x2 << "\" y2=\"" << y2 << "\" stroke=\"" << colour
          << "\"/>\n";
    };
    svg << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << width << "\" height=\"" << height
        << "\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
    for (int tick = 0; tick <= 5; ++tick) {
      char number[32];
      std::snprintf(number, sizeof number, "%.3g", most * tick / 5);
      line(left, y_of(most * tick / 5), width - right, y_of(most * tick / 5), "#ddd");
      text(left - 6, y_of(most * tick / 5) + 4, "end", number);
    }
    line(left, top, left, height - bottom, "black");
    line(left, height - bottom, width - right, height - bottom, "black");
    for (std::size_t i = 0; i < along.size() && !axes_.empty(); ++i)
      text(left + (static_cast<double>(i) + 0.5) * (width - left - right) / static_cast<double>(along.size()),
           height - bottom + 18, "middle", shown(along[i]));
    text((left + width - right) / 2, height - 12, "middle",
         (axes_.empty() ? "" : axes_.front().key + "; ") + "mean and 95 % interval of " +
             std::to_string(seeds_.to - seeds_.from + 1) + " seeds");
    text(left, top - 12, "start", "TAT, ms (a run's median)");
    constexpr std::array colours{"#1b6ca8", "#c8553d", "#3a7d44", "#8e44ad", "#b8860b", "#444444", "#d6336c", "#0b7285"};
    std::size_t number = 0;
    for (const auto& [name, points] : lines) {
      const char* const colour = colours[number % colours.size()];
      svg << "<polyline fill=\"none\" stroke=\"" << colour << "\" points=\"";
      for (const Point* point : points) svg << x_of(*point) << ',' << y_of(point->tat.mean) << ' ';
      svg << "\"/>\n";
      for (const Point* point : points) {
        line(x_of(*point), y_of(point->tat.mean_low), x_of(*point), y_of(point->tat.mean_high), colour);
        svg << "<circle cx=\"" << x_of(*point) << "\" cy=\"" << y_of(point->tat.mean) << "\" r=\"3\" fill=\"" << colour
            << "\"/>\n";
      }
      const double y = top + 16 * static_cast<double>(number++);
      line(width - right + 12, y - 4, width - right + 28, y - 4, colour);
      text(width - right + 34, y, "start", name);
    }
    svg << "</svg>\n";
  }

  [[nodiscard]] std::string table() const {
    std::string text;
    char row[256];
    for (const Axis& axis : axes_) text += (text.empty() ? "  " : ", ") + axis.key;
    std::snprintf(row, sizeof row, "  %-36s %-12s %5s %11s %23s %11s %11s\n", text.c_str() + (text.empty() ? 0 : 2), "job",
                  "seeds", "TAT ms", "mean, 95 %", "5th", "95th");
    text = row;
    for (const Point& point : points_) {
      std::string values;
      for (const std::string& value : point.values) values += (values.empty() ? "" : ", ") + shown(value);
      std::snprintf(row, sizeof row, "  %-36s %-12s %5zu %11.4g  %9.4g %9.4g..%-9.4g %6.4g %11.4g\n", values.c_str(),
                    point.job.c_str(), point.seeds, point.tat.median, point.tat.mean, point.tat.mean_low,
                    point.tat.mean_high, point.tat.low, point.tat.high);
      text += row;
    }
    return text;
  }

  [[nodiscard]] std::string json() const {
    ordered_json out = ordered_json::array();
    const auto of = [](const Spread& s) {
      return ordered_json{{"median", s.median},     {"p5", s.low},
                          {"p95", s.high},          {"mean", s.mean},
                          {"mean_low", s.mean_low}, {"mean_high", s.mean_high}};
    };
    for (const Point& point : points_) {
      ordered_json set = ordered_json::object();
      for (std::size_t i = 0; i < axes_.size(); ++i) set[axes_[i].key] = shown(point.values[i]);
      out.push_back({{"set", set},
                     {"job", point.job},
                     {"seeds", point.seeds},
                     {"tat_ms", of(point.tat)},
                     {"iteration_ms", of(point.iteration)},
                     {"gbit_per_second", of(point.rate)}});
    }
    return out.dump(2) + "\n";
  }

  [[nodiscard]] int complain() const {
    std::set<std::string> warnings, failures;
    bool alike = seeds_.to > seeds_.from;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      for (const ordered_json& warning : runs_[i].report.value("warnings", ordered_json::array()))
        warnings.insert(warning.get<std::string>());
      if (runs_[i].report.contains("failure"))
        failures.insert("seed " + std::to_string(runs_[i].seed) + ": " + runs_[i].report["failure"].get<std::string>());
      alike &= i == 0 || runs_[i].values != runs_[i - 1].values || runs_[i].report["jobs"] == runs_[i - 1].report["jobs"];
    }
    if (alike)
      warnings.insert(
          "all seeds are alike, as nothing here is random: see ties, arrivals, start_jitter, jitter and loss "
          "(docs/simulator.md)");
    for (const std::string& warning : warnings)
      std::fprintf(stderr, "netsum: %s: %s\n", plan_.path.c_str(), warning.c_str());
    for (const std::string& failure : failures)
      std::fprintf(stderr, "netsum: %s: %s\n", plan_.path.c_str(), failure.c_str());
    return failures.empty() ? exit_done : exit_failed;
  }

  const SweepPlan& plan_;
  const std::string text_;
  TomlTable root_;
  std::vector<Axis> axes_;
  SeedSpan seeds_;
  std::string output_, hash_;
  std::vector<Run> runs_;
  std::vector<Point> points_;
};

// A table of a list, by "job[0]"; all of them by "job".
void set_below(TomlTable& table, const std::string& rest, const std::string& key, const TomlValue& value) {
  const std::size_t dot = rest.find('.');
  const std::string part = rest.substr(0, dot), name = part.substr(0, part.find('['));
  if (name.empty()) throw UsageError("--set names no key: '" + key + "'");
  if (dot == std::string::npos) {
    table.values[name] = value;
    return;
  }
  const std::string behind = rest.substr(dot + 1);
  TomlValue& inner = table.values[name];
  if (inner.value.index() == 0) inner.value = TomlTable{};
  if (auto* const below = std::get_if<TomlTable>(&inner.value)) return set_below(*below, behind, key, value);
  auto* const list = std::get_if<TomlList>(&inner.value);
  if (list == nullptr) throw UsageError("--set " + key + ": '" + part + "' is not a table");
  const std::size_t bracket = part.find('[');
  bool any = false;
  for (std::size_t i = 0; i < list->size(); ++i) {
    if (bracket != std::string::npos && part.substr(bracket) != "[" + std::to_string(i) + "]") continue;
    auto* const below = std::get_if<TomlTable>(&(*list)[i].value);
    if (below == nullptr) throw UsageError("--set " + key + ": '" + part + "' is not a table");
    set_below(*below, behind, key, value);
    any = true;
  }
  if (!any) throw UsageError("--set " + key + ": there is no '" + part + "'");
}

}  // namespace

std::vector<std::string> split_values(const std::string& text) {
  std::vector<std::string> values;
  std::string value;
  int depth = 0;
  bool quoted = false;
  const auto end = [&] {
    const std::size_t from = value.find_first_not_of(' '), to = value.find_last_not_of(' ');
    if (from != std::string::npos) values.push_back(value.substr(from, to - from + 1));
    value.clear();
  };
  for (const char c : text) {
    if (c == '"') quoted = !quoted;
    if (!quoted && (c == '[' || c == '{')) ++depth;
    if (!quoted && (c == ']' || c == '}')) --depth;
    if (c == ',' && !quoted && depth == 0) {
      end();
    } else {
      value += c;
    }
  }
  end();
  return values;
}

void set_value(TomlTable& root, const std::string& key, const std::string& value, std::uint32_t line) {
  TomlValue parsed;
  try {
    parsed = *parse_toml("x = " + value, "").get("x");
  } catch (const UsageError&) {
    parsed.value = value;  // a word needs no quotes
  }
  parsed.line = line;
  set_below(root, key, key, parsed);
}

Spread spread_of(std::vector<double> values) {
  Spread spread;
  if (values.empty()) return spread;
  // Student's t, 97.5 %, by degrees of freedom from 1.
  constexpr std::array quantiles{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                 2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
                                 2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
  const auto count = static_cast<double>(values.size());
  for (const double value : values) spread.mean += value / count;
  double squares = 0;
  for (const double value : values) squares += (value - spread.mean) * (value - spread.mean);
  double half = 0;
  if (values.size() > 1)
    half = (values.size() - 2 < quantiles.size() ? quantiles[values.size() - 2] : 1.96) *
           std::sqrt(squares / (count - 1) / count);
  spread.mean_low = spread.mean - half;
  spread.mean_high = spread.mean + half;
  spread.median = median(values);
  spread.low = quantile(values, 0.05);
  spread.high = quantile(std::move(values), 0.95);
  return spread;
}

bool has_sweep(const std::string& path) {
  return parse_toml(read_whole(path), path).get("sweep") != nullptr;
}

SeedSpan parse_span(const std::string& flag, const std::string& text, std::uint64_t least, std::uint64_t most) {
  const std::size_t dots = text.find("..");
  const auto number = [&](const std::string& part) {
    if (part.empty() || part.size() > 19 || part.find_first_not_of("0123456789") != std::string::npos) {
      throw UsageError("--" + flag + " is a number or A..B, not '" + text + "'");
    }
    return std::stoull(part);
  };
  SeedSpan span;
  span.from = number(text.substr(0, dots));
  span.to = dots == std::string::npos ? span.from : number(text.substr(dots + 2));
  if (span.from > span.to || span.from < least || span.to > most) {
    throw UsageError("--" + flag + " " + text + " is not within " + std::to_string(least) + ".." + std::to_string(most));
  }
  return span;
}

int run_sweep(const SweepPlan& plan) {
  if (plan.level != "packet" && plan.level != "flow")
    throw UsageError("--level is packet or flow, not '" + plan.level + "'");
  return Sweep(plan).run();
}

}  // namespace netsum::app
