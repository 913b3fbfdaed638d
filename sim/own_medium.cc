#include "sim/own_medium.h"

namespace netsum::sim {

bool OwnMedium::run(User& user, Time end) {
  stopped_ = false;
  while (!stopped_ && !queue_.empty()) {
    if (queue_.first().at > end) {
      now_ = end;
      return false;
    }
    const auto event = queue_.take();
    now_ = event.at;
    ++events_;
    if (!carry_out(event.what, user)) user.due(event.what);
  }
  return true;
}

}  // namespace netsum::sim
