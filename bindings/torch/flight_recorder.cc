#include "flight_recorder.h"

#include <chrono>
#include <utility>

namespace netsum::torch_backend {
namespace {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

const char* name_of(c10d::OpType type) {
  switch (type) {
    case c10d::OpType::ALLREDUCE:
      return "all_reduce";
    case c10d::OpType::ALLREDUCE_COALESCED:
      return "allreduce_coalesced";
    case c10d::OpType::REDUCE:
      return "reduce";
    case c10d::OpType::BROADCAST:
      return "broadcast";
    case c10d::OpType::ALLGATHER:
      return "all_gather";
    case c10d::OpType::_ALLGATHER_BASE:
      return "_all_gather_base";
    case c10d::OpType::REDUCE_SCATTER:
      return "reduce_scatter";
    case c10d::OpType::_REDUCE_SCATTER_BASE:
      return "_reduce_scatter_base";
    default:
      return "coalesced";
  }
}

FlightRecorder::Tensors seen(const std::vector<at::Tensor>& tensors) {
  FlightRecorder::Tensors all;
  for (const at::Tensor& tensor : tensors) {
    all.sizes.push_back(tensor.sizes().vec());
    all.types.emplace_back(c10::toString(tensor.scalar_type()));
  }
  return all;
}

}  // namespace

std::uint64_t FlightRecorder::begin(c10d::OpType type, const std::vector<at::Tensor>& inputs,
                                    const std::vector<at::Tensor>& outputs, std::optional<std::int64_t> timeout_ms) {
  Flight flight{0, name_of(type), seen(inputs), seen(outputs), now_ns(), 0, timeout_ms, {}};
  const std::lock_guard lock(mutex_);
  flight.number = next_++;
  flights_.push_back(std::move(flight));
  if (flights_.size() > most_flights) flights_.pop_front();
  return next_ - 1;
}

void FlightRecorder::end(std::uint64_t number, const std::string& error) {
  const std::lock_guard lock(mutex_);
  if (flights_.empty() || number < flights_.front().number) return;  // forgotten: many followed it
  Flight& flight = flights_[number - flights_.front().number];
  flight.error = error;
  if (error.empty()) flight.completed_ns = now_ns();
}

std::vector<FlightRecorder::Flight> FlightRecorder::flights() const {
  const std::lock_guard lock(mutex_);
  return {flights_.begin(), flights_.end()};
}

}  // namespace netsum::torch_backend
