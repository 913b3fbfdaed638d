// The stream of a ring whose connections are learned (foreign hosts): which lines have their connections, which of these may
// be answered, and, in several racks, its life. It begins again when a host does. Part of a ring, whatever its kind: the
// lines of others are bound from the beginning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "protocol/netreduce/ring_config.h"

namespace netsum::netreduce {

class LearnedStream {
 public:
  // The first `contributors` of the lines have values.
  LearnedStream(const RingConfig& config, std::size_t lines, std::uint32_t contributors);
  // It follows that one, which a host has ended.
  void follow(const LearnedStream& former) { attempt_ = former.attempt_ + 1; }

  [[nodiscard]] bool learned() const { return learned_; }
  // Whether it is a rack's part of a learned ring. Its ranks' packets are dropped until begin(): a host that has died since
  // must not contribute, and those that live repeat theirs.
  [[nodiscard]] bool in_racks() const { return in_racks_; }
  [[nodiscard]] bool waits() const { return in_racks_ && !life_; }
  void begin(const RingLife& life) { life_ = life; }
  [[nodiscard]] const std::optional<RingLife>& life() const { return life_; }
  // Grows whenever the rack's connections change.
  [[nodiscard]] std::uint64_t attempt() const { return attempt_; }

  // `held`: no sum leaves on it before release().
  void bind(std::uint32_t line, bool held) { bonds_[line] = held ? Bond::held : Bond::bound; }
  void release(std::uint32_t line) { bonds_[line] = Bond::bound; }
  [[nodiscard]] bool bound(std::uint32_t line) const { return bonds_[line] != Bond::none; }
  [[nodiscard]] bool held(std::uint32_t line) const { return bonds_[line] == Bond::held; }
  // Whether all of the rack's ranks are bound, and recorded.
  [[nodiscard]] bool gathered() const;

  // Whether any sum has left: then the stream cannot begin again with the same connections.
  [[nodiscard]] bool answered() const { return answered_; }
  void on_sent() { answered_ = true; }
  // Whether a header with message 0, whose PSN is not that of this stream's message 0, begins another one. If not, its
  // message number has wrapped. `next`: the first message whose sums were not yet sent to all.
  [[nodiscard]] bool begins_another(std::uint64_t message_on_wire, std::uint64_t next) const;

  void append_state(std::vector<std::byte>& out) const;

 private:
  enum class Bond : std::uint8_t { none, held, bound };

  bool learned_, in_racks_;
  bool answered_ = false;
  std::uint32_t contributors_;
  std::uint32_t message_bits_, messages_;  // of a message's number in headers; in two windows
  std::vector<Bond> bonds_;                // of each line
  std::optional<RingLife> life_;
  std::uint64_t attempt_ = 0;
};

}  // namespace netsum::netreduce
