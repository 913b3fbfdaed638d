#include "sim/queued_medium.h"

#include <algorithm>
#include <bit>

#include "sim/random.h"

namespace netsum::sim {
namespace {

constexpr std::uint64_t routes_label = 1'000'003, red_label = 1'000'004;
constexpr std::uint64_t pause_bytes = 64;  // a frame that tells a port to wait
constexpr double usual_bytes = 1000;       // a packet's, for what an idle queue could have sent

std::uint64_t bytes_in(Duration time, std::uint64_t bits_per_second) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(Wide{static_cast<std::uint64_t>(time.count())} * bits_per_second / 8'000'000'000) + 1;
}

}  // namespace

QueuedMedium::QueuedMedium(const Topology& topology, std::uint64_t seed, Time origin, bool random_ties)
    : OwnMedium(seed, origin, random_ties),
      topology_(topology),
      origin_(origin),
      routes_(topology, derive(seed, routes_label)),
      ports_(2 * std::size_t{topology.links()}),
      shared_(topology.size()) {
  for (LinkId link = 0; link < topology.links(); ++link) {
    for (const Fabric::Way way : {Fabric::Way::up, Fabric::Way::down}) {
      const bool up = way == Fabric::Way::up;
      Port& port = ports_[port_of(link, way)];
      port.plan = &topology.port(link, up);
      port.from = up ? topology.lower(link) : topology.upper(link);
      port.to = up ? topology.upper(link) : topology.lower(link);
      port.clock = PortClock(port.plan->bits_per_second);
      const std::uint64_t own = derive(derive(seed, link), static_cast<std::uint64_t>(way));
      port.losses = PortLosses(own);
      for (std::uint32_t i = 0; port.plan->red && i < priorities; ++i) port.red.emplace_back(derive(own, red_label + i));
    }
  }
}

bool QueuedMedium::carry(Time at, std::uint32_t frame, NodeId from, NodeId to, std::uint32_t bytes, const Traits& traits) {
  if (frame >= frames_.size()) frames_.resize(frame + 1);
  frames_[frame] = {from, to, bytes, traits.flow, none, none, {}, traits.priority, false, false};
  longest_ = std::max(longest_, bytes);
  if (from == to) {
    queue_.add(at, {hop, frame});
    return true;
  }
  if (at == now_) return forward(frame);
  queue_.add(at, {begin, frame});
  return true;
}

// ---- at a node

bool QueuedMedium::forward(std::uint32_t number) {
  Frame& frame = frames_[number];
  ++hops_;
  const Routes::Step& step = routes_.next(frame.at, frame.to, frame.flow);
  const PortId id = port_of(step.link, step.up ? Fabric::Way::up : Fabric::Way::down);
  Port& port = ports_[id];
  frame.came = now_;
  port.losses.offer();
  if (!port.clock.unlimited() && !takes(port, frame)) return false;
  ++port.counts.packets;
  port.counts.bytes += frame.bytes;
  frame.lost = port.losses.loses(*port.plan, now_ - origin_);
  if (frame.lost) ++port.counts.lost;
  if (port.clock.unlimited()) {
    if (frame.lost) return false;
    frame.came_by = id;
    arrive(number, port.from, port.to, now_ + port.plan->delay);
    return true;
  }
  shared_[port.from] += frame.bytes;
  use_room(frame);
  Queue& queue = port.queues[frame.priority];
  frame.next = none;
  (queue.last == none ? queue.first : frames_[queue.last].next) = number;
  queue.last = number;
  queue.bytes += frame.bytes;
  port.used |= static_cast<std::uint8_t>(1U << frame.priority);
  if (port.sending == none) serve(id);
  return true;
}

std::uint64_t QueuedMedium::waiting(const Port& port, std::uint8_t priority) const {
  const bool own = port.sending != none && frames_[port.sending].priority == priority;
  return port.queues[priority].bytes + (own ? port.clock.left(picoseconds(now_)) : 0);
}

bool QueuedMedium::takes(Port& port, Frame& frame) {
  const std::uint64_t queued = waiting(port, frame.priority);
  if (lossless(frame.priority)) {
    if (frame.came_by != none) {
      const Port& by = ports_[frame.came_by];
      if (by.rooms[frame.priority].bytes + frame.bytes > topology_.pfc->off + headroom(by, ports_[frame.came_by ^ 1])) {
        ++port.counts.dropped;
        return false;
      }
    }
  } else if (queued + frame.bytes > port.plan->buffer_bytes ||
             shared_[port.from] + frame.bytes > topology_[port.from].shared_buffer_bytes) {
    ++port.counts.dropped;
    return false;
  }
  if (port.plan->red && refused_early(port, frame, queued)) {
    if (!port.plan->red->marks) {
      ++port.counts.dropped;
      return false;
    }
    frame.marked = true;
    ++port.counts.marked;
  } else if (queued > port.plan->mark_bytes) {
    frame.marked = true;
    ++port.counts.marked;
  }
  port.counts.longest_queue = std::max(port.counts.longest_queue, queued + frame.bytes);
  return true;
}

bool QueuedMedium::refused_early(Port& port, const Frame& frame, std::uint64_t queued) {
  double idle = 0;
  if (queued == 0 && port.sending == none) {
    const std::chrono::duration<double> empty = now_ - std::max(port.empty_since, origin_);
    idle = empty.count() * static_cast<double>(port.plan->bits_per_second) / 8 / usual_bytes;
  }
  return port.red[frame.priority].refuses(*port.plan->red, queued, idle);
}

// ---- at a port

// Sends the next frame of the highest priority that may.
void QueuedMedium::serve(PortId id) {
  Port& port = ports_[id];
  const auto ready = static_cast<std::uint8_t>(port.used & ~port.waits);
  if (ready == 0) return;
  const auto priority = static_cast<std::uint8_t>(std::bit_width(ready) - 1);
  Queue& queue = port.queues[priority];
  const std::uint32_t number = queue.first;
  Frame& frame = frames_[number];
  queue.first = frame.next;
  queue.bytes -= frame.bytes;
  if (queue.first == none) {
    queue.last = none;
    port.used &= static_cast<std::uint8_t>(~(1U << priority));
  }
  port.sending = number;
  port.clock.take(picoseconds(std::max(frame.came, port.went_on)), frame.bytes);
  queue_.add(port.clock.done(), {sent, id});
  if (!frame.lost) arrive(number, port.from, port.to, port.clock.done() + port.plan->delay);
}

void QueuedMedium::leave(PortId id) {
  Port& port = ports_[id];
  Frame& frame = frames_[port.sending];
  const std::uint8_t priority = frame.priority;
  const PortId by = frame.came_by;
  shared_[port.from] -= frame.bytes;
  if (by != none) {
    Room& room = ports_[by].rooms[priority];
    room.bytes -= frame.bytes;
    if (room.waits && room.bytes <= topology_.pfc->on) {
      room.waits = false;
      tell(by, priority, false);
    }
  }
  frame.came_by = id;  // to the next node
  port.sending = none;
  if (port.used == 0) port.empty_since = now_;
  serve(id);
}

void QueuedMedium::arrive(std::uint32_t frame, NodeId from, NodeId to, Time at) {
  // By the port, so that frames of one stay in order.
  const auto when = static_cast<std::uint64_t>(at.time_since_epoch().count());
  const std::uint64_t tie = random_ties_ ? derive(derive(seed_, when), std::uint64_t{from} << 32 | to) >> 40 : 0;
  queue_.add(at, {hop, frame}, tie);
}

// ---- priority flow control

void QueuedMedium::use_room(const Frame& frame) {
  if (frame.came_by == none) return;
  Room& room = ports_[frame.came_by].rooms[frame.priority];
  room.bytes += frame.bytes;
  if (!lossless(frame.priority) || room.waits || room.bytes < topology_.pfc->off) return;
  room.waits = true;
  tell(frame.came_by, frame.priority, true);
}

// The frame that tells it goes the other way before all others, but the one that is being sent.
void QueuedMedium::tell(PortId id, std::uint8_t priority, bool to_wait) {
  const Port& back = ports_[id ^ 1];
  Time at = std::max(now_, back.sending == none ? now_ : back.clock.done());
  if (!back.clock.unlimited()) {
    PortClock clock(back.plan->bits_per_second);
    clock.take(picoseconds(at), pause_bytes);
    at = clock.done();
  }
  queue_.add(at + back.plan->delay, {to_wait ? wait : go_on, id * priorities + priority});
}

void QueuedMedium::told(PortId id, std::uint8_t priority, bool to_wait) {
  Port& port = ports_[id];
  const auto bit = static_cast<std::uint8_t>(1U << priority);
  if (to_wait) {
    ++port.counts.pauses;
    if (port.waits == 0) port.waits_since = now_;
    port.waits |= bit;
    return;
  }
  port.waits &= static_cast<std::uint8_t>(~bit);
  if (port.waits == 0) port.counts.paused += now_ - port.waits_since;
  port.went_on = now_;
  if (port.sending == none) serve(id);
}

// What comes by a port from the byte on that makes it wait: the rest of a frame, what it sends while the word to wait is
// sent behind a frame and on its way, a frame that it has begun by then, and what is in the wire.
std::uint64_t QueuedMedium::headroom(const Port& port, const Port& back) const {
  if (topology_.pfc->headroom) return *topology_.pfc->headroom;
  PortClock clock(back.plan->bits_per_second);
  if (!clock.unlimited()) clock.take(0, longest_ + pause_bytes);
  const Duration way =
      (clock.unlimited() ? Duration::zero() : clock.done().time_since_epoch()) + back.plan->delay + port.plan->delay;
  return bytes_in(way + Duration(2), port.plan->bits_per_second) + 2 * std::uint64_t{longest_};
}

// ---- running

bool QueuedMedium::carry_out(Due what, User& user) {
  const std::uint32_t index = what.index;
  switch (what.kind) {
    case begin:
      if (!forward(index)) user.gone(index);
      return true;
    case sent: {
      const std::uint32_t frame = ports_[index].sending;
      leave(index);
      if (frames_[frame].lost) user.gone(frame);
      return true;
    }
    case wait:
    case go_on:
      told(index / priorities, static_cast<std::uint8_t>(index % priorities), what.kind == wait);
      return true;
    case hop: {
      Frame& frame = frames_[index];
      if (frame.at != frame.to) frame.at = ports_[frame.came_by].to;
      if (frame.at == frame.to) {
        user.arrived(index, frame.marked);
      } else if (!forward(index)) {
        user.gone(index);
      }
      return true;
    }
    default:
      return false;
  }
}

std::uint64_t QueuedMedium::queued_bytes(LinkId link, Fabric::Way way) const {
  const Port& port = ports_[port_of(link, way)];
  std::uint64_t bytes = port.clock.unlimited() ? 0 : port.clock.left(picoseconds(now_));
  for (const Queue& queue : port.queues) bytes += queue.bytes;
  return bytes;
}

}  // namespace netsum::sim
