#include "protocol/netreduce/learned_stream.h"

#include <algorithm>

#include "base/bytes.h"
#include "wire/netreduce.h"

namespace netsum::netreduce {

LearnedStream::LearnedStream(const RingConfig& config, std::size_t lines, std::uint32_t contributors)
    : learned_(config.connections.empty() && (config.lines.empty() || config.learned_lines)),
      in_racks_(config.learned_lines),
      contributors_(contributors),
      message_bits_(8 * config.layout.message.bytes),
      messages_(2 * config.window),
      bonds_(lines, learned_ ? Bond::none : Bond::bound) {}

bool LearnedStream::gathered() const {
  return std::all_of(bonds_.begin(), bonds_.begin() + contributors_, [](Bond bond) { return bond == Bond::bound; });
}

bool LearnedStream::begins_another(std::uint64_t message_on_wire, std::uint64_t next) const {
  if (message_on_wire != 0) return false;
  const std::uint64_t message = wire::netreduce::extend_message(0, message_bits_, next);
  return message == 0 || (message > next ? message - next : next - message) > messages_;
}

void LearnedStream::append_state(std::vector<std::byte>& out) const {
  append_bytes(out, static_cast<std::uint8_t>(answered_ | life_.has_value() << 1));
  for (const Bond bond : bonds_) append_bytes(out, bond);
}

}  // namespace netsum::netreduce
