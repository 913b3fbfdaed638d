// A job as a data-parallel training: iterations of forward and backward passes, and an all-reduce for each bucket of
// gradients as soon as its backward pass is over.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/time.h"
#include "netsum/types.h"
#include "sim/program.h"
#include "sim/random.h"

namespace netsum::sim {

// Gradients that travel in one all-reduce, and how long the layers behind them compute.
struct Bucket {
  std::uint64_t elements = 0;
  Duration forward{}, backward{};
};

struct TrainingPlan {
  // In the order in which backward passes finish them: the last layers first.
  std::vector<Bucket> buckets;
  // A forward pass waits for all gradients of the iteration before it. (Frameworks let it wait layer by layer; that gains
  // nothing here: results come in the order of calls, so those of the first layers last.)
  std::uint64_t iterations = 1;     // 0: until `stop`
  Duration stop = Duration::max();  // no iteration begins later; since the experiment's begin, as the others
  struct Pause {
    Duration from{}, to{};
  };
  std::vector<Pause> pauses;  // no iteration begins meanwhile
  Duration start_jitter{};    // a rank's first iteration begins up to so much later
  struct Straggler {
    std::uint32_t rank = 0;
    double slower = 1;  // its passes take so many times as long
    Duration late{};    // and each iteration's begin so much longer
  };
  std::vector<Straggler> stragglers;
  double jitter = 0;  // a rank's passes take up to this fraction longer, anew in each iteration
  // How many times as long they take: a row for each iteration, and again from the first; in it rank r has column r, and
  // again from the first.
  std::vector<std::vector<double>> trace;
  WireFormat wire = WireFormat::native;
  bool values = true;       // false: tensors by size only, zeros that all ranks share
  bool keep_times = false;  // of each rank and operation

  [[nodiscard]] std::uint64_t elements() const;
};

// A rank's all-reduce.
struct RankTime {
  std::uint64_t operation = 0;
  std::uint32_t rank = 0;
  Time called{}, result{};
};

// What all ranks of a job have in common: which iterations there are, and when things happened.
class TrainingJob {
 public:
  // `origin`: the experiment's begin.
  TrainingJob(const TrainingPlan& plan, std::uint32_t ranks, Time origin);

  [[nodiscard]] const TrainingPlan& plan() const { return plan_; }
  // When an iteration begins that a rank could begin at `at`; none: the job ends before it. The first rank that asks decides
  // for all whether there is a pause or an end.
  [[nodiscard]] std::optional<Time> admit(std::uint64_t iteration, Time at);

  void began(std::uint64_t iteration, Time at);
  void issued(std::uint64_t operation, std::uint32_t rank, Time at);
  void completed(std::uint64_t operation, std::uint32_t rank, Time at);
  void computed(Time at) { last_ = std::max(last_, at); }

  // Of iterations and operations that all ranks have completed.
  [[nodiscard]] std::vector<double> iteration_seconds() const;
  [[nodiscard]] std::vector<double> operation_seconds() const;      // from the first rank's call to the last rank's result
  [[nodiscard]] std::uint64_t results() const { return results_; }  // over all ranks
  [[nodiscard]] std::uint64_t bytes_reduced() const { return bytes_reduced_; }  // of results, mean over ranks
  [[nodiscard]] std::optional<Time> first() const;
  // Of those that have their result, in the order of results; if they are kept.
  [[nodiscard]] const std::vector<RankTime>& times() const { return times_; }
  [[nodiscard]] Time last() const { return last_; }
  // The one tensor of a job without values, in which sums are zeros too.
  [[nodiscard]] std::span<float> zeros();

 private:
  struct Times {
    Time issued = never, completed{};
    std::uint32_t ranks = 0;  // that have the result
  };
  struct Iteration {
    Time gate{}, began = never;
  };

  const TrainingPlan& plan_;
  const std::uint32_t ranks_;
  const Time origin_;
  std::vector<Iteration> iterations_;
  bool over_ = false;
  std::vector<Times> operations_;
  std::vector<RankTime> times_;
  std::vector<std::deque<Time>> calls_;  // of each rank, without a result
  std::uint64_t results_ = 0, bytes_reduced_ = 0, result_bytes_ = 0;
  Time last_{};
  std::vector<float> zeros_;
};

// One rank's passes: when the gradients of each bucket are ready.
class Passes {
 public:
  // `random`: of the rank.
  Passes(TrainingJob& job, std::uint32_t rank, Random random);

  // The next iteration, whose predecessor's results came at these times (of the first: none). False: there is none.
  [[nodiscard]] bool begin(std::span<const Time> results, Time now);
  [[nodiscard]] std::uint64_t iterations() const { return iterations_; }  // that have begun
  [[nodiscard]] Time ready(std::size_t bucket) const { return ready_[bucket]; }

 private:
  TrainingJob& job_;
  const std::uint32_t rank_;
  TrainingPlan::Straggler own_;
  Random random_;
  std::uint64_t iterations_ = 0;
  Time computed_{};  // the end of the last backward pass
  std::vector<Time> ready_;
};

// The numbers that ranks add. Sums are known without adding, for any number of ranks.
class KnownSums {
 public:
  KnownSums(std::uint32_t ranks, WireFormat wire);
  void fill(std::uint32_t rank, std::span<float> tensor) const;
  // The first element that is not the sum, within what the formats of packets lose; none: all are right.
  [[nodiscard]] std::optional<std::size_t> wrong(std::span<const float> tensor) const;

 private:
  static constexpr std::size_t period = 64;
  std::vector<float> values_, sums_;  // of the first period; values_ twice, so that each rank may begin elsewhere
  float tolerance_ = 0;
};

class Trainer final : public Program {
 public:
  Trainer(TrainingJob& job, const KnownSums& sums, std::uint32_t rank, Random random)
      : job_(job), sums_(sums), rank_(rank), passes_(job, rank, random), results_(job.plan().buckets.size()) {}

  [[nodiscard]] Time next(std::uint64_t number, std::size_t pending, Time now, Random& random) override;
  [[nodiscard]] Call make(std::uint64_t number, std::uint32_t process) override;
  void completed(const stream::Operation& operation, std::vector<std::byte>& tensor, Time now) override;
  [[nodiscard]] bool ended(std::uint64_t results) const override {
    return over_ && results == passes_.iterations() * results_.size();
  }

 private:
  TrainingJob& job_;
  const KnownSums& sums_;
  const std::uint32_t rank_;
  Passes passes_;
  std::vector<Time> results_;  // of the iteration, by bucket
  bool over_ = false;
  Time calls_at_{};
  std::vector<std::vector<std::byte>> tensors_;  // for the next calls
};

}  // namespace netsum::sim
