// The data plane of the hostile proxy: for each lane of each worker two UDP sockets, one that the worker takes for the
// switch and one that the switch takes for the worker, and a thread between them that carries out what the meddlers decide.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <queue>
#include <string>
#include <thread>
#include <vector>

#include "base/endpoint.h"
#include "faults.h"

namespace netsum::hostile {

class Flows {
 public:
  Flows(std::uint64_t seed, double intensity);
  ~Flows();
  Flows(const Flows&) = delete;
  Flows& operator=(const Flows&) = delete;

  // A pair of sockets before `lane` of the switch; returns its number.
  [[nodiscard]] std::size_t open(const Endpoint& lane);
  [[nodiscard]] Endpoint for_worker(std::size_t flow) const;
  [[nodiscard]] Endpoint for_switch(std::size_t flow) const;
  // The one to which these datagrams come: a worker sends probes before it joins.
  [[nodiscard]] std::optional<std::size_t> of_worker(const Endpoint& worker) const;
  // Who is behind it, once it has joined. The meddlers start again, from a seed that is the rank's own.
  void admit(std::size_t flow, const Endpoint& worker, const Owner& owner);

  struct Totals {
    std::uint64_t forwarded[2] = {};  // datagrams that came, by way
    Counts counts[2] = {};
  };
  [[nodiscard]] Totals totals() const;

 private:
  struct Flow {
    int worker_socket = -1, switch_socket = -1;
    Endpoint worker;
    Owner owner;
    Meddler meddlers[2];
    std::uint64_t next_sequence[2] = {}, highest_sent[2] = {};
  };
  struct Due {
    std::chrono::steady_clock::time_point time;
    std::uint64_t order;
    std::size_t flow;
    Way way;
    std::uint64_t sequence;  // 0: not genuine
    Meddler::Send send;
    bool operator<(const Due& other) const { return std::pair(time, order) > std::pair(other.time, other.order); }
  };

  void loop();
  void receive(std::size_t flow, Way way);
  void transmit(const Due& due);
  [[nodiscard]] std::uint64_t seed_of(const Owner& owner, std::size_t flow, Way way) const;

  const std::uint64_t seed_;
  const double intensity_;
  mutable std::mutex mutex_;  // of all below
  std::deque<Flow> flows_;
  Captures captures_[2];
  std::priority_queue<Due> due_;
  std::uint64_t order_ = 0;
  std::uint64_t forwarded_[2] = {};
  Counts past_[2] = {};  // of meddlers that started again
  std::vector<Meddler::Send> sends_;
  bool stopping_ = false;
  int poll_ = -1, wakeup_ = -1;
  std::thread thread_;
};

}  // namespace netsum::hostile
