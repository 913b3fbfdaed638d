// Control messages as they arrive at the border, and what it may say of those that it refuses.
#pragma once

#include <cstddef>

#include "control/border.h"
#include "fuzz/spoiled.h"
#include "session/check.h"

namespace netsum::fuzz {

// Whether it passed; if not, it is said why in one line of fewer than `most` bytes.
template <class Value>
[[nodiscard]] bool passed(const encoding::Parsed<Value>& value, std::size_t most) {
  const bool said = value || (!value.why().empty() && value.why().size() < most && session::printable(value.why()));
  check(said, "a refusal in one line");
  return bool{value};
}

}  // namespace netsum::fuzz
