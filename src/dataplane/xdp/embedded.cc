#include "dataplane/xdp/embedded.h"

#include "base/embedded_file.h"

NETSUM_EMBEDDED_FILE(xdp_program, NETSUM_XDP_OBJECT)

namespace netsum::dataplane::xdp {

std::span<const std::byte> embedded_program() {
  return xdp_program();
}

}  // namespace netsum::dataplane::xdp
