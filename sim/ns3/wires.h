// A network of ns-3's: nodes with IPv4, point-to-point devices and queues, in a tree; and ns-3's clock. ns-3 3.37 is C++17
// for GCC: this header has neither a header of ns-3's nor one of netsum's, and sim/ns3/ns3_medium.h stands between.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace netsum::sim::ns3_wires {

struct Port {                         // as sim::PortPlan
  std::uint64_t bits_per_second = 0;  // 0: unlimited
  std::int64_t delay_ns = 0;          // the same in both directions
  std::uint64_t buffer_bytes = UINT64_MAX, mark_bytes = UINT64_MAX;
  double loss = 0;
  std::uint64_t red_least_bytes = 0, red_most_bytes = 0;  // as sim::RedPlan; most 0: none
  double red_most_chance = 0, red_weight = 0;
};
struct Node {
  std::uint32_t above = UINT32_MAX;  // an earlier one; none: the root
  Port up, down;
};
struct Counts {  // as sim::PortCounts
  std::uint64_t packets = 0, bytes = 0, dropped = 0, lost = 0, marked = 0, longest_queue = 0;
};
// A connection that sends as much as it can.
struct Tcp {
  std::uint32_t from = 0, to = 0;
  std::string congestion_control;  // cubic, dctcp or reno
  std::int64_t start_ns = 0, stop_ns = INT64_MAX;
};

class User {
 public:
  virtual void due(std::uint32_t kind, std::uint32_t index) = 0;
  virtual void arrived(std::uint32_t frame, bool marked) = 0;
  virtual void gone(std::uint32_t frame) = 0;

 protected:
  ~User() = default;
};

// As sim::Medium, in nanoseconds from the start. ns-3's simulator is one for the process: one of these at a time.
class Wires {
 public:
  Wires(const std::vector<Node>& nodes, std::uint64_t seed);
  ~Wires();
  Wires(const Wires&) = delete;
  Wires& operator=(const Wires&) = delete;

  [[nodiscard]] std::int64_t now() const;
  void add(std::int64_t at, std::uint32_t kind, std::uint32_t index);
  void carry(std::int64_t at, std::uint32_t frame, std::uint32_t from, std::uint32_t to, std::uint32_t bytes);
  // Before run(). The number by which tcp_bytes() knows it.
  [[nodiscard]] std::size_t add_tcp(const Tcp& tcp);
  [[nodiscard]] std::uint64_t tcp_bytes(std::size_t tcp) const;  // received
  [[nodiscard]] bool run(User& user, std::int64_t end);
  void stop();

  [[nodiscard]] const Counts& counts(std::uint32_t node, bool up) const;
  [[nodiscard]] std::uint64_t queued_bytes(std::uint32_t node, bool up) const;
  [[nodiscard]] std::uint64_t hops() const;
  [[nodiscard]] std::uint64_t events() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace netsum::sim::ns3_wires
