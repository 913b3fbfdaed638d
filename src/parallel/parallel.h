// All-reduce among machines of several GPUs, each a process, in the four patterns of NetReduce §3.4. docs/parallel.md
// compares them and their durations.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/time.h"
#include "netsum/communicator.h"
#include "parallel/machine_group.h"
#include "parallel/tcp_ring.h"
#include "protocol/netreduce/time_model.h"

namespace netsum::parallel {

using netreduce::Pattern;

struct ParallelOptions {
  Pattern pattern = Pattern::parallel_netreduce;
  std::string job = "default";  // on each machine, unique among this user's live jobs
  std::uint32_t machines = 1, gpus = 1;
  std::uint32_t machine = 0, gpu = 0;  // this process; its rank is machine * gpus + gpu
  std::size_t elements = 0;            // of the longest tensor
  // FR, TA, PR: "host:port" of each rank, where it listens. TA uses those of the masters, GPU 0 of each machine.
  std::vector<std::string> peers;
  // PN: protocol, aggregators and other options equal on all ranks; job, rank and world size are set here. Its token is the
  // rings' secret too.
  Options across;
  std::chrono::milliseconds connect_deadline{30'000};
};

struct StageDurations {
  Duration before{}, across{}, after{};
};

// One GPU's process. All ranks make the same calls, in the same order. Every call throws Error, after which the job has
// failed on every rank.
class ParallelAllReduce {
 public:
  explicit ParallelAllReduce(const ParallelOptions& options);  // returns when all ranks are there
  ~ParallelAllReduce();
  ParallelAllReduce(const ParallelAllReduce&) = delete;
  ParallelAllReduce& operator=(const ParallelAllReduce&) = delete;

  [[nodiscard]] std::span<float> tensor();  // the gradient, summed in place
  // Sums the first `elements`. The bits are the same on all ranks.
  StageDurations all_reduce(std::size_t elements, std::chrono::milliseconds deadline);
  void barrier(std::chrono::milliseconds deadline);

  [[nodiscard]] LinkTraffic traffic() const;  // of this process between machines, so far
  [[nodiscard]] std::string placement() const;

 private:
  void connect_ring(const std::vector<std::string>& peers, std::uint32_t rank, std::uint32_t size, Time deadline);
  void reduce_across(std::span<float> part, Time deadline);
  template <class Body>
  void guarded(const Body& body);

  ParallelOptions options_;
  std::vector<float> own_;             // FR's tensor: FR has no machine group
  std::optional<MachineGroup> group_;  // all but FR
  std::optional<TcpRing> ring_;
  std::optional<Communicator> communicator_;
  bool next_is_elsewhere_ = true, previous_is_elsewhere_ = true;
};

}  // namespace netsum::parallel
