// How many packets a lane's worker may have in flight: the door for one's own rule (docs/extending.md). AIMD, as the paper
// has it, is in congestion.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/time.h"

namespace netsum::atp {

class CongestionControl {
 public:
  virtual ~CongestionControl() = default;
  [[nodiscard]] virtual std::unique_ptr<CongestionControl> copy() const = 0;  // a worker's state is a value

  [[nodiscard]] virtual std::uint32_t packets() const = 0;  // in flight at most, above 0; the job's window bounds it too

  // A parameter packet for `sequence` arrived, with an ECN mark of its own or of a gradient in it; `next` is the first
  // sequence number not yet sent. `limited`: chunks waited for the window. `lanes`: so many of the job's lanes send now,
  // over the same links.
  virtual void on_parameter(std::uint64_t sequence, std::uint64_t next, bool ecn, bool limited, std::uint32_t lanes) = 0;
  // A chunk that was sent once has its result: before on_parameter() of that.
  virtual void on_round_trip(std::uint64_t sequence, std::uint64_t next, Duration round_trip) = 0;
  // Three out of order (§3.7), or a time-out.
  virtual void on_loss(std::uint64_t sequence, std::uint64_t next) = 0;
};

// What it is of: the job's window, in packets, and their bytes from the first header of ATP on.
struct ControlledLane {
  std::uint32_t most = 0;
  std::size_t packet_bytes = 0;
};
using MakeCongestionControl = std::unique_ptr<CongestionControl> (*)(const ControlledLane& lane);

// Copied with the worker that has it.
class OwnedControl {
 public:
  explicit OwnedControl(std::unique_ptr<CongestionControl> control) : control_(std::move(control)) {}
  OwnedControl(const OwnedControl& other) : control_(other.control_->copy()) {}
  OwnedControl(OwnedControl&&) noexcept = default;
  OwnedControl& operator=(OwnedControl other) noexcept {
    control_.swap(other.control_);
    return *this;
  }
  ~OwnedControl() = default;

  CongestionControl* operator->() { return control_.get(); }
  const CongestionControl* operator->() const { return control_.get(); }

 private:
  std::unique_ptr<CongestionControl> control_;
};

}  // namespace netsum::atp
