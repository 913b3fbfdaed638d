// The variables of the net half. docs/nccl.md describes each.
#pragma once

#include <string>

#include "bindings/nccl/tcp.h"
#include "bindings/settings/settings.h"

namespace netsum::nccl {

// NETSUM_NCCL_NET: the plugin whose network it is, a path or a name; empty: the sockets of this library. Throws Error:
// bad_argument.
[[nodiscard]] std::string chosen_net();

// Throws Error: bad_argument.
[[nodiscard]] TcpSettings read_tcp_settings(const settings::Settings& settings);

}  // namespace netsum::nccl
