#include "sim/training.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/wire_types.h"
#include "sim/faults.h"

namespace netsum::sim {

std::uint64_t TrainingPlan::elements() const {
  std::uint64_t all = 0;
  for (const Bucket& bucket : buckets) all += bucket.elements;
  return all;
}

// ---- a job

TrainingJob::TrainingJob(const TrainingPlan& plan, std::uint32_t ranks, Time origin)
    : plan_(plan), ranks_(ranks), origin_(origin), calls_(plan.keep_times ? ranks : 0) {}

std::optional<Time> TrainingJob::admit(std::uint64_t iteration, Time at) {
  if (iteration < iterations_.size()) return std::max(at, iterations_[iteration].gate);
  if (over_ || (plan_.iterations != 0 && iteration >= plan_.iterations)) return std::nullopt;
  Time gate{};
  for (const TrainingPlan::Pause& pause : plan_.pauses) {
    if (std::max(at, gate) >= origin_ + pause.from && std::max(at, gate) < origin_ + pause.to) gate = origin_ + pause.to;
  }
  if (std::max(at, gate) >= after(origin_, plan_.stop)) {
    over_ = true;
    return std::nullopt;
  }
  iterations_.push_back({gate, never});
  return std::max(at, gate);
}

void TrainingJob::began(std::uint64_t iteration, Time at) {
  iterations_[iteration].began = std::min(iterations_[iteration].began, at);
}

void TrainingJob::issued(std::uint64_t operation, std::uint32_t rank, Time at) {
  if (plan_.keep_times) calls_[rank].push_back(at);
  if (operation >= operations_.size()) operations_.resize(operation + 1);
  operations_[operation].issued = std::min(operations_[operation].issued, at);
}

void TrainingJob::completed(std::uint64_t operation, std::uint32_t rank, Time at) {
  if (plan_.keep_times) {  // results come in the order of calls
    times_.push_back({operation, rank, calls_[rank].front(), at});
    calls_[rank].pop_front();
  }
  Times& times = operations_[operation];
  times.completed = std::max(times.completed, at);
  ++times.ranks;
  ++results_;
  result_bytes_ += plan_.buckets[operation % plan_.buckets.size()].elements * sizeof(float);
  bytes_reduced_ = result_bytes_ / ranks_;
  last_ = std::max(last_, at);
}

std::vector<double> TrainingJob::iteration_seconds() const {
  std::vector<double> seconds;
  const std::size_t complete = operation_seconds().size() / plan_.buckets.size();
  for (std::size_t i = 0; i < std::min(complete, iterations_.size()); ++i) {
    const bool last = i + 1 == iterations_.size() || iterations_[i + 1].began == never;
    // A pause is no part of the iteration before it.
    Time end = last ? last_ : iterations_[i + 1].began;
    if (!last && iterations_[i + 1].gate == end) {
      end = Time{};
      for (std::size_t k = 0; k < plan_.buckets.size(); ++k) {
        end = std::max(end, operations_[i * plan_.buckets.size() + k].completed);
      }
    }
    seconds.push_back(std::chrono::duration<double>(end - iterations_[i].began).count());
  }
  return seconds;
}

std::vector<double> TrainingJob::operation_seconds() const {
  std::vector<double> seconds;
  for (const Times& times : operations_) {
    if (times.ranks != ranks_) break;
    seconds.push_back(std::chrono::duration<double>(times.completed - times.issued).count());
  }
  return seconds;
}

std::span<float> TrainingJob::zeros() {
  for (const Bucket& bucket : plan_.buckets) {
    if (bucket.elements > zeros_.size()) zeros_.resize(bucket.elements);
  }
  return zeros_;
}

std::optional<Time> TrainingJob::first() const {
  return iterations_.empty() || iterations_.front().began == never ? std::nullopt : std::optional(iterations_.front().began);
}

// ---- a rank's passes

Passes::Passes(TrainingJob& job, std::uint32_t rank, Random random) : job_(job), rank_(rank), random_(random) {
  for (const TrainingPlan::Straggler& straggler : job.plan().stragglers) {
    if (straggler.rank == rank) own_ = straggler;
  }
}

bool Passes::begin(std::span<const Time> results, Time now) {
  const TrainingPlan& plan = job_.plan();
  Time at = iterations_ == 0 ? now : computed_;
  for (const Time result : results) at = std::max(at, result);
  if (iterations_ == 0 && plan.start_jitter > Duration::zero()) at += random_.between(Duration::zero(), plan.start_jitter);
  const auto begin = job_.admit(iterations_, at);
  if (!begin) return false;
  job_.began(iterations_, *begin);
  double slow = own_.slower * (plan.jitter > 0 ? 1 + plan.jitter * random_.unit() : 1);
  if (!plan.trace.empty()) {
    const std::vector<double>& row = plan.trace[iterations_ % plan.trace.size()];
    slow *= row[rank_ % row.size()];
  }
  const auto taking = [&](Duration duration) {
    return slow == 1 ? duration : Duration(static_cast<std::int64_t>(static_cast<double>(duration.count()) * slow));
  };
  Time time = *begin + own_.late;
  for (const Bucket& bucket : plan.buckets) time += taking(bucket.forward);
  ready_.clear();
  for (const Bucket& bucket : plan.buckets) ready_.push_back(time += taking(bucket.backward));
  computed_ = time;
  job_.computed(time);
  ++iterations_;
  return true;
}

// ---- numbers

KnownSums::KnownSums(std::uint32_t ranks, WireFormat wire) {
  // Multiples of a power of two whose sums stay below 8: exact as floats and in block fixed point, and within ATP's range.
  const float unit = std::ldexp(1.0F, -2 - static_cast<int>(std::ceil(std::log2(std::max(1U, ranks)))));
  for (std::size_t i = 0; i < 2 * period; ++i) values_.push_back((static_cast<float>(i % period) - 32) * unit);
  sums_.resize(period);
  float largest = 0;
  for (std::size_t i = 0; i < period; ++i) {
    double sum = 0;
    for (std::uint32_t rank = 0; rank < ranks; ++rank)
      sum += static_cast<double>(values_[(i + 7 * std::size_t{rank}) % period]);
    sums_[i] = static_cast<float>(sum);
    largest = std::max(largest, std::fabs(sums_[i]));
  }
  static_assert(period == block_values);
  if (rounds_blocks(wire)) {  // a step of each rank and one of the sum, of blocks that hold a whole period
    const float step = 32 * unit / (wire == WireFormat::int4 ? 4 : 64), all = static_cast<float>(ranks) * step;
    tolerance_ = all + (largest + all) / 64;
    return;
  }
  const float half_ulp = wire == WireFormat::bfloat16 ? 0x1p-7F : wire == WireFormat::float16 ? 0x1p-10F : 0x1p-22F;
  tolerance_ = largest * half_ulp + static_cast<float>(ranks) * 1e-8F;
}

void KnownSums::fill(std::uint32_t rank, std::span<float> tensor) const {
  const float* const from = values_.data() + 7 * std::size_t{rank} % period;
  for (std::size_t i = 0; i < tensor.size(); i += period) {
    std::copy_n(from, std::min(period, tensor.size() - i), tensor.data() + i);
  }
}

std::optional<std::size_t> KnownSums::wrong(std::span<const float> tensor) const {
  for (std::size_t i = 0; i < tensor.size(); i += period) {
    const std::size_t count = std::min(period, tensor.size() - i);
    bool right = true;
    for (std::size_t k = 0; k < count; ++k) right &= std::fabs(tensor[i + k] - sums_[k]) <= tolerance_;
    if (right) continue;
    for (std::size_t k = 0; k < count; ++k) {
      if (!(std::fabs(tensor[i + k] - sums_[k]) <= tolerance_)) return i + k;
    }
  }
  return std::nullopt;
}

namespace {

std::optional<std::size_t> not_zero(std::span<const float> tensor) {
  const auto found = std::find_if(tensor.begin(), tensor.end(), [](float value) { return value != 0; });
  return found == tensor.end() ? std::nullopt : std::optional(static_cast<std::size_t>(found - tensor.begin()));
}

}  // namespace

// ---- a rank

Time Trainer::next(std::uint64_t number, std::size_t pending, Time now, Random&) {
  const std::size_t bucket = number % results_.size();
  if (bucket == 0) {
    if (over_ || pending != 0) return never;
    if (!passes_.begin(number == 0 ? std::span<const Time>() : results_, now)) {
      over_ = true;
      return never;
    }
  }
  return calls_at_ = std::max(now, passes_.ready(bucket));
}

Program::Call Trainer::make(std::uint64_t number, std::uint32_t) {
  const std::uint64_t elements = job_.plan().buckets[number % results_.size()].elements;
  Call call;
  call.operation.number = number;
  call.operation.elements = elements;
  call.operation.dtype = DType::float32;
  call.operation.wire = job_.plan().wire;
  job_.issued(number, rank_, calls_at_);
  if (!job_.plan().values) {
    call.operation.data = job_.zeros().data();
    return call;
  }
  if (!tensors_.empty()) {
    call.tensor = std::move(tensors_.back());
    tensors_.pop_back();
  }
  call.tensor.resize(elements * sizeof(float));
  call.operation.data = call.tensor.data();
  sums_.fill(rank_, {reinterpret_cast<float*>(call.tensor.data()), elements});
  return call;
}

void Trainer::completed(const stream::Operation& operation, std::vector<std::byte>& tensor, Time now) {
  const bool values = job_.plan().values;
  const std::span<const float> result(static_cast<const float*>(operation.data), operation.elements);
  // Of what all share one rank's look is enough.
  if (const auto wrong = values ? sums_.wrong(result) : rank_ == 0 ? not_zero(result) : std::nullopt) {
    throw Violation("rank " + std::to_string(rank_) + ", operation " + std::to_string(operation.number) + ", element " +
                    std::to_string(*wrong) + ": " + std::to_string(result[*wrong]) + " is not the sum");
  }
  results_[operation.number % results_.size()] = now;
  job_.completed(operation.number, rank_, now);
  if (values) tensors_.push_back(std::move(tensor));
}

}  // namespace netsum::sim
