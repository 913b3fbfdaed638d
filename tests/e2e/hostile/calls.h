// Calls of the control plane that are under way, without a thread each.
#pragma once

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "control/channel.h"

namespace netsum::hostile {

// One thread.
class Calls {
 public:
  using Channel = control::Channel;
  using Done = std::function<void(const Channel::Outcome&)>;  // may begin others

  // `owner`: for drop().
  void begin(std::shared_ptr<Channel> channel, control::Kind kind, control::Bytes message, std::chrono::milliseconds limit,
             Done done, std::uint64_t owner = 0) {
    channel->request(kind, std::move(message), Channel::Clock::now() + limit, kind == control::Kind::hello);
    calls_.push_back({std::move(channel), std::move(done), owner});
  }
  [[nodiscard]] std::size_t size() const { return calls_.size(); }
  // Their connections end, and the daemon learns of that.
  void drop(std::uint64_t owner) {
    calls_.remove_if([&](const Call& call) { return call.owner == owner; });
  }

  // Until one can go on, `also` is readable, or the time is up; then as far as all can go.
  void proceed(Channel::Clock::time_point until, int also = -1) {
    std::vector<pollfd> watched{{also, POLLIN, 0}};
    for (const Call& call : calls_) {
      watched.push_back({call.channel->descriptor(), call.channel->events(), 0});
      until = std::min(until, call.channel->wake_by());
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Channel::Clock::now()).count();
    ::poll(watched.data(), watched.size(), static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000)));
    for (auto next = calls_.begin(); next != calls_.end();) {
      const auto call = next++;
      const auto outcome = call->channel->step(Channel::Clock::now());
      if (!outcome) continue;
      const Done done = std::move(call->done);
      calls_.erase(call);
      done(*outcome);
    }
  }

 private:
  struct Call {
    std::shared_ptr<Channel> channel;
    Done done;
    std::uint64_t owner = 0;
  };
  std::list<Call> calls_;
};

}  // namespace netsum::hostile
