// Any bytes, with a right checksum so that the fields behind it are reached: no parser reads or points outside the packet.
#include "fuzz/harness.h"
#include "wire/switchml.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function

void check_inside(std::span<const std::byte> whole, std::span<const std::byte> part) {
  if (part.empty()) return;
  fuzz::check(part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size(), "a part lies inside");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto given = std::as_bytes(std::span(data, size));
  std::vector<std::byte> packet(given.begin(), given.end());
  if (packet.size() >= wire::common_bytes) wire::seal(packet);
  wire::Common common{};
  if (wire::parse_common(packet, common) != wire::ParseError::none) return 0;
  wire::ChunkPacket chunk;
  if (wire::parse_chunk(packet, common, chunk) == wire::ParseError::none) {
    check_inside(packet, chunk.exponents);
    check_inside(packet, chunk.payload);
    check_inside(packet, chunk.masks);
    fuzz::check(packet.size() == wire::chunk_packet_bytes(chunk.header), "a chunk's length follows from its header");
  }
  wire::WaitingPacket waiting;
  (void)wire::parse_waiting(packet, common, waiting);
  wire::MismatchPacket mismatch;
  (void)wire::parse_mismatch(packet, common, mismatch);
  wire::ProbePacket probe;
  (void)wire::parse_probe(packet, common, probe);
  return 0;
}
