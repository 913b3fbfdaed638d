#include "sim/fabric_medium.h"

#include "sim/random.h"

namespace netsum::sim {

bool FabricMedium::carry(Time at, std::uint32_t frame, NodeId from, NodeId to, std::uint32_t bytes, const Traits&) {
  if (frame >= frames_.size()) frames_.resize(frame + 1);
  frames_[frame] = {from, to, bytes, false};
  if (from != to) return forward(at, frame);
  queue_.add(at, {hop, frame});
  return true;
}

bool FabricMedium::forward(Time at, std::uint32_t frame) {
  Frame& moved = frames_[frame];
  ++hops_;
  const auto next = fabric_.forward(at, moved.at, moved.to, moved.bytes);
  if (!next) return false;
  // By the port, so that frames of one stay in order.
  const auto when = static_cast<std::uint64_t>(next->at.time_since_epoch().count());
  const std::uint64_t tie = random_ties_ ? derive(derive(seed_, when), std::uint64_t{moved.at} << 32 | next->node) >> 40 : 0;
  moved.at = next->node;
  moved.marked |= next->marked;
  queue_.add(next->at, {hop, frame}, tie);
  return true;
}

bool FabricMedium::carry_out(Due what, User& user) {
  if (what.kind != hop) return false;
  const std::uint32_t frame = what.index;
  if (frames_[frame].at == frames_[frame].to) {
    user.arrived(frame, frames_[frame].marked);
  } else if (!forward(now_, frame)) {
    user.gone(frame);
  }
  return true;
}

}  // namespace netsum::sim
