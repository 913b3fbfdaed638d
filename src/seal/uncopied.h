// The seals of a state machine whose state is a value. Seals count packets, so a copy of them would use numbers again: a
// machine that has some is not copied. What models compare, and so copy, has none.
#pragma once

#include <memory>

#include "base/check.h"

namespace netsum::seal {

template <class Seals>
class Uncopied : public std::unique_ptr<Seals> {
 public:
  Uncopied() = default;
  Uncopied(const Uncopied& other) : std::unique_ptr<Seals>() { NETSUM_CHECK(other == nullptr); }
  Uncopied(Uncopied&&) noexcept = default;
  Uncopied& operator=(const Uncopied&) = delete;
  Uncopied& operator=(Uncopied&&) noexcept = default;
  ~Uncopied() = default;
};

}  // namespace netsum::seal
