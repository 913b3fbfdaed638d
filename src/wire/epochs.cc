#include "wire/epochs.h"

#include "base/bytes.h"
#include "base/crc32c.h"

namespace netsum::wire {

std::uint32_t fold_epochs(std::span<const std::uint32_t> rank_epochs) {
  return crc32c(std::as_bytes(rank_epochs));
}

}  // namespace netsum::wire
