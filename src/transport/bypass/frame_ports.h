// Ports whose frames netsum writes and reads itself, as a plugin gives them (dpdk_path.h): nothing here knows what is in a
// frame, and what stands above (frame_host.h) knows nothing of the plugin. Both are built together: see the version.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/bypass/frame_places.h"
#include "wire/ethernet.h"

namespace netsum::transport {

// One lane's queues of all ports. Belongs to one thread at a time. A queue of a port is for one thread at a time too, in
// each direction: whoever shares one has a lock.
class LaneQueues {
 public:
  virtual ~LaneQueues() = default;
  LaneQueues() = default;
  LaneQueues(const LaneQueues&) = delete;
  LaneQueues& operator=(const LaneQueues&) = delete;

  static constexpr std::size_t most_taken = 64;

  // The frames that have arrived there, until `most_taken`; valid until release(), which gives all received frames back.
  // An empty one was of several pieces, and is lost.
  [[nodiscard]] virtual std::span<const iovec> receive(std::uint32_t port, std::uint32_t queue) = 0;
  virtual void release() = 0;

  // Of frames that are to leave by that port.
  [[nodiscard]] virtual FramePlaces& places(std::uint32_t port) = 0;
  // Of those added as many as the queue takes now; the others stay added.
  virtual void send(std::uint32_t port, std::uint32_t queue) = 0;
};

class FramePorts {
 public:
  virtual ~FramePorts() = default;
  FramePorts() = default;
  FramePorts(const FramePorts&) = delete;
  FramePorts& operator=(const FramePorts&) = delete;

  struct Port {
    std::string name;
    wire::ethernet::Address address{};
    std::uint32_t queues = 1;  // each way
    std::size_t mtu = 1500;    // IP headers included
  };

  [[nodiscard]] virtual const std::vector<Port>& ports() const = 0;
  // Null: no memory for them.
  [[nodiscard]] virtual std::unique_ptr<LaneQueues> lane_queues() = 0;
  [[nodiscard]] virtual bool has_link(std::uint32_t port) const = 0;
  // Has a port that lost its link look for it, if its driver does not by itself. Nobody has queues.
  virtual void look_for_link(std::uint32_t port) = 0;
  // Has the port receive datagrams to this UDP port with that queue. False: it cannot.
  virtual bool steer(std::uint32_t port, std::uint16_t udp_port, std::uint32_t queue) = 0;
  virtual void steer_no_more(std::uint16_t udp_port) = 0;
  // Frames dropped before they were received: this process was slow, or had no memory for them.
  [[nodiscard]] virtual std::uint64_t overrun() const = 0;
  // Bytes received there and not yet taken, as far as the port can tell; and the most there can be. 0: it cannot.
  [[nodiscard]] virtual std::uint64_t waiting(std::uint32_t port, std::uint32_t queue) const = 0;
  [[nodiscard]] virtual std::uint64_t capacity() const = 0;
};

// The plugin's one symbol. `version`: netsum's, which must be the plugin's own. Null, and a text of one line: it refuses.
struct FramePortsRequest {
  const char* version = "";
  const char* const* words = nullptr;  // its arguments, for instance of DPDK's EAL
  std::size_t words_count = 0;
  std::uint32_t queues = 1;  // wanted of each port
  char* error = nullptr;
  std::size_t error_bytes = 0;
};
using OpenFramePorts = FramePorts*(const FramePortsRequest&);
inline constexpr const char* open_frame_ports_symbol = "netsum_open_frame_ports";

}  // namespace netsum::transport
