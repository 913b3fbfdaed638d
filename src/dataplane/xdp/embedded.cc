#include "dataplane/xdp/embedded.h"

// NETSUM_XDP_OBJECT: the file, as a string (CMakeLists.txt).
asm(R"(
  .pushsection .rodata
  .balign 8
netsum_xdp_begin:
  .incbin ")" NETSUM_XDP_OBJECT R"("
netsum_xdp_end:
  .popsection
)");

extern "C" {
extern const std::byte begin_of_object[] asm("netsum_xdp_begin");
extern const std::byte end_of_object[] asm("netsum_xdp_end");
}

namespace netsum::dataplane::xdp {

std::span<const std::byte> embedded_program() {
  return {begin_of_object, end_of_object};
}

}  // namespace netsum::dataplane::xdp
