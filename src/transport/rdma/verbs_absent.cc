#include "netsum/error.h"
#include "transport/rdma/verbs_ring.h"

namespace netsum::transport {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorCode::refused, "this netsum was built without libibverbs (cmake -D NETSUM_VERBS=ON)");
}

}  // namespace

std::unique_ptr<VerbsRing> open_verbs_ring(const VerbsOptions&) {
  refuse();
}

VerbsPort verbs_port(const std::string&, std::uint8_t) {
  refuse();
}

}  // namespace netsum::transport
