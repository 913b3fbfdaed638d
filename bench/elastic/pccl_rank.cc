// rank.cc over PCCL (github.com/PrimeIntellect-ai/pccl), for `measure --pccl FOLDER`. RANK ELEMENTS. Nothing builds it with
// netsum; with PCCL's sources in S, built in B (cmake -DPCCL_BUILD_CUDA_SUPPORT=OFF):
//   c++ -std=c++20 -O2 -I$S/include -I$S/ccoip/public_include pccl_rank.cc -o $B/pccl_rank -Wl,--start-group
//       $(find $B -name 'lib*.a') -Wl,--end-group -lgomp -lpthread -ldl
#include <pccl.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

void check(pcclResult_t result, const char* what) {
  if (result == pcclSuccess) return;
  std::fprintf(stderr, "%s: %d\n", what, static_cast<int>(result));
  std::exit(1);
}

void update_topology(pcclComm_t* comm) {
  while (pcclUpdateTopology(comm) == pcclUpdateTopologyFailed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::int32_t own = 1 << std::stoi(argv[1]);
  std::vector<std::int32_t> values(std::stoul(argv[2]));
  check(pcclInit(), "init");
  pcclCommCreateParams_t params{};
  params.master_address.inet.protocol = inetIPv4;
  params.master_address.inet.ipv4 = {{127, 0, 0, 1}};
  params.master_address.port = 48148;
  pcclComm_t* comm = nullptr;
  check(pcclCreateCommunicator(&params, &comm), "create");
  check(pcclConnect(comm), "connect");
  std::int32_t said = 0;
  for (bool first = true;; first = false) {
    if (!first) update_topology(comm);  // lets new ranks in, whose first call is the others' next one
    int ranks = 0;
    check(pcclGetAttribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, &ranks), "world size");
    if (ranks < 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      continue;
    }
    std::vector<std::int32_t> sum(values.size());
    std::fill(values.begin(), values.end(), own);
    pcclReduceDescriptor_t what{};
    what.count = values.size();
    what.op = pcclSum;
    what.src_descriptor.datatype = what.quantization_options.quantized_datatype = pcclInt32;
    pcclReduceInfo_t info{};
    pcclResult_t result = pcclRankConnectionLost;
    while (result == pcclRankConnectionLost) result = pcclAllReduce(values.data(), sum.data(), &what, comm, &info);
    if (result == pcclTooFewPeers) continue;
    check(result, "all-reduce");
    for (const std::int32_t value : sum) {
      if (value != sum.front()) check(pcclInternalError, "a sum is not that of one set of ranks");
    }
    if (sum.front() == said) continue;
    said = sum.front();
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    std::printf("%d %lld\n", said, static_cast<long long>(std::chrono::nanoseconds(now).count()));
    std::fflush(stdout);
  }
}
