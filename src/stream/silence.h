// What a time-out may repeat when a lane hears nothing.
//
// Answers come in the order in which packets were sent. So when they stop, nothing is known of the packets behind the oldest
// one without an answer. A rank or an aggregator that runs late is the reason more often than the loss of all of them, and
// repeats of a whole window would make it later still. So the oldest alone is repeated, as in TCP (RFC 6298, section 5.4).
// Once a repeat is answered, packets get through, and those that were sent before it time out by themselves again.
// Not for lanes that send chunks in other orders than other ranks' lanes do: two ranks could each wait for what the other
// one holds back.
#pragma once

#include <algorithm>
#include <cstdint>

namespace netsum::stream {

// Packets are known by the place of their first transmission, and of a later one, in the order of all transmissions of the
// lane, from 1.
class Silence {
 public:
  // A packet with these first and last transmissions has its answer.
  void answered(std::uint64_t first, std::uint64_t last) {
    newest_ = std::max(newest_, first);
    if (last > first) repeat_ = std::max(repeat_, last);
  }

  // Whether the packet was sent after the newest that has an answer: it waits for its answer as long as answers come.
  [[nodiscard]] bool ahead(std::uint64_t first) const { return first > newest_; }

  // Whether a packet ahead, sent once, is to be repeated only after the oldest one ahead has been.
  [[nodiscard]] bool stands_back(std::uint64_t first) const { return ahead(first) && first > repeat_; }

 private:
  std::uint64_t newest_ = 0, repeat_ = 0;
};

}  // namespace netsum::stream
