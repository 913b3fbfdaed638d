// One packet format on a lane, with the state machine behind it, and how a lane's packets are told apart.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/packet_io.h"
#include "base/time.h"

namespace netsum::service {

class Format {
 public:
  virtual ~Format() = default;

  // Whether datagrams with this first byte have this format; no two formats of a lane take the same.
  [[nodiscard]] virtual bool takes(std::uint8_t first) const = 0;
  // From so many waiting bytes on the lane's queue is long for its jobs, and it marks what comes. 0: it does not ask, since
  // that costs a lane a system call for each batch.
  [[nodiscard]] virtual std::uint64_t long_queue() const { return 0; }
  virtual void on_packets(std::span<const RxView> packets, bool congested, Time now, Sink& sink) = 0;
  // How many of all packets so far were malformed, or of no job here.
  [[nodiscard]] virtual std::uint64_t strangers() const = 0;
};

// A lane's formats. Packets go to them in runs, as packets of one job come in trains: no format costs a call per packet.
class Formats {
 public:
  // The first one also gets what no other takes.
  void add(std::unique_ptr<Format> format) {
    for (std::size_t first = 0; first < of_first_.size(); ++first) {
      if (format->takes(static_cast<std::uint8_t>(first))) of_first_[first] = static_cast<std::uint8_t>(formats_.size());
    }
    formats_.push_back(std::move(format));
  }

  // `holds_more(bytes)`: whether so many wait in the lane's queue; called at most once for each run. Returns how many of all
  // packets so far were strangers.
  template <class HoldsMore>
  std::uint64_t on_packets(std::span<const RxView> packets, Time now, Sink& sink, const HoldsMore& holds_more) {
    if (formats_.empty()) return 0;
    while (!packets.empty()) {
      const std::size_t of_run = format_of(packets.front());
      std::size_t run = 1;
      while (run < packets.size() && format_of(packets[run]) == of_run) ++run;
      Format& format = *formats_[of_run];
      const std::uint64_t from = format.long_queue();
      format.on_packets(packets.first(run), from != 0 && holds_more(from), now, sink);
      packets = packets.subspan(run);
    }
    std::uint64_t strangers = 0;
    for (const auto& format : formats_) strangers += format->strangers();
    return strangers;
  }

 private:
  [[nodiscard]] std::size_t format_of(const RxView& packet) const {
    return packet.bytes.empty() ? 0 : of_first_[std::to_integer<std::uint8_t>(packet.bytes[0])];
  }

  std::vector<std::unique_ptr<Format>> formats_;
  std::array<std::uint8_t, 256> of_first_{};  // by a datagram's first byte
};

}  // namespace netsum::service
