// The variables of the net half. docs/nccl.md describes each.
#pragma once

#include "bindings/nccl/tcp.h"
#include "bindings/settings/settings.h"

namespace netsum::nccl {

// Throws Error: bad_argument.
[[nodiscard]] TcpSettings read_tcp_settings(const settings::Settings& settings);

}  // namespace netsum::nccl
