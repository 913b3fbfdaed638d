// The latest operations of one process group through the switch, as PyTorch's flight recorder keeps NCCL's: what was called,
// on what, when, and whether it ended. Its memory is bounded.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace netsum::torch_backend {

class FlightRecorder {
 public:
  static constexpr std::size_t most_flights = 2000;

  struct Tensors {
    std::vector<std::vector<std::int64_t>> sizes;
    std::vector<std::string> types;
  };
  struct Flight {
    std::uint64_t number = 0;  // of the group's operations through the switch, the same on all ranks
    std::string name;          // as PyTorch's tools know it
    Tensors inputs, outputs;
    std::int64_t created_ns = 0;    // since 1970
    std::int64_t completed_ns = 0;  // 0: not yet, or it failed
    std::optional<std::int64_t> timeout_ms{};
    std::string error;
  };

  // An operation begins; returns its number.
  std::uint64_t begin(c10d::OpType type, const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs,
                      std::optional<std::int64_t> timeout_ms);
  // It ended. `error`: why it failed, or null.
  void end(std::uint64_t number, const std::exception_ptr& error);

  [[nodiscard]] std::vector<Flight> flights() const;  // the oldest first

 private:
  mutable std::mutex mutex_;  // guards all below
  std::deque<Flight> flights_;
  std::uint64_t next_ = 0;
};

}  // namespace netsum::torch_backend
