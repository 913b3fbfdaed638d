// What a bump says of its rings: when their ranks come, when a ring stalls and goes on, and why gradients are dropped. Each
// complaint is repeated at most once a minute.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/time.h"
#include "protocol/netreduce/bump.h"
#include "telemetry/line_limit.h"

namespace netsum::daemon {

struct RingLook {
  bool complete = false;                       // all ranks are there
  std::vector<std::uint32_t> racks_awaited{};  // at the root
  netreduce::RingCounters counters{};
  std::optional<netreduce::RingStall> stall{};
  std::vector<netreduce::Connection> connections{};  // by rank, if it stalls
};

// A bump at one moment.
struct BumpLook {
  netreduce::AcceleratorCounters counters;
  std::array<netreduce::MisfitExample, netreduce::misfits> examples;
  netreduce::BumpCounters frames;
  netreduce::LearnedRacksCounters racks;
  netreduce::LearnedRacks::Message differing;
  std::vector<RingLook> rings;
};

class RingWatch {
 public:
  RingWatch(const std::vector<netreduce::RingConfig>& rings, std::function<void(const std::string&)> log);

  void on_change(const netreduce::ConnectionChange& change) const;
  void on_look(const BumpLook& look, Time now);

 private:
  struct Watched {
    netreduce::RingConfig ring;
    bool complete = false, said = false;
    std::optional<std::pair<std::uint64_t, std::uint32_t>> stalled_at{};  // message and packet
    Time since{};
  };

  void complain_of_drops(const BumpLook& look, Time now);
  void complain_of_drops(const netreduce::RingConfig& ring, const netreduce::RingCounters& counters, Time now);
  void watch_stall(Watched& watched, const RingLook& look, Time now) const;
  void say_awaited(const netreduce::RingConfig& ring, const std::vector<std::uint32_t>& racks, Time now);
  // `count`: of what has happened so far.
  void complain(const std::string& key, std::uint64_t count, Time now, const std::string& words);

  std::vector<Watched> watched_;
  const std::function<void(const std::string&)> log_;
  std::map<std::string, telemetry::LineLimit> limits_;
};

}  // namespace netsum::daemon
