#include "transport/bypass/neighbours.h"

namespace netsum::transport {
namespace {

bool is_over(Time since, Duration patience, Time now) {
  return since == Time::min() || now - since >= patience;
}

}  // namespace

// Whoever fills the table has it emptied: those in use are asked for again.
Neighbours::Known& Neighbours::entry(const wire::Ipv4& address) {
  if (known_.size() >= most && !known_.contains(address)) known_.clear();
  return known_[address];
}

Neighbours::Found Neighbours::find(const wire::Ipv4& address, Time now) {
  Known& known = entry(address);
  Found found{known.place, false};
  if (is_over(known.heard, holds, now) && is_over(known.asked, ask_again, now)) {
    known.asked = now;
    found.ask = true;
  }
  return found;
}

void Neighbours::learn(const wire::Ipv4& address, const Place& place, bool to_us, Time now) {
  if (address == wire::Ipv4{} || (!to_us && !known_.contains(address))) return;
  Known& known = entry(address);
  known.place = place;
  known.heard = now;
}

}  // namespace netsum::transport
