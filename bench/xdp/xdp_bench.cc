// What a contribution costs in the switch inside the kernel, with the rule of its slots and without it: the same program,
// where only chip_rule.h is another. Every fourth contribution completes a round, and leaves as its result. As root.
//
//   xdp_bench --benchmark_repetitions=20 --benchmark_enable_random_interleaving=true

#include <benchmark/benchmark.h>
#include <bpf/bpf.h>
#include <linux/bpf.h>
#include <net/if.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "dataplane/xdp/frames.h"
#include "dataplane/xdp/plane.h"
#include "netsum/error.h"
#include "runtime/cpus.h"
#include "wire/switchml_chip.h"
#include "xdp/measured.h"

namespace netsum {
namespace {

constexpr std::uint64_t job_epoch = 1;
constexpr int turns = 16384;  // a run; of all members' contributions to all slots

Endpoint endpoint_of(std::uint8_t host, std::uint16_t port) {
  Endpoint endpoint;
  endpoint.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, host};
  endpoint.port = port;
  return endpoint;
}

constexpr transport::EthernetAddress own_station{2, 0, 0, 0, 0, 1};

transport::NextHop hop_to(const Endpoint& to, Duration = {}) {
  transport::NextHop hop;
  hop.interface = if_nametoindex(("xdp" + std::to_string(to.address[15])).c_str());
  hop.own = own_station;
  hop.neighbour = {2, 0, 0, 0, 0, 2};
  return hop;
}

std::vector<std::byte> file(const char* path) {
  std::ifstream in(path, std::ios::binary);
  const std::vector<char> text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

// The program of a file, with a job.
class Switch {
 public:
  Switch(const char* path, std::uint32_t elements)
      : program_(std::make_shared<dataplane::xdp::Program>(std::vector{lane()}, file(path))),
        plane_(program_, 0, &hop_to),
        frame_(xdp_frame_bytes + wire::chip::packet_bytes(elements)) {
    switchml::SwitchJobConfig config{job_epoch, elements, measured_slots, {}};
    for (std::uint8_t member = 0; member < measured_members; ++member) {
      program_->attach("xdp" + std::to_string(member));
      const Endpoint endpoint = endpoint_of(member, 4000);
      config.members.push_back({member, endpoint});
      MeasuredFrame frame{};
      const XdpWay to_switch = dataplane::xdp::way_to(lane().local, endpoint, {.neighbour = own_station}, elements);
      std::memcpy(frame.headers, &to_switch.frame, sizeof frame.headers);
      wire::chip::write_header(std::as_writable_bytes(std::span(&frame, 1)).subspan<xdp_frame_bytes>(),
                               {.member = member, .job_epoch = job_epoch, .echoed = {}});
      const std::uint32_t number = member;
      if (bpf_map_update_elem(program_->map("frames"), &number, &frame, BPF_ANY) != 0)
        throw Error(ErrorCode::internal, "frames");
    }
    if (!plane_.add_job(plane_.make_job(config))) throw Error(ErrorCode::internal, "no job");
  }

  // Nanoseconds of one contribution.
  double run() {
    bpf_test_run_opts options{};
    options.sz = sizeof options;
    options.data_in = frame_.data();
    options.data_size_in = static_cast<std::uint32_t>(frame_.size());
    options.repeat = turns;
    if (bpf_prog_test_run_opts(program_->function("contribute"), &options) != 0) throw Error(ErrorCode::internal, "not run");
    return options.duration;
  }
  // Of all runs; 0: not every contribution counted, and every round.
  [[nodiscard]] std::uint64_t contributions() const {
    const auto counters = *plane_.job_counters(job_epoch);
    return counters.contributions == measured_members * counters.chunks && counters.contributions == counters.packets
               ? counters.contributions
               : 0;
  }

 private:
  static dataplane::xdp::Lane lane() { return {endpoint_of(200, 7170), static_cast<int>(runtime::allowed_cpus().at(0))}; }

  const std::shared_ptr<dataplane::xdp::Program> program_;
  dataplane::xdp::Plane plane_;
  std::vector<std::byte> frame_;
};

void contribution(benchmark::State& state, const char* path, std::uint32_t elements) {
  try {
    Switch measured(path, elements);
    measured.run();
    std::uint64_t runs = 1;
    for (auto _ : state) {
      state.SetIterationTime(measured.run() * turns / 1e9);
      ++runs;
    }
    if (measured.contributions() != runs * turns) state.SkipWithError("not every contribution was summed");
    state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations() * turns));
  } catch (const Error& error) {
    state.SkipWithError(error.what());
  }
}

}  // namespace
}  // namespace netsum

int main(int argc, char** argv) {
  using netsum::contribution;
  netsum::runtime::pin_thread(static_cast<int>(netsum::runtime::allowed_cpus().at(0)));
  if (unshare(CLONE_NEWNET) != 0 ||
      std::system("ip link add xdp0 type veth peer name xdp1 && ip link add xdp2 type veth peer name xdp3") != 0) {
    std::fputs("xdp_bench: needs root, for network namespaces and BPF programs\n", stderr);
    return 1;
  }
  for (const std::uint32_t elements : {64U, 256U}) {
    for (const auto& [name, path] :
         {std::pair("with_rule/", NETSUM_XDP_WITH_RULE), std::pair("without_rule/", NETSUM_XDP_WITHOUT_RULE)}) {
      benchmark::RegisterBenchmark((name + std::to_string(elements)).c_str(), contribution, path, elements)->UseManualTime();
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
