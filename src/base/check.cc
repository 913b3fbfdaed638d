#include "base/check.h"

#include <stdexcept>
#include <string>

namespace netsum {

void does_not_hold(const char* condition) {
  throw std::logic_error(std::string("does not hold: ") + condition);
}

}  // namespace netsum
