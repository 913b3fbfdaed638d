// NETSUM_MODE=force. Where CollNet cannot be had, NCCL goes on over its sockets without a word. Under this mode the plugin's
// sockets then refuse, so that NCCL fails with the reason.
#pragma once

#include <string>

namespace netsum::nccl {

void refuse_sockets(const std::string& reason);
void check_sockets();  // throws Error: refused

}  // namespace netsum::nccl
