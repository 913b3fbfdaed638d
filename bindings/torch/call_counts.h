// How often each collective took which path, with how many bytes of this rank's tensors, and why it did not take the switch.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "routes.h"

namespace netsum::torch_backend {

class CallCounts {
 public:
  struct Count {
    std::uint64_t calls = 0, bytes = 0;
  };
  struct Paths {
    Count by_switch;
    std::map<std::string, Count> by_gloo;  // by reason
  };
  using Counts = std::map<std::string, Paths>;  // by collective

  // `reason`: why the switch did not take the call; empty if it did.
  void add(Call call, const std::string& reason, std::uint64_t bytes);
  [[nodiscard]] Counts all() const;

  // The words of a warning, if most bytes did not take the switch; given once. Looks when the number of calls is 256, and
  // then whenever it has doubled: a training begins with broadcasts. `last`: looks now.
  [[nodiscard]] std::optional<std::string> warning(bool last = false);

 private:
  mutable std::mutex mutex_;  // guards all below
  Counts counts_;
  std::uint64_t calls_ = 0, next_look_ = 256;
  bool warned_ = false;
};

}  // namespace netsum::torch_backend
