// The chip profile's packets: the parser points at nothing outside the bytes, and what parses is written again as the same
// bytes. The input is a packet as it is, or a header that is given a possible length.
#include <algorithm>
#include <cstddef>
#include <iterator>

#include "fuzz/harness.h"
#include "wire/switchml_chip.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function

using Packet = std::vector<std::byte>;

void parse(const Packet& packet) {
  wire::chip::Packet parsed;
  if (wire::chip::parse(packet, parsed) != wire::ParseError::none) return;
  fuzz::check(parsed.payload.data() == packet.data() + wire::chip::header_bytes &&
                  parsed.payload.size() == packet.size() - wire::chip::header_bytes,
              "the payload is what follows the header");
  Packet again(packet.size(), std::byte{0xaa});
  std::copy(parsed.payload.begin(), parsed.payload.end(), again.begin() + wire::chip::header_bytes);
  wire::chip::write_header(again, parsed.header);
  fuzz::check(packet == again, "what parses is written again as the same bytes");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto given = std::as_bytes(std::span(data, size));
  Packet packet(given.begin(), given.end());
  parse(packet);
  if (packet.empty()) return 0;
  constexpr std::size_t lengths[] = {wire::chip::packet_bytes(64), wire::chip::packet_bytes(256),
                                     wire::chip::packet_bytes(256) - 1, wire::chip::packet_bytes(64) + 1};
  packet.resize(lengths[size % std::size(lengths)]);
  packet[wire::chip::at_format] = std::byte{wire::chip::format};
  parse(packet);
  return 0;
}
