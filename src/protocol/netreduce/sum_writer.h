// The packets in which a ring's sums leave: a frame of the line, with the sum in place of its values, the seal and new
// checksums. Part of a ring.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/packet_io.h"
#include "protocol/netreduce/ring_config.h"
#include "protocol/netreduce/sum_store.h"
#include "wire/roce.h"

namespace netsum::netreduce {

class SumWriter {
 public:
  explicit SumWriter(const RingConfig& config) : tunnelled_(config.tunnelled), seals_(config.layout.seals) {}

  // To where the line's packets go, or, from below, came from. True: the sink refers to the sum until it is flushed.
  [[nodiscard]] bool write(const Sum& sum, const Frame& frame, const Line& line, const Endpoint& egress, Sink& sink);

 private:
  void write_around(const Sum& sum, const Frame& frame, const Endpoint& egress, Sink& sink);
  void write_copy(const Sum& sum, const Frame& frame, std::size_t pad, const Endpoint& egress, Sink& sink);
  void write_anew(const Sum& sum, const Frame& frame, const Line& line, const Endpoint& egress, Sink& sink) const;
  [[nodiscard]] const wire::roce::CommonEnd& common_end(const Sum& sum);

  bool tunnelled_, seals_;
  // The common ends of packets: of a message's first packet, and of the others. Their lengths rarely change.
  std::array<wire::roce::CommonEnd, 2> ends_;
};

}  // namespace netsum::netreduce
