// The lane of a bump's service: where the bump's packets are processed. It has no format, as the bump sorts packets.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "netsum/error.h"
#include "runtime/memory.h"
#include "runtime/packet_loop.h"
#include "service/lane.h"

namespace netsum::daemon {

class WireLane final : public service::Lane {
 public:
  using Run = std::function<void(const std::function<void()>&)>;
  // `run`: runs a command on the loop's thread, when no other thread uses rings.
  WireLane(runtime::PacketLoop& loop, Run run) : loop_(loop), run_(std::move(run)) {}

  void serve(std::unique_ptr<service::Format>) override { throw Error(ErrorCode::internal, "a bump has no formats"); }
  void run(const std::function<void()>& command) override { run_(command); }
  [[nodiscard]] std::unique_ptr<service::Memory> allocate(std::size_t bytes, service::Pages pages) override {
    return std::make_unique<runtime::MappedMemory>(bytes, pages);
  }
  void expect_ring() override { loop_.expect_ring(); }
  void expect_ring_no_more() override { loop_.expect_ring_no_more(); }

 private:
  runtime::PacketLoop& loop_;
  const Run run_;
};

}  // namespace netsum::daemon
