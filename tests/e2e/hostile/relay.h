// The control plane of the hostile proxy: a server that passes calls on to the switch, puts its own data sockets in place of
// both sides', and loses and repeats heartbeats and goodbyes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "faults.h"
#include "flows.h"

namespace netsum::hostile {

class Relay {
 public:
  // `say` gets one line of JSON for each rank that is admitted.
  Relay(const std::string& aggregator, std::uint64_t seed, double intensity, Flows& flows,
        std::function<void(const std::string&)> say);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  [[nodiscard]] std::string address() const;
  [[nodiscard]] Counts counts() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace netsum::hostile
