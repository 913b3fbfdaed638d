// What our media have in common: one queue of events, and the clock that follows it.
#pragma once

#include <cstdint>

#include "sim/event_queue.h"
#include "sim/medium.h"

namespace netsum::sim {

class OwnMedium : public Medium {
 public:
  [[nodiscard]] Time now() const final { return now_; }
  void add(Time at, Due what) final { queue_.add(at, what); }
  [[nodiscard]] bool run(User& user, Time end) final;
  void stop() final { stopped_ = true; }

  [[nodiscard]] std::uint64_t left_bytes(LinkId link, Fabric::Way way) const final {
    return counts(link, way).bytes - queued_bytes(link, way);
  }
  [[nodiscard]] bool breaks_ties() const final { return random_ties_; }
  [[nodiscard]] std::uint64_t hops() const final { return hops_; }
  [[nodiscard]] std::uint64_t events() const final { return events_; }

 protected:
  OwnMedium(std::uint64_t seed, Time origin, bool random_ties) : seed_(seed), random_ties_(random_ties), now_(origin) {}

  // Carries out an event of the medium's own. False: it is the user's.
  [[nodiscard]] virtual bool carry_out(Due what, User& user) = 0;

  const std::uint64_t seed_;
  const bool random_ties_;
  EventQueue<Due> queue_;
  Time now_;
  std::uint64_t hops_ = 0;

 private:
  std::uint64_t events_ = 0;
  bool stopped_ = false;
};

}  // namespace netsum::sim
