// What a rank's process calls, and when.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/time.h"
#include "sim/random.h"
#include "stream/operation.h"

namespace netsum::sim {

class Program {
 public:
  struct Call {
    stream::Operation operation;    // with its data
    std::vector<std::byte> tensor;  // where it is, if it is this call's own
  };
  virtual ~Program() = default;

  // When the rank makes its call `number`, while `pending` others are under way; never: not before one of them completes, or
  // not at all. Asked once for each call and each completion.
  [[nodiscard]] virtual Time next(std::uint64_t number, std::size_t pending, Time now, Random& random) = 0;
  // The call `number`, now. `process` differs between the rank's processes.
  [[nodiscard]] virtual Call make(std::uint64_t number, std::uint32_t process) = 0;
  // A call has its result, in `tensor`, which the program may take.
  virtual void completed(const stream::Operation&, std::vector<std::byte>& /*tensor*/, Time /*now*/) {}
  // Whether a rank with so many results is done.
  [[nodiscard]] virtual bool ended(std::uint64_t results) const = 0;
};

}  // namespace netsum::sim
