#include "stream/operation.h"

#include <array>

#include "base/bytes.h"
#include "base/crc32c.h"

namespace netsum::stream {

namespace {

// 0 for a call in the default format, so that this does not change other protocols' signatures.
std::byte unusual_format(const Operation& operation) {
  Operation usual = operation;
  usual.wire = WireFormat::native;
  usual.fixed_point = false;
  const DType dtype = wire_dtype(operation);
  return dtype == wire_dtype(usual) ? std::byte{0} : static_cast<std::byte>(1 + static_cast<int>(dtype));
}

}  // namespace

std::uint32_t signature_of(const Operation& operation, std::uint32_t packet_elements) {
  std::array<std::byte, 24> text{};
  text[0] = static_cast<std::byte>(operation.collective);
  text[1] = static_cast<std::byte>(operation.op);
  text[2] = static_cast<std::byte>(operation.dtype);
  text[3] = unusual_format(operation);
  store_le(text.data() + 4, packet_elements);
  store_le(text.data() + 8, operation.elements);
  store_le(text.data() + 16, operation.root);
  store_le(text.data() + 20, operation.tag);
  return crc32c(text);
}

std::string to_string(const Operation& operation) {
  const std::string tag = ", tag " + std::to_string(operation.tag);
  const std::string count = " of " + std::to_string(operation.elements);
  const auto reduction = [&](const char* name) {
    return std::string(name) + ' ' + netsum::to_string(operation.op) + count + ' ' + netsum::to_string(operation.dtype) +
           (operation.wire == WireFormat::native ? "" : std::string(" as ") + netsum::to_string(operation.wire));
  };
  switch (operation.collective) {
    case Collective::barrier:
      return "barrier" + tag;
    case Collective::allocate:
      return "allocate" + tag;
    case Collective::broadcast:
      return "broadcast" + count + " bytes from rank " + std::to_string(operation.root) + tag;
    case Collective::all_gather:
      return "all_gather" + count + " bytes" + tag;
    case Collective::all_reduce:
      return reduction("all_reduce") + tag;
    case Collective::reduce:
      return reduction("reduce") + " to rank " + std::to_string(operation.root) + tag;
    case Collective::reduce_scatter:
      return reduction("reduce_scatter") + tag;
  }
  return "?";
}

std::uint64_t wire_elements(const Operation& operation) {
  if (operation.collective == Collective::barrier) return 0;
  const std::uint64_t elements = part_elements(operation);
  return spreads(operation) ? (elements + 3) / 4 : elements;
}

}  // namespace netsum::stream
