#include "daemon/ring_watch.h"

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "daemon/connection_file.h"

namespace netsum::daemon {

using netreduce::Connection;
using netreduce::ConnectionChange;
using netreduce::Misfit;
using netreduce::RingConfig;

namespace {

constexpr Duration stalled_after = std::chrono::seconds(5);

std::string name_of(const RingConfig& ring) {
  return "ring " + std::to_string(ring.ring);
}

std::string words_of(const Connection& connection) {
  return "from " + to_string(connection.source) + " to " + to_string(connection.destination) + ", queue pair " +
         std::to_string(connection.destination_qp);
}

// Why gradients are dropped, and what to do.
std::string words_of(Misfit misfit, const netreduce::MisfitExample& example) {
  const std::string ring = std::to_string(example.header.ring);
  const auto because = [&]() -> std::string {
    switch (misfit) {
      case Misfit::service:
        return "the connection is unreliable (UC), so lost packets cannot be retransmitted: use a reliable connection (RC)";
      case Misfit::host:
        return "--hosts does not name both hosts";
      case Misfit::layout:
        return "their header has the magic of a layout that no --ring has";
      case Misfit::header:
        return "their header is cut off, or has values that the layout of --ring does not allow";
      case Misfit::ring:
        return "their header names ring " + ring + ", and no --ring has this id";
      case Misfit::rank:
        return "their header names rank " + std::to_string(example.header.rank) + " of ring " + ring +
               ", and the --ring of this id has fewer ranks";
      case Misfit::beginning:
        return "they begin with message " + std::to_string(example.header.message) + " of ring " + ring +
               ", and message 0 was not seen on this connection: restart the hosts of this ring";
      case Misfit::open:
        return "all ranks of ring " + ring +
               " are connected now, but their connections do not form one ring: check ranks= of --ring";
    }
    return "";
  };
  return "gradients " + words_of(example.connection) + " are dropped: " + because();
}

// The ranks of whose packets a sum lacks, with their addresses.
std::string in_words(const RankSet& missing, const std::vector<Connection>& connections) {
  std::string words;
  missing.for_each([&](std::uint32_t rank) {
    const Connection& connection = connections[rank];
    words += (words.empty() ? "" : ", ") + std::to_string(rank) + " (" +
             (connection == Connection{} ? "not connected" : to_string(connection.source)) + ")";
  });
  return words;
}

}  // namespace

RingWatch::RingWatch(const std::vector<RingConfig>& rings, std::function<void(const std::string&)> log)
    : log_(std::move(log)) {
  for (const RingConfig& ring : rings) watched_.push_back({ring});
}

void RingWatch::on_change(const ConnectionChange& change) const {
  if (change.kind == ConnectionChange::Kind::forgotten) return;
  const auto found = std::find_if(watched_.begin(), watched_.end(),
                                  [&](const Watched& each) { return each.ring.incarnation == change.incarnation; });
  if (found == watched_.end()) return;
  const std::string name = name_of(found->ring), rank = "rank " + std::to_string(change.rank);
  if (change.kind == ConnectionChange::Kind::restarted) {
    log_(name + " starts again: " + rank + " has a new connection, " + words_of(change.known.connection));
  } else {
    log_(name + ": " + rank + " sends " + words_of(change.known.connection));
  }
}

void RingWatch::on_look(const BumpLook& look, Time now) {
  complain_of_drops(look, now);
  for (std::size_t i = 0; i < watched_.size(); ++i) {
    Watched& watched = watched_[i];
    const RingConfig& ring = watched.ring;
    const bool complete = look.rings[i].complete;
    if (complete && !watched.complete) {
      log_(name_of(ring) + ": all " + std::to_string(ring.members) + " ranks are connected");
    }
    watched.complete = complete;
    complain_of_drops(ring, look.rings[i].counters, now);
    watch_stall(watched, look.rings[i], now);
    say_awaited(ring, look.rings[i].racks_awaited, now);
  }
}

void RingWatch::complain(const std::string& key, std::uint64_t count, Time now, const std::string& words) {
  if (limits_[key].take(count, now) != 0) log_(words);
}

void RingWatch::complain_of_drops(const BumpLook& look, Time now) {
  for (std::size_t i = 0; i < look.examples.size(); ++i) {
    complain("misfit " + std::to_string(i), look.counters.dropped_misfit[i], now,
             words_of(static_cast<Misfit>(i), look.examples[i]));
  }
  complain("restart", look.counters.dropped_restart, now,
           "gradients that begin with message 0 on a new connection are dropped while the rank's earlier connection is "
           "active (dropped_roce_restart)");
  complain("differing", look.racks.differing, now,
           "ring " + std::to_string(look.differing.ring) + ": --ring of this bump differs from --ring at the bump of rack " +
               std::to_string(look.differing.rack) +
               " or at the root: give all bumps the same (dropped_agreement_differing)");
  complain("trains", look.frames.dropped_trains, now,
           "merged RoCE packets of gradient connections are dropped: turn merging off with ethtool -K IFNAME lro off "
           "rx-udp-gro-forwarding off rx-gro-list off (dropped_roce_trains)");
  complain("unreadable", look.frames.dropped_unreadable, now,
           "RoCE packets of gradient connections that cannot be read are dropped (dropped_roce_unreadable)");
  if (std::all_of(watched_.begin(), watched_.end(), [](const Watched& each) { return each.complete; })) return;
  complain("unmarked", look.counters.unmarked, now,
           "RoCE messages between --hosts are forwarded unsummed, because they do not have the magic of a ring: check "
           "layout= of --ring if they are gradients");
}

void RingWatch::complain_of_drops(const RingConfig& ring, const netreduce::RingCounters& counters, Time now) {
  const std::string name = name_of(ring);
  const auto dropped = [&](const char* counter, std::uint64_t count, const std::string& why) {
    complain(name + counter, count, now, name + ": gradients are dropped (" + counter + "): " + why);
  };
  dropped("dropped_early", counters.dropped_early,
          "a host has more messages in flight than window=" + std::to_string(ring.window));
  dropped("dropped_shape", counters.dropped_shape,
          "a payload is longer than mtu=" + std::to_string(ring.mtu) +
              ", is not a multiple of the element size (dtype=" + std::string(to_string(ring.dtype)) +
              " unless the header names another), or has another length than the payloads of the other ranks");
  dropped("dropped_header", counters.dropped_header,
          "a message has another ring or rank than its connection, or more packets than packets=" +
              std::to_string(ring.message_packets));
  dropped("dropped_mismatch", counters.dropped_mismatch, "ranks issued different calls as the same message");
}

void RingWatch::watch_stall(Watched& watched, const RingLook& look, Time now) const {
  const std::string name = name_of(watched.ring);
  const auto place = look.stall ? std::optional(std::pair(look.stall->message, look.stall->packet)) : std::nullopt;
  if (place != watched.stalled_at) {
    if (watched.said) log_(name + " continues");
    watched.stalled_at = place;
    watched.since = now;
    watched.said = false;
  }
  if (!place || watched.said || now - watched.since < stalled_after) return;
  watched.said = true;
  const std::string missing = in_words(look.stall->missing, look.connections);
  log_(name + " stalls: packet " + std::to_string(place->second) + " of message " + std::to_string(place->first) +
       (!missing.empty()                       ? " waits for ranks " + missing
        : netreduce::spans_racks(watched.ring) ? " waits for other racks"
                                               : " waits for earlier packets"));
}

void RingWatch::say_awaited(const RingConfig& ring, const std::vector<std::uint32_t>& racks, Time now) {
  if (racks.empty() || racks.size() == ring.racks.size()) return;
  std::string which;
  for (const std::uint32_t rack : racks) which += (which.empty() ? "" : ", ") + std::to_string(rack);
  const std::string name = name_of(ring);
  if (limits_["awaited by " + name].take(now)) log_(name + " waits for the ranks of racks " + which);
}

}  // namespace netsum::daemon
