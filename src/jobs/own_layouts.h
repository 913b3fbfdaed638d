// The layouts in words of each protocol's own parts, which are known where their fields are.
#pragma once

#include <string>

namespace netsum::jobs {

[[nodiscard]] std::string atp_layout();
[[nodiscard]] std::string netreduce_layout();
[[nodiscard]] std::string chip_layout();
[[nodiscard]] std::string switchml_layout();
[[nodiscard]] std::string tree_layout();

}  // namespace netsum::jobs
