// What the NETSUM_* variables say, for MPI.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/settings/settings.h"
#include "path.h"

namespace netsum::mpi {

// Which float32 sums take the switch (docs/mpi.md). as_exact: those that are at least as exact as MPI's.
enum class Float32 : std::uint8_t { as_exact, all, off };
// When the report is printed. mostly_mpi: if most of the bytes did not take the switch.
enum class Report : std::uint8_t { mostly_mpi, always, never };

struct Settings {
  settings::Settings common;
  std::optional<std::uint64_t> min_bytes;  // empty: least_bytes()
  std::uint64_t join_calls = 64;           // see Job::is_due()
  Float32 float32 = Float32::as_exact;
  Report report = Report::mostly_mpi;

  // What must be equal on all ranks: names and values.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> shared() const;
};

// Of calls of this form that take the switch, by default.
[[nodiscard]] std::uint64_t least_bytes(bool on_one_host, Form form);

// Throws Error: bad_argument.
[[nodiscard]] Settings settings_from_environment();

}  // namespace netsum::mpi
