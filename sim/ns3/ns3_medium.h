// ns-3 as an experiment's medium: its devices, queues, IPv4 and UDP carry the frames, and its clock is the experiment's.
#pragma once

#include <vector>

#include "sim/medium.h"
#include "sim/ns3/wires.h"

namespace netsum::sim {

// One at a time. Throws std::invalid_argument for what ns-3's nodes here do not have: buffers that a node's ports share,
// links with different delays each way.
class Ns3Medium final : public Medium, private ns3_wires::User {
 public:
  Ns3Medium(const Topology& topology, std::uint64_t seed, Time origin);

  [[nodiscard]] Time now() const override { return origin_ + Duration(wires_.now()); }
  void add(Time at, Due what) override { wires_.add(since(at), what.kind, what.index); }
  [[nodiscard]] bool carry(Time at, std::uint32_t frame, NodeId from, NodeId to, std::uint32_t bytes,
                           const Traits&) override {
    wires_.carry(since(at), frame, from, to, bytes);
    return true;
  }
  [[nodiscard]] std::optional<std::size_t> add_tcp(const TcpPlan& plan) override;
  [[nodiscard]] std::uint64_t tcp_bytes(std::size_t tcp) const override { return wires_.tcp_bytes(tcp); }
  [[nodiscard]] bool run(Medium::User& user, Time end) override;
  void stop() override { wires_.stop(); }

  [[nodiscard]] const PortCounts& counts(NodeId node, Fabric::Way way) const override;
  [[nodiscard]] std::uint64_t queued_bytes(NodeId node, Fabric::Way way) const override {
    return wires_.queued_bytes(node, way == Fabric::Way::up);
  }
  [[nodiscard]] std::uint64_t left_bytes(NodeId node, Fabric::Way way) const override { return counts(node, way).bytes; }
  [[nodiscard]] std::uint64_t hops() const override { return wires_.hops(); }
  [[nodiscard]] std::uint64_t events() const override { return wires_.events(); }

 private:
  [[nodiscard]] std::int64_t since(Time at) const { return at == never ? INT64_MAX : (at - origin_).count(); }
  void due(std::uint32_t kind, std::uint32_t index) override { user_->due({kind, index}); }
  void arrived(std::uint32_t frame, bool marked) override { user_->arrived(frame, marked); }
  void gone(std::uint32_t frame) override { user_->gone(frame); }

  const Time origin_;
  ns3_wires::Wires wires_;
  Medium::User* user_ = nullptr;
  mutable std::vector<PortCounts> counts_;  // as last asked for
};

}  // namespace netsum::sim
