// The data sockets of an aggregator or parameter server: one per lane, at consecutive ports.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "netsum/daemon_options.h"
#include "transport/addresses/attachments.h"
#include "transport/datagram/transport.h"

namespace netsum::daemon {

struct DataSocketsConfig {
  std::string listen;
  std::uint32_t lanes = 1;
  double loss = 0;
  std::uint64_t loss_seed = 1;
  std::function<void(const std::string&)> log;
  DataPath data_path = DataPath::sockets;
  std::vector<std::string> interfaces{};  // of DataPath::xdp; empty: that of `listen`
  DpdkOptions dpdk{};
  bool multicast = false;  // the sockets send to multicast groups
  bool trains = true;      // the kernel may hand over several datagrams as one, and to XDP programs too
  std::shared_ptr<transport::Attachments> attachments{};  // told of the interfaces
};

// However many ranks may send to a lane, its queue is long, and incoming packets are marked, from half of its receive buffer
// on. What the kernel counts as queued is its memory: about 1.5 bytes for each byte of a packet of 1,500. It also counts
// what has been read, until the queue is empty or a quarter of the buffer can be released: at most as much again.
[[nodiscard]] inline std::uint64_t most_waiting(const transport::Transport& socket) {
  return socket.receive_buffer_bytes() / 2;
}

// For ServerHooks: HOST:PORT, as the peer of a connection is named.
[[nodiscard]] bool is_of_this_host(const std::string& address);

// Throws Error: bad_argument, a daemon cannot have so many threads.
void check_threads(std::uint32_t threads);
// How many lanes a daemon with these options has. Throws Error: bad_argument.
[[nodiscard]] std::uint32_t lanes_of(const DaemonOptions& options);
// Throws Error: bad_argument, refused.
[[nodiscard]] std::vector<std::unique_ptr<transport::Transport>> open_data_sockets(const DataSocketsConfig& config);

}  // namespace netsum::daemon
