#include "parallel/parallel.h"

#include <algorithm>
#include <utility>

#include "runtime/thread.h"

namespace netsum::parallel {
namespace {

Duration since(Time& begin) {
  const Time now = runtime::now();
  return now - std::exchange(begin, now);
}

std::chrono::milliseconds until(Time deadline) {
  return std::max(std::chrono::ceil<std::chrono::milliseconds>(deadline - runtime::now()), std::chrono::milliseconds(1));
}

std::string group_name(const std::string& job, std::uint32_t machine) {
  return job + "-machine-" + std::to_string(machine);
}

void check(const ParallelOptions& options) {
  const auto fail = [](const std::string& text) { throw Error(ErrorCode::bad_argument, text); };
  const auto number = [](auto value) { return std::to_string(value); };
  if (options.machines == 0 || options.gpus == 0) fail("a job has at least one machine of one GPU");
  if (options.machine >= options.machines || options.gpu >= options.gpus) {
    fail("GPU " + number(options.gpu) + " of machine " + number(options.machine) + " does not exist in a job of " +
         number(options.machines) + " machines with " + number(options.gpus) + " GPUs each");
  }
  const std::size_t ranks = std::size_t{options.machines} * options.gpus;
  if (options.pattern != Pattern::parallel_netreduce && options.peers.size() != ranks) {
    fail("a ring needs the addresses of all " + number(ranks) + " ranks, not " + number(options.peers.size()));
  }
}

}  // namespace

ParallelAllReduce::ParallelAllReduce(const ParallelOptions& options) : options_(options) {
  check(options_);
  const std::uint32_t machines = options_.machines, gpus = options_.gpus, machine = options_.machine, gpu = options_.gpu;
  const Time deadline = after(runtime::now(), runtime::bounded(options_.connect_deadline));
  if (options_.pattern == Pattern::flat_ring) {
    own_.resize(options_.elements);
    next_is_elsewhere_ = gpu == gpus - 1 && machines > 1;
    previous_is_elsewhere_ = gpu == 0 && machines > 1;
    connect_ring(options_.peers, machine * gpus + gpu, machines * gpus, deadline);
    return;
  }
  const std::string name = group_name(options_.job, machine);
  auto memory = gpus == 1 ? GroupMemory::of_threads(1, options_.elements)
                          : GroupMemory::join({name, gpu, gpus, options_.elements}, deadline);
  group_.emplace(name, std::move(memory), gpu, deadline);
  if (machines == 1 || (options_.pattern == Pattern::tencent && gpu != 0)) return;
  guarded([&] {
    if (options_.pattern == Pattern::parallel_netreduce) {
      Options across = options_.across;
      across.job = options_.job + "-ring-" + std::to_string(gpu);
      across.rank = machine;
      across.world_size = machines;
      across.connect_deadline = until(deadline);
      communicator_.emplace(Communicator::connect(across));
      return;
    }
    std::vector<std::string> peers;
    for (std::uint32_t each = 0; each < machines; ++each) peers.push_back(options_.peers[std::size_t{each} * gpus + gpu]);
    connect_ring(peers, machine, machines, deadline);
  });
}

ParallelAllReduce::~ParallelAllReduce() = default;

void ParallelAllReduce::connect_ring(const std::vector<std::string>& peers, std::uint32_t rank, std::uint32_t size,
                                     Time deadline) {
  const std::string name =
      options_.job + (options_.pattern == Pattern::parallel_ring ? "-ring-" + std::to_string(options_.gpu) : "-ring");
  ring_.emplace(size == 1 ? TcpSocket() : TcpSocket::bound_to(peers[rank]),
                TcpRingOptions{name, rank, size, peers[(rank + 1) % size], options_.across.token}, deadline);
}

std::span<float> ParallelAllReduce::tensor() {
  return group_ ? group_->tensor() : std::span(own_);
}

// A failing process tells the rest of its machine and its rings, which pass it on.
template <class Body>
void ParallelAllReduce::guarded(const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    if (group_) group_->abort(error.what());
    if (communicator_) communicator_->abort(error.what());
    if (ring_) ring_->close();
    throw;
  }
}

void ParallelAllReduce::reduce_across(std::span<float> part, Time deadline) {
  if (communicator_) {
    communicator_->all_reduce(part, ReduceOp::sum, {.deadline = until(deadline)});
  } else if (ring_) {
    ring_->all_reduce(part, deadline);
  }
}

StageDurations ParallelAllReduce::all_reduce(std::size_t elements, std::chrono::milliseconds patience) {
  if (elements > tensor().size()) {
    throw Error(ErrorCode::bad_argument,
                std::to_string(elements) + " elements do not fit in the tensor's " + std::to_string(tensor().size()));
  }
  StageDurations stages;
  Time begin = runtime::now();
  const Time deadline = after(begin, runtime::bounded(patience));
  guarded([&] {
    const std::span<float> whole = tensor().first(elements);
    switch (options_.pattern) {
      case Pattern::flat_ring:
        reduce_across(whole, deadline);
        stages.across = since(begin);
        break;
      case Pattern::tencent:
        group_->reduce(elements, deadline);
        stages.before = since(begin);
        reduce_across(whole, deadline);  // only on the masters
        stages.across = since(begin);
        group_->broadcast(elements, deadline);
        stages.after = since(begin);
        break;
      case Pattern::parallel_netreduce:
      case Pattern::parallel_ring: {
        group_->reduce_scatter(elements, deadline);
        stages.before = since(begin);
        const Piece piece = piece_of(elements, group_->rank(), group_->size());
        reduce_across(whole.subspan(piece.begin, piece.size()), deadline);
        stages.across = since(begin);
        group_->all_gather(elements, deadline);
        stages.after = since(begin);
        break;
      }
    }
  });
  return stages;
}

void ParallelAllReduce::barrier(std::chrono::milliseconds patience) {
  const Time deadline = after(runtime::now(), runtime::bounded(patience));
  guarded([&] {
    if (group_) group_->barrier(deadline);
    if (communicator_) communicator_->barrier({.deadline = until(deadline)});
    if (ring_) ring_->barrier(deadline);
    if (group_) group_->barrier(deadline);
  });
}

LinkTraffic ParallelAllReduce::traffic() const {
  if (communicator_) {
    const Statistics statistics = communicator_->statistics();
    return {statistics.wire_bytes_sent, statistics.wire_bytes_received};
  }
  LinkTraffic sum;
  const auto add = [&](const LinkTraffic& more) {
    sum.bytes_sent += more.bytes_sent;
    sum.bytes_received += more.bytes_received;
  };
  if (ring_ && next_is_elsewhere_) add(ring_->to_next());
  if (ring_ && previous_is_elsewhere_) add(ring_->to_previous());
  return sum;
}

std::string ParallelAllReduce::placement() const {
  if (communicator_) return communicator_->placement();
  return ring_ ? "a ring over TCP" : "inside one machine";
}

}  // namespace netsum::parallel
