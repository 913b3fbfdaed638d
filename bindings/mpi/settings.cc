#include "settings.h"

#include <array>

namespace netsum::mpi {
namespace {

// What was measured is in docs/mpi.md. In shared memory netsum is at least as fast as MPI with any length. Over packets
// short messages are MPI's, and as the ranks grow more, its latency grows, and netsum's does not.
constexpr std::uint64_t least_in_memory = 0, least_in_packets = 512;

// MPI has no time-outs, and a rank may compute for hours before it comes. That a rank has died is noticed within seconds.
constexpr std::uint64_t default_operation_seconds = 24 * 3600;

constexpr std::array<const char*, 3> float32_names = {"exact", "all", "off"};

}  // namespace

std::uint64_t least_bytes(bool on_one_host) {
  return on_one_host ? least_in_memory : least_in_packets;
}

Settings settings_from_environment() {
  Settings settings;
  settings.common = bindings::from_environment();
  constexpr std::uint64_t unset = ~std::uint64_t{0};
  const std::uint64_t least = bindings::whole_number("NETSUM_MPI_MIN_BYTES", unset, 0, unset - 1);
  if (least != unset) settings.min_bytes = least;
  const std::string float32 = bindings::choice("NETSUM_MPI_FLOAT32", float32_names[0], {"exact", "all", "off"});
  settings.float32 = float32 == "exact" ? Float32::as_exact : float32 == "all" ? Float32::all : Float32::off;
  const std::string report = bindings::choice("NETSUM_MPI_REPORT", "auto", {"auto", "1", "0"});
  settings.report = report == "auto" ? Report::mostly_mpi : report == "1" ? Report::always : Report::never;
  settings.operation_deadline = std::chrono::seconds(
      bindings::whole_number("NETSUM_MPI_DEADLINE_SECONDS", default_operation_seconds, 1, 366 * 24 * 3600ULL));
  return settings;
}

std::vector<std::pair<std::string, std::string>> Settings::shared() const {
  auto values = common.shared();
  values.emplace_back("NETSUM_MPI_MIN_BYTES", min_bytes ? std::to_string(*min_bytes) : "");
  values.emplace_back("NETSUM_MPI_FLOAT32", float32_names[static_cast<std::size_t>(float32)]);
  return values;
}

}  // namespace netsum::mpi
