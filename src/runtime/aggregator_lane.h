// A lane of an aggregator that is a thread with a socket, whatever services are on it.
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
  // `most_waiting`: bytes in the socket beyond which the queue is long, whatever the lane's formats say.
  AggregatorLane(std::unique_ptr<transport::Transport> transport, std::uint64_t most_waiting, std::uint32_t index,
                 const ThreadOptions& threads);

  [[nodiscard]] Endpoint local() const { return loop_.local(); }
  void send_from(const Endpoint& to, const Endpoint& own) { loop_.send_from(to, own); }  // Transport's
  // Within run():
  [[nodiscard]] transport::Counters counters() const { return loop_.transport().counters(); }
  [[nodiscard]] const PacketLoopCounters& loop_counters() const { return loop_.counters(); }

  void serve(std::unique_ptr<service::Format> format) override;
  void run(const std::function<void()>& command) override { loop_.call(command); }
  [[nodiscard]] std::unique_ptr<service::Memory> allocate(std::size_t bytes, service::Pages pages) override;
  void expect(std::uint64_t epoch) override { loop_.expect(epoch); }
  void expect_no_more(std::uint64_t epoch) override { loop_.expect_no_more(epoch); }
  void expect_ring() override { loop_.expect_ring(); }
  void expect_ring_no_more() override { loop_.expect_ring_no_more(); }

 private:
  const std::optional<std::uint32_t> node_;
  service::Formats formats_;
  PacketLoop loop_;  // last: its thread uses all members above
};

}  // namespace netsum::runtime
