// A lane of an aggregator that is a socket, whatever services are on it. A thread serves one or more of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "runtime/packet_loop.h"
#include "service/lane.h"
#include "transport/datagram/transport.h"

namespace netsum::runtime {

class AggregatorLane final : public service::Lane {
 public:
  // `most_waiting`: bytes in the socket beyond which the queue is long, whatever the lane's formats say. `thread`: of
  // another lane; null: a new one, number `index`.
  AggregatorLane(std::unique_ptr<transport::Transport> transport, std::uint64_t most_waiting, std::uint32_t index,
                 const ThreadOptions& threads, std::shared_ptr<PacketLoop> thread = nullptr);
  ~AggregatorLane() override;
  AggregatorLane(const AggregatorLane&) = delete;
  AggregatorLane& operator=(const AggregatorLane&) = delete;

  [[nodiscard]] const std::shared_ptr<PacketLoop>& thread() const { return loop_; }
  [[nodiscard]] Endpoint local() const { return loop_->local(socket_); }
  void send_from(const Endpoint& to, const Endpoint& own) { loop_->send_from(to, own, socket_); }  // Transport's
  // Within run():
  [[nodiscard]] transport::Counters counters() const { return loop_->transport(socket_).counters(); }
  [[nodiscard]] const PacketLoopCounters& loop_counters() const { return loop_->counters(socket_); }

  void serve(std::unique_ptr<service::Format> format) override;
  void run(const std::function<void()>& command) override { loop_->call(command); }
  [[nodiscard]] std::unique_ptr<service::Memory> allocate(std::size_t bytes, service::Pages pages) override;
  void expect(std::uint64_t epoch) override { loop_->expect(epoch, socket_); }
  void expect_no_more(std::uint64_t epoch) override { loop_->expect_no_more(epoch, socket_); }
  void expect_ring() override { loop_->expect_ring(socket_); }
  void expect_ring_no_more() override { loop_->expect_ring_no_more(socket_); }

 private:
  const std::optional<std::uint32_t> node_;
  service::Formats formats_;
  std::shared_ptr<PacketLoop> loop_;
  std::size_t socket_ = 0;
};

}  // namespace netsum::runtime
