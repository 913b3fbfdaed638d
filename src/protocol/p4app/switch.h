// The switch of p4lang/p4app-switchML, over UDP: what their P4 program does with a packet, and no more. A slot has two sets,
// and a packet's identity is its slot and its set: a copy that the network held for two rounds is added again. Packets have
// a job and a number besides, which their switch hands back unread; this one counts what they show to be wrong.
// docs/protocol-p4app.md has the rules.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/counter_list.h"
#include "base/packet_io.h"
#include "base/time.h"
#include "wire/p4app.h"
#include "wire/parse_error.h"

namespace netsum::p4app {

struct SwitchCounters {
  std::uint64_t packets = 0;
  std::array<std::uint64_t, wire::parse_error_kinds> malformed{};
  std::uint64_t dropped_strangers = 0;  // of no worker of the session
  std::uint64_t dropped_sizes = 0;      // of another size than the session's
  std::uint64_t dropped_slots = 0;      // there is no such slot
  std::uint64_t added = 0;
  std::uint64_t repeats_answered = 0, repeats_ignored = 0;  // ignored: their round was not complete
  std::uint64_t completed = 0, results_sent = 0;
  // What netsum's own SwitchML would have refused: results of these rounds are wrong at some worker.
  std::uint64_t added_twice = 0;          // a copy of what the sum had already
  std::uint64_t added_to_another = 0;     // to the sum of another packet
  std::uint64_t answered_by_another = 0;  // with the sum of another packet

  static constexpr auto fields() {
    using enum CounterKind;
    using C = SwitchCounters;
    return std::to_array<CounterField<C>>({
        {"packets", &C::packets, other},
        {"dropped_strangers", &C::dropped_strangers, outcome},
        {"dropped_sizes", &C::dropped_sizes, outcome},
        {"dropped_slots", &C::dropped_slots, outcome},
        {"added", &C::added, outcome},
        {"repeats_answered", &C::repeats_answered, outcome},
        {"repeats_ignored", &C::repeats_ignored, outcome},
        {"completed", &C::completed, other},
        {"results_sent", &C::results_sent, other},
        {"added_twice", &C::added_twice, other},
        {"added_to_another", &C::added_to_another, other},
        {"answered_by_another", &C::answered_by_another, other},
    });
  }
};

class Switch {
 public:
  // A new session of that many workers (1 to 32), whose packets have 64 or 256 elements: all that was is forgotten.
  void begin(std::uint32_t workers, std::uint32_t elements);
  // Its packets are those from this address, whatever the port.
  void set_worker(std::uint32_t rank, const Endpoint& address);

  void on_packets(std::span<const RxView> packets, Time now, Sink& sink);

  [[nodiscard]] const SwitchCounters& counters() const { return counters_; }

 private:
  struct Member {
    Endpoint address;
    bool known = false;
  };
  struct Set {
    std::uint32_t seen = 0;  // a bit for each worker
    std::uint32_t left = 0;  // contributions that are missing; 0: complete, or not begun
    std::array<std::int8_t, 2> exponents{};
    // For the counters alone: the job and the number of the packet that began the round, and whose were added.
    std::uint8_t job = 0;
    std::uint32_t packet = 0, contributors = 0;
  };

  void on_packet(const RxView& view, Sink& sink);
  [[nodiscard]] const Member* find(const Endpoint& source) const;
  [[nodiscard]] std::byte* sum_of(const wire::p4app::Header& header);
  void send(const Member& to, std::uint16_t port, const wire::p4app::Header& header, Sink& sink);

  std::uint32_t elements_ = 0;
  std::vector<Member> members_;  // by rank
  std::vector<std::array<Set, 2>> slots_;
  std::vector<std::byte> sums_;  // of each slot's two sets, in network order
  SwitchCounters counters_;
};

}  // namespace netsum::p4app
