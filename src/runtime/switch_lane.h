// One I/O thread of an aggregator: a socket, the switch protocol, and its share of the slots.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <unordered_map>

#include "protocol/switchml/switch.h"
#include "runtime/thread.h"
#include "transport/transport.h"

namespace netsum::runtime {

class SwitchLane {
 public:
  SwitchLane(std::unique_ptr<transport::Transport> transport, std::uint32_t index, bool pin);
  ~SwitchLane();
  SwitchLane(const SwitchLane&) = delete;
  SwitchLane& operator=(const SwitchLane&) = delete;

  [[nodiscard]] Endpoint local() const { return local_; }
  void add_job(const switchml::SwitchJobConfig& config);  // returns once the lane serves it
  void remove_job(std::uint64_t epoch);
  // `look` sees the lane's state on its own thread, between batches.
  void inspect(const std::function<void(const switchml::Switch&, const transport::Counters&)>& look);

 private:
  void loop();

  struct alignas(64) CacheLine {
    std::byte bytes[64];
  };

  std::unique_ptr<transport::Transport> transport_;
  Endpoint local_;
  switchml::Switch switch_;
  std::unordered_map<std::uint64_t, std::vector<CacheLine>>
      memory_;  // of each job; zeroed, so nothing of a former owner is in it
  Mailbox mailbox_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace netsum::runtime
