#include "settings.h"

#include <array>
#include <chrono>

#include "bindings/settings/reader.h"

namespace netsum::mpi {
namespace {

// What was measured is in docs/mpi.md. In shared memory netsum is at least as fast as MPI with any length. Over packets
// short messages are MPI's, and as the ranks grow more, its latency grows, and netsum's does not.
constexpr std::uint64_t least_in_memory = 0, least_in_packets = 512;
// In the background an operation goes to another thread and back, which takes longer than MPI's short calls.
constexpr std::uint64_t least_in_background = 65'536;

// MPI has no time-outs, and a rank may compute for hours before it comes. That a rank has died is noticed within seconds.
constexpr std::chrono::hours operation_deadline{24};

using settings::Choice;
constexpr std::array floats = {Choice{"exact", Float32::as_exact}, Choice{"all", Float32::all}, Choice{"off", Float32::off}};
constexpr std::array reports = {Choice{"auto", Report::mostly_mpi}, Choice{"1", Report::always}, Choice{"0", Report::never}};

}  // namespace

std::uint64_t least_bytes(bool on_one_host, Form form) {
  if (form != Form::blocking) return least_in_background;
  return on_one_host ? least_in_memory : least_in_packets;
}

Settings settings_from_environment() {
  Settings settings;
  settings.common.options.operation_deadline = operation_deadline;
  settings.common = settings::read(&settings::from_environment, settings.common);
  const settings::Reader reader;
  std::uint64_t least = 0;
  if (reader.number("NETSUM_MPI_MIN_BYTES", least, std::uint64_t{0}, std::uint64_t{1} << 62)) settings.min_bytes = least;
  reader.number("NETSUM_MPI_JOIN_CALLS", settings.join_calls, std::uint64_t{1}, std::uint64_t{1} << 62);
  settings.float32 = reader.one_of("NETSUM_MPI_FLOAT32", floats, settings.float32);
  settings.report = reader.one_of("NETSUM_MPI_REPORT", reports, settings.report);
  return settings;
}

std::vector<std::pair<std::string, std::string>> Settings::shared() const {
  auto values = settings::common_to_all_ranks(common);
  values.emplace_back("NETSUM_MPI_MIN_BYTES", min_bytes ? std::to_string(*min_bytes) : "");
  values.emplace_back("NETSUM_MPI_JOIN_CALLS", std::to_string(join_calls));
  values.emplace_back("NETSUM_MPI_FLOAT32", name_of(floats, float32));
  return values;
}

}  // namespace netsum::mpi
