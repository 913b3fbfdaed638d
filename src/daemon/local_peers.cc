#include "daemon/local_peers.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/arenas.h"
#include "runtime/shared_segment.h"
#include "transport/local/shared_memory.h"
#include "transport/system/random.h"

namespace netsum::daemon {
namespace {

using transport::Descriptor;
using transport::LocalOutcome;

constexpr std::size_t most_queued = 65536;                  // messages for one rank that does not read them
constexpr std::size_t most_arenas = runtime::Arenas::most;  // of one rank
// Descriptors queued for a rank, per rank of its job: a segment, and arenas, of which no rank is two ahead.
constexpr std::size_t descriptors_of_each = 4;
// In a connection's buffer: the kernel limits how many descriptors all connections of a process have there.
constexpr int send_buffer_bytes = 8192;
constexpr int soon_ms = 1, later_ms = 20;

}  // namespace

std::size_t LocalPeers::pending() const {
  return static_cast<std::size_t>(std::count_if(peers_.begin(), peers_.end(), [](const Peer& p) { return !p.in_job; }));
}

void LocalPeers::add(transport::LocalPeer peer, Time now) {
  const auto of_user = std::count_if(peers_.begin(), peers_.end(),
                                     [&](const Peer& other) { return !other.in_job && other.user == peer.user; });
  const bool is_own = peer.user == 0 || peer.user == ::geteuid();
  const std::size_t most = is_own ? most_pending_ : most_pending_ / 2;
  if (!has_room() || static_cast<std::size_t>(of_user) >= most) return;
  static_cast<void>(transport::set_option(peer.socket->number(), SOL_SOCKET, SO_SNDBUF, send_buffer_bytes));
  Peer& added = peers_.emplace_back();
  added.socket = std::move(peer.socket);
  added.user = peer.user;
  added.hello_by = now + hello_patience;
}

void LocalPeers::poll_for(std::vector<pollfd>& descriptors) const {
  for (const Peer& peer : peers_) descriptors.push_back({peer.socket->number(), POLLIN, 0});
}

int LocalPeers::most_wait_ms(Time now) const {
  Time first = never;
  for (const Peer& peer : peers_) {
    if (!peer.out.empty()) return moved_ ? soon_ms : later_ms;
    if (!peer.segment) first = std::min(first, peer.hello_by);
  }
  if (first == never) return -1;
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(std::max(first - now, Duration::zero())).count());
}

void LocalPeers::serve(std::span<const pollfd> polled, Time now) {
  auto peer = peers_.begin();
  for (const pollfd& each : polled) {
    if (each.revents != 0) receive(*peer);
    ++peer;
  }
  moved_ = false;
  for (Peer& each : peers_) {
    each.closed |= !each.segment && now >= each.hello_by;
    flush(each);
  }
  remove_closed();
}

void LocalPeers::receive(Peer& peer) {
  // A bounded number, then the other peers' turn.
  for (int i = 0; i < 64 && !peer.closed; ++i) {
    transport::LocalMessage message;
    std::shared_ptr<Descriptor> attached;
    const LocalOutcome outcome = transport::receive_local(*peer.socket, message.writable(), attached);
    if (outcome == LocalOutcome::later) return;
    const auto is_memory = [&](std::size_t least) {
      return attached != nullptr && transport::PeerMemory::is_readable(*attached, least);
    };
    if (outcome == LocalOutcome::closed || message.magic != transport::LocalMessage::expected_magic) {
      peer.closed = true;
    } else if (message.type == transport::LocalType::hello && !peer.segment && is_memory(sizeof(runtime::SharedSegment))) {
      peer.segment = std::move(attached);
      peer.ticket = transport::random_number() | 1;
      transport::LocalMessage answer;
      answer.type = transport::LocalType::ticket;
      answer.ticket = peer.ticket;
      say(peer, answer, nullptr);
    } else if (message.type == transport::LocalType::arena && peer.in_job && is_memory(1) && ++peer.arenas <= most_arenas) {
      forward(peer, message, attached);
    } else if (message.type == transport::LocalType::arena_gone && peer.in_job && peer.arenas > 0) {
      --peer.arenas;
      forward(peer, message, nullptr);
    } else {
      peer.closed = true;
    }
  }
}

void LocalPeers::forward(const Peer& from, transport::LocalMessage message, const std::shared_ptr<Descriptor>& attached) {
  message.rank = from.rank;
  message.job_epoch = from.job_epoch;
  for (Peer& other : peers_) {
    if (&other != &from && other.in_job && other.job_epoch == from.job_epoch) say(other, message, attached);
  }
}

void LocalPeers::say(Peer& to, const transport::LocalMessage& message, std::shared_ptr<Descriptor> attached) {
  if (to.closed) return;
  if (attached) ++to.descriptors_out;
  to.out.emplace_back(message, std::move(attached));
  to.closed = to.out.size() > most_queued || to.descriptors_out > to.most_descriptors_out;
}

void LocalPeers::flush(Peer& peer) {
  while (!peer.closed && !peer.out.empty()) {
    const auto& [message, attached] = peer.out.front();
    const LocalOutcome outcome = transport::send_local(*peer.socket, message.bytes(), attached.get());
    if (outcome == LocalOutcome::closed) peer.closed = true;
    if (outcome != LocalOutcome::done) break;
    if (attached) --peer.descriptors_out;
    peer.out.pop_front();
    moved_ = true;
  }
}

void LocalPeers::remove_closed() {
  for (auto peer = peers_.begin(); peer != peers_.end();) {
    if (!peer->closed) {
      ++peer;
      continue;
    }
    const bool in_job = peer->in_job;
    const std::uint64_t job_epoch = peer->job_epoch;
    const std::uint32_t rank = peer->rank;
    peer = peers_.erase(peer);
    if (in_job) on_lost_(job_epoch, rank);
  }
}

void LocalPeers::start_job(std::uint64_t job_epoch, const std::vector<std::uint64_t>& tickets) {
  std::vector<Peer*> members;
  for (const std::uint64_t ticket : tickets) {
    const auto found = std::find_if(peers_.begin(), peers_.end(),
                                    [&](const Peer& p) { return !p.in_job && p.segment && p.ticket == ticket; });
    members.push_back(found == peers_.end() ? nullptr : &*found);
    if (found == peers_.end()) continue;
    found->in_job = true;
    found->job_epoch = job_epoch;
    found->rank = static_cast<std::uint32_t>(members.size() - 1);
    found->most_descriptors_out = descriptors_of_each * tickets.size();
  }
  // A rank is gone, or two showed the same ticket: the job cannot come together, so no rank waits for it.
  const bool complete = std::find(members.begin(), members.end(), nullptr) == members.end();
  for (Peer* const to : members) {
    if (to == nullptr) continue;
    to->closed |= !complete;
    for (const Peer* const from : members) {
      if (!complete || from == to) continue;
      transport::LocalMessage message;
      message.type = transport::LocalType::member;
      message.rank = from->rank;
      message.job_epoch = job_epoch;
      say(*to, message, from->segment);
    }
  }
}

void LocalPeers::stop_job(std::uint64_t job_epoch) {
  for (Peer& peer : peers_) {
    if (!peer.in_job || peer.job_epoch != job_epoch) continue;
    peer.in_job = false;  // not a lost rank
    peer.closed = true;
  }
}

}  // namespace netsum::daemon
