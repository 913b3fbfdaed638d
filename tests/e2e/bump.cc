// A bump in the wire that only bridges: what the netns tests send through it is to arrive as through a cable.
//
// usage: bump PORT PORT...     (ports: src/transport/ports/port.h)
//
// Prints `ready`, bridges until SIGTERM or SIGINT, then prints its counters as one JSON object.
#include <signal.h>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "base/virtio_net.h"
#include "netsum/error.h"
#include "protocol/netreduce/bridge.h"
#include "runtime/packet_loop.h"
#include "transport/ports/port_set.h"

namespace netsum {
namespace {

void print(const transport::PortSet& ports, const netreduce::Bridge& bridge) {
  std::cout << R"({"ports": [)";
  for (std::size_t i = 0; i < ports.endpoints().size(); ++i) {
    const transport::PortCounters c = ports.port(i).counters();
    std::cout << (i == 0 ? "" : ", ") << R"({"frames_received": )" << c.frames_received << R"(, "bytes_received": )"
              << c.bytes_received << R"(, "frames_sent": )" << c.frames_sent << R"(, "bytes_sent": )" << c.bytes_sent
              << R"(, "dropped_overrun": )" << c.dropped_overrun << R"(, "dropped_unreadable": )" << c.dropped_unreadable
              << R"(, "dropped_full": )" << c.dropped_full << R"(, "dropped_refused": )" << c.dropped_refused
              << R"(, "dropped_train": )" << c.dropped_train << R"(, "dropped_malformed": )" << c.dropped_malformed << '}';
  }
  const netreduce::BridgeCounters& b = bridge.counters();
  std::cout << R"(], "forwarded": )" << b.forwarded << R"(, "flooded": )" << b.flooded << R"(, "filtered": )" << b.filtered
            << R"(, "malformed": )" << b.malformed << '}' << std::endl;
}

void run(const std::vector<std::string>& names) {
  auto owned = std::make_unique<transport::PortSet>(transport::open_ports(names));
  const transport::PortSet& ports = *owned;
  netreduce::Bridge bridge({.ports = {ports.endpoints().begin(), ports.endpoints().end()}});
  sigset_t ends;
  sigemptyset(&ends);
  for (const int number : {SIGTERM, SIGINT}) sigaddset(&ends, number);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  runtime::PacketLoop loop(std::move(owned), 0, {},
                           [&](std::span<const RxView> frames, Time now, transport::Transport& transport) {
                             for (const RxView& frame : frames) {
                               const auto ethernet = frame.bytes.subspan(virtio_net_header_bytes);
                               transport.sink().multicast(frame.bytes, bridge.route(ethernet, frame.source, now));
                             }
                             return std::uint64_t{0};  // none is a stranger's
                           });
  std::cout << "ready" << std::endl;
  int number = 0;
  sigwait(&ends, &number);
  loop.call([&] { print(ports, bridge); });
}

}  // namespace
}  // namespace netsum

int main(int argc, char** argv) {
  try {
    netsum::run({argv + 1, argv + argc});
  } catch (const netsum::Error& error) {
    std::cerr << "bump: " << error.what() << std::endl;
    return 1;
  }
}
