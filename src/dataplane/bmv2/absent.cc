#include "dataplane/bmv2/bmv2.h"
#include "netsum/error.h"

namespace netsum::dataplane::bmv2 {

service::ChipPlanes open(const Config&) {
  throw Error(ErrorCode::refused,
              "this netsum was built without bmv2: it needs Thrift (Debian: thrift-compiler, libthrift-dev, libboost-dev) "
              "when it is configured");
}

}  // namespace netsum::dataplane::bmv2
