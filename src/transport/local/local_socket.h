// Messages with descriptors between processes of one host, over sockets in Linux's abstract namespace: reachable only from
// the same network namespace, and without files. Any user of the host can see their names and connect, so listeners check
// the peer's user. A child of fork() has none of these sockets, so each closes with the process that made it.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/system/socket.h"

namespace netsum::transport {

enum class LocalOutcome { done, later, closed };

struct LocalPeer {
  std::shared_ptr<Descriptor> socket;
  uid_t user = 0;
};

// Accepts connections of permitted users and closes others. However many others there are, they take a small share of a
// processor: the listener rests after refusing any, and when descriptors run out. Connections stay queued meanwhile.
class LocalListener {
 public:
  // `users`: permitted besides this process's user, and root where `root_too`. Throws Error: refused (name in use),
  // internal.
  LocalListener(const std::string& name, bool root_too, std::vector<uid_t> users = {});

  // For poll(2), and its longest time-out; -1: infinite.
  [[nodiscard]] pollfd poll_for() const { return {resting_ ? -1 : socket_->number(), POLLIN, 0}; }
  [[nodiscard]] int most_wait_ms() const { return resting_ ? 10 : -1; }
  // Call after poll(2), whatever the outcome: accepts some of the queued connections.
  [[nodiscard]] std::vector<LocalPeer> accept();
  void rest() { resting_ = true; }  // instead of accept(): the caller has no room for more

 private:
  std::shared_ptr<Descriptor> socket_;
  std::vector<uid_t> users_;
  bool resting_ = false;
};

// later: the listener's queue is full. closed: no listener of that name on this host.
[[nodiscard]] LocalOutcome connect_local(const std::string& name, std::shared_ptr<Descriptor>& socket);
// The user of the process that connected, or that listened, as the kernel knows it.
[[nodiscard]] std::optional<uid_t> user_of(const Descriptor& socket);

// A descriptor that a child of fork() does not have.
[[nodiscard]] std::shared_ptr<Descriptor> not_for_children(int number);

// Sends one whole message, with a descriptor if not null. Neither function waits.
[[nodiscard]] LocalOutcome send_local(const Descriptor& socket, std::span<const std::byte> message,
                                      const Descriptor* attached = nullptr);
// The received message must fill `message` exactly: another length counts as closed.
[[nodiscard]] LocalOutcome receive_local(const Descriptor& socket, std::span<std::byte> message,
                                         std::shared_ptr<Descriptor>& attached);

}  // namespace netsum::transport
