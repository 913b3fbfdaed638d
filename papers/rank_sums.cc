// Averages of ranks' gradients as netsum makes them, for scripts that train (papers/trainings.py): ranks, aggregators and,
// of ATP, a parameter server are in this process, and the gradients go through their real packets, over the loopback device.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "netsum/aggregator.h"
#include "netsum/communicator.h"
#include "netsum/parameter_server.h"

namespace {

enum Way : int { in_order, block_fixed_point, float16, bfloat16, scaled_integers, int8, int4, ways };

constexpr std::uint32_t packet_elements =
    256;  // the papers'; ATP's unit: what does not fit is summed as floats, a packet at a time

netsum::Protocol protocol_of(int way, const std::string& switch_address) {
  if (way == in_order) return netsum::NetReduce{};
  if (way == scaled_integers) {
    netsum::Atp atp;
    atp.switch_address = switch_address;
    return atp;
  }
  netsum::SwitchMl switchml;
  switchml.shared_memory = netsum::SharedMemory::off;  // packets
  if (way == float16) switchml.wire = netsum::WireFormat::float16;
  if (way == bfloat16) switchml.wire = netsum::WireFormat::bfloat16;
  if (way == int8) switchml.wire = netsum::WireFormat::int8;
  if (way == int4) switchml.wire = netsum::WireFormat::int4;
  return switchml;
}

class Job {
 public:
  Job(int way, std::uint32_t world_size) : aggregator_(listening<netsum::AggregatorOptions>()) {
    if (way == scaled_integers) server_.emplace(listening<netsum::ParameterServerOptions>());
    std::vector<std::optional<netsum::Communicator>> ranks(world_size);
    std::vector<std::exception_ptr> failed(world_size);
    std::vector<std::jthread> threads;
    for (std::uint32_t rank = 0; rank < world_size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          netsum::Options options;
          options.protocol = protocol_of(way, aggregator_.address());
          options.aggregators = {server_ ? server_->address() : aggregator_.address()};
          options.job = "training";
          options.rank = rank;
          options.world_size = world_size;
          options.packet_elements = packet_elements;
          ranks[rank] = netsum::Communicator::connect(options);
        } catch (...) {
          failed[rank] = std::current_exception();
        }
      });
    }
    threads.clear();  // joins
    for (const std::exception_ptr& each : failed) {
      if (each) std::rethrow_exception(each);
    }
    for (std::optional<netsum::Communicator>& rank : ranks) ranks_.push_back(std::move(*rank));
  }

  void average(float* out, const float* const* gradients, std::size_t count) {
    copies_.resize(ranks_.size());
    std::vector<netsum::Work> works;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      copies_[rank].assign(gradients[rank], gradients[rank] + count);
      works.push_back(ranks_[rank].all_reduce_async(copies_[rank], netsum::ReduceOp::avg));
    }
    for (netsum::Work& work : works) work.wait();
    for (const std::vector<float>& each : copies_) {
      if (each != copies_.front()) throw netsum::Error(netsum::ErrorCode::internal, "ranks have different averages");
    }
    std::copy(copies_.front().begin(), copies_.front().end(), out);
  }

 private:
  template <class Options>
  static Options listening() {
    Options options;
    options.listen = "127.0.0.1:0";
    return options;
  }

  netsum::Aggregator aggregator_;
  std::optional<netsum::ParameterServer> server_;
  std::vector<netsum::Communicator> ranks_;
  std::vector<std::vector<float>> copies_;
};

}  // namespace

extern "C" {

// out: `count` averages over the ranks' values. 0, or 1 if there is no such way, or it failed.
__attribute__((visibility("default"))) int netsum_average(int way, float* out, const float* const* ranks,
                                                          std::size_t world_size, std::size_t count) {
  static std::map<std::pair<int, std::size_t>, std::unique_ptr<Job>> jobs;
  try {
    if (way < 0 || way >= ways) return 1;
    std::unique_ptr<Job>& job = jobs[{way, world_size}];
    if (!job) job = std::make_unique<Job>(way, static_cast<std::uint32_t>(world_size));
    job->average(out, ranks, count);
    return 0;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "rank_sums: %s\n", failure.what());
    return 1;
  }
}

// What error feedback sends in place of the values, in int8 and int4.
__attribute__((visibility("default"))) void netsum_round(int way, float* out, const float* values, std::size_t count) {
  const auto wire = way == int4 ? netsum::WireFormat::int4 : netsum::WireFormat::int8;
  netsum::round_as(wire, std::span(values, count), std::span(out, count));
}
}
