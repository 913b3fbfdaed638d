// Messages with descriptors between processes of one host: sockets in Linux' abstract namespace, which are reached from the
// same network namespace alone, and leave no file behind. Any user of the host can see their names and connect: whoever
// listens asks who it is. A child of fork() has none of them, so that each ends with the process that made it.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/socket.h"

namespace netsum::transport {

enum class LocalOutcome { done, later, closed };

struct LocalPeer {
  std::shared_ptr<Descriptor> socket;
  uid_t user = 0;
};

// Lets in who may, and ends the connections of others. However many of those there are, they take a small share of a
// processor: it rests when there were any, and when there is no descriptor left. Who waits meanwhile goes on waiting.
class LocalListener {
 public:
  // `users`: besides this process's own, and root where `root_too`. Throws Error: refused (somebody listens there),
  // internal.
  LocalListener(const std::string& name, bool root_too, std::vector<uid_t> users = {});

  // For poll(2), which waits so long at most; -1: for ever.
  [[nodiscard]] pollfd poll_for() const { return {resting_ ? -1 : socket_->number(), POLLIN, 0}; }
  [[nodiscard]] int most_wait_ms() const { return resting_ ? 10 : -1; }
  // Then, whatever poll(2) says: some of those that wait.
  [[nodiscard]] std::vector<LocalPeer> accept();
  void rest() { resting_ = true; }  // instead: the caller has no room for more

 private:
  std::shared_ptr<Descriptor> socket_;
  std::vector<uid_t> users_;
  bool resting_ = false;
};

// later: more wait there than may. closed: nobody of that name is here.
[[nodiscard]] LocalOutcome connect_local(const std::string& name, std::shared_ptr<Descriptor>& socket);
// At the other end, as the kernel knows it: who connected, or who listened.
[[nodiscard]] std::optional<uid_t> user_of(const Descriptor& socket);

// A descriptor that a child of fork() does not have.
[[nodiscard]] std::shared_ptr<Descriptor> not_for_children(int number);

// One message, whole; with a descriptor if that is not null. Neither waits.
[[nodiscard]] LocalOutcome send_local(const Descriptor& socket, std::span<const std::byte> message,
                                      const Descriptor* attached = nullptr);
// Into `message`, which it must fill exactly: another length counts as closed.
[[nodiscard]] LocalOutcome receive_local(const Descriptor& socket, std::span<std::byte> message,
                                         std::shared_ptr<Descriptor>& attached);

}  // namespace netsum::transport
