// A broker's connections and the messages queued for each: half-open connections, ranks that wait for their job, and ranks
// of jobs. All of this is bounded, whatever the peers send or do not send. One thread's; it never waits.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/time.h"
#include "transport/local/local_messages.h"
#include "transport/local/local_socket.h"

namespace netsum::daemon {

class LocalPeers {
 public:
  using OnLost = std::function<void(std::uint64_t job_epoch, std::uint32_t rank)>;

  static constexpr Duration hello_patience = std::chrono::seconds(5);  // for a connection's first message

  // `most_pending`: connections that belong to no job yet. A user may have half of them, except root and this process's
  // user. `on_lost`: the connection of a job's rank ended.
  LocalPeers(std::size_t most_pending, OnLost on_lost) : most_pending_(most_pending), on_lost_(std::move(on_lost)) {}

  [[nodiscard]] bool has_room() const { return pending() < most_pending_; }
  void add(transport::LocalPeer peer, Time now);  // or closes its connection

  // For poll(2): one per connection, in an order that holds until serve(), which takes them back.
  void poll_for(std::vector<pollfd>& descriptors) const;
  [[nodiscard]] int most_wait_ms(Time now) const;  // -1: for ever
  void serve(std::span<const pollfd> polled, Time now);

  void start_job(std::uint64_t job_epoch, const std::vector<std::uint64_t>& tickets);  // by rank
  void stop_job(std::uint64_t job_epoch);

 private:
  struct Peer {
    std::shared_ptr<transport::Descriptor> socket;
    uid_t user = 0;
    Time hello_by{};
    std::shared_ptr<transport::Descriptor> segment;  // null: has not said hello
    std::uint64_t ticket = 0, job_epoch = 0;
    std::uint32_t rank = 0;
    bool in_job = false, closed = false;
    std::size_t arenas = 0;
    std::deque<std::pair<transport::LocalMessage, std::shared_ptr<transport::Descriptor>>> out;
    std::size_t descriptors_out = 0, most_descriptors_out = 0;
  };

  [[nodiscard]] std::size_t pending() const;
  void receive(Peer& peer);
  void forward(const Peer& from, transport::LocalMessage message, const std::shared_ptr<transport::Descriptor>& attached);
  static void say(Peer& to, const transport::LocalMessage& message, std::shared_ptr<transport::Descriptor> attached);
  void flush(Peer& peer);
  void remove_closed();

  const std::size_t most_pending_;
  const OnLost on_lost_;
  std::list<Peer> peers_;
  bool moved_ = false;  // a peer took some of its queued messages
};

}  // namespace netsum::daemon
