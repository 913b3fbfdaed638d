// What a build without AF_XDP throws in its place.
#pragma once

#include <string>

#include "netsum/error.h"

namespace netsum::transport {

[[nodiscard]] Error xdp_absent(const std::string& what);

}  // namespace netsum::transport
