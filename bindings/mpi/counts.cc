#include "counts.h"

#include <cstdio>
#include <iterator>

namespace netsum::mpi {
namespace {

std::string in_bytes(std::uint64_t bytes) {
  constexpr const char* units[] = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1000 && unit + 1 < std::size(units); ++unit) value /= 1000;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
  return text;
}

struct Row {
  std::uint64_t calls = 0, bytes = 0;
  std::string collectives;
};

}  // namespace

bool Counts::mostly_mpi() const {
  std::uint64_t by_switch = 0, all = 0;
  for (std::size_t path = 0; path < paths; ++path) {
    for (const Count& count : counts_[path]) {
      all += count.bytes.load();
      if (path == static_cast<std::size_t>(Path::the_switch)) by_switch += count.bytes.load();
    }
  }
  return all > 2 * by_switch;
}

std::string Counts::report(int rank, int ranks) const {
  std::string text = "netsum: collective calls of rank " + std::to_string(rank) + " of " + std::to_string(ranks) + "\n";
  char line[400];
  std::snprintf(line, sizeof line, "netsum: %12s %10s  %s\n", "calls", "bytes", "path");
  text += line;
  for (std::size_t path = 0; path < paths; ++path) {
    Row row;
    for (std::size_t i = 0; i < counts_[path].size(); ++i) {
      const std::uint64_t calls = counts_[path][i].calls.load();
      if (calls == 0) continue;
      row.calls += calls;
      row.bytes += counts_[path][i].bytes.load();
      const std::string name =
          name_of(static_cast<Collective>(i % collective_names.size()), static_cast<Form>(i / collective_names.size()));
      row.collectives += (row.collectives.empty() ? "" : ", ") + std::to_string(calls) + " " + name;
    }
    if (row.calls == 0) continue;
    const bool by_switch = path == static_cast<std::size_t>(Path::the_switch);
    std::snprintf(line, sizeof line, "netsum: %12llu %10s  %s%s%s: %s\n", static_cast<unsigned long long>(row.calls),
                  in_bytes(row.bytes).c_str(), by_switch ? "" : "MPI (", path_names[path], by_switch ? "" : ")",
                  row.collectives.c_str());
    text += line;
  }
  return text;
}

}  // namespace netsum::mpi
