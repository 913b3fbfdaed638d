// A rank that sums, checks each result, and says when the ranks in it change: "MEMBERS NANOSECONDS", as of the monotonic
// clock. ADDRESS PROTOCOL RANK WORLD_SIZE ELEMENTS. Ends with its error.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "netsum/communicator.h"

namespace {

using namespace netsum;

void sum_and_say(Communicator& comm, std::size_t elements) {
  std::vector<std::int32_t> values(elements);
  std::vector<std::uint32_t> said;
  for (;; comm.admit()) {
    std::fill(values.begin(), values.end(), 1 << comm.rank());
    comm.all_reduce(std::span<std::int32_t>(values), ReduceOp::sum);
    std::int32_t right = 0;
    for (const std::uint32_t rank : comm.members()) right |= 1 << rank;
    for (const std::int32_t value : values) {
      if (value != right) throw Error(ErrorCode::internal, "a sum is not that of the ranks that it names");
    }
    if (comm.members() == said) continue;
    said = comm.members();
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    std::printf("%d %lld\n", right, static_cast<long long>(std::chrono::nanoseconds(now).count()));
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  try {
    Options options;
    options.aggregators = {argv[1]};
    const std::string protocol = argv[2];
    if (protocol == "atp") options.protocol = Atp{};
    if (protocol == "netreduce") options.protocol = NetReduce{};
    options.job = "elastic";
    options.rank = static_cast<std::uint32_t>(std::stoul(argv[3]));
    options.world_size = static_cast<std::uint32_t>(std::stoul(argv[4]));
    options.recovery = std::chrono::seconds(60);
    options.survivors = 1;
    Communicator comm = Communicator::connect(options);
    sum_and_say(comm, std::stoul(argv[5]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
