#include "flight_recorder.h"

#include <chrono>
#include <string_view>
#include <utility>

#include "work.h"

namespace netsum::torch_backend {
namespace {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string words_of(const std::exception_ptr& error) {
  if (!error) return {};
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& thrown) {
    return thrown.what();
  } catch (...) {
    return "an unknown error";
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
  Flight flight{0,
                std::string(title_of(type)).substr(std::string_view("netsum:").size()),
                seen(inputs),
                seen(outputs),
                now_ns(),
                0,
                timeout_ms,
                {}};
  const std::lock_guard lock(mutex_);
  flight.number = next_++;
  flights_.push_back(std::move(flight));
  if (flights_.size() > most_flights) flights_.pop_front();
  return next_ - 1;
}

void FlightRecorder::end(std::uint64_t number, const std::exception_ptr& error) {
  const std::lock_guard lock(mutex_);
  if (flights_.empty() || number < flights_.front().number) return;  // forgotten: many followed it
  Flight& flight = flights_[number - flights_.front().number];
  flight.error = words_of(error);
  if (!error) flight.completed_ns = now_ns();
}

std::vector<FlightRecorder::Flight> FlightRecorder::flights() const {
  const std::lock_guard lock(mutex_);
  return {flights_.begin(), flights_.end()};
}

}  // namespace netsum::torch_backend
