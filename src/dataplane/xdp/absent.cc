#include "dataplane/xdp/xdp.h"
#include "netsum/error.h"

namespace netsum::dataplane::xdp {

service::ChipPlanes open(const Config&) {
  throw Error(
      ErrorCode::refused,
      "this netsum was built without XDP: it needs clang, libbpf and libxdp (Debian: clang, libbpf-dev, libxdp-dev) when it "
      "is configured");
}

}  // namespace netsum::dataplane::xdp
