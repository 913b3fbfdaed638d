// On which CPUs a daemon's pinned threads run: those near the interface towards its peers first.
#pragma once

#include <string>
#include <vector>

#include "runtime/thread.h"

namespace netsum::daemon {

// The interface is the first of these, or else the one that has the address to listen at. `pinned`: else no CPUs and no
// node. Throws Error: bad_argument, `listen` is no address.
[[nodiscard]] runtime::ThreadOptions near_threads(bool pinned, const std::vector<std::string>& interfaces,
                                                  const std::string& listen);

}  // namespace netsum::daemon
