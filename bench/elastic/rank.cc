// A rank that sums, checks each result, and says when the ranks in it change, or the job has begun anew: "MEMBERS
// NANOSECONDS", as of the monotonic clock. ADDRESS[,...] STANDBY|- SWITCH|- PROTOCOL RANK WORLD_SIZE ELEMENTS. Ends with its
// error.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "netsum/communicator.h"

namespace {

using namespace netsum;

std::vector<std::string> words(const std::string& list) {
  std::vector<std::string> found;
  std::istringstream text(list);
  for (std::string word; std::getline(text, word, ',');) found.push_back(word);
  return found;
}

void sum_and_say(Communicator& comm, std::size_t elements, const std::atomic<int>& lives) {
  std::vector<std::int32_t> values(elements);
  std::vector<std::uint32_t> said;
  int said_of = -1;
  for (;; comm.admit()) {
    std::fill(values.begin(), values.end(), 1 << comm.rank());
    comm.all_reduce(std::span<std::int32_t>(values), ReduceOp::sum);
    std::int32_t right = 0;
    for (const std::uint32_t rank : comm.members()) right |= 1 << rank;
    for (const std::int32_t value : values) {
      if (value != right) throw Error(ErrorCode::internal, "a sum is not that of the ranks that it names");
    }
    if (comm.members() == said && lives == said_of) continue;
    said = comm.members();
    said_of = lives;
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    std::printf("%d %lld\n", right, static_cast<long long>(std::chrono::nanoseconds(now).count()));
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) return 2;
  try {
    Options options;
    options.aggregators = words(argv[1]);
    if (std::string(argv[2]) != "-") options.standbys = words(argv[2]);
    const std::string protocol = argv[4];
    if (protocol == "atp") options.protocol = Atp{};
    if (protocol == "netreduce") options.protocol = NetReduce{};
    options.job = "elastic";
    options.rank = static_cast<std::uint32_t>(std::stoul(argv[5]));
    options.world_size = static_cast<std::uint32_t>(std::stoul(argv[6]));
    if (std::string(argv[3]) != "-") std::visit([&](auto& own) { own.switch_address = argv[3]; }, options.protocol);
    options.recovery = std::chrono::seconds(60);
    options.survivors = options.aggregators.size() + options.standbys.size() > 1 ? options.world_size / 2 + 1 : 1;
    std::atomic<int> lives = 0;
    options.log = [&lives](const std::string& line) {
      if (line.find(" continues with operation ") != std::string::npos) ++lives;
    };
    Communicator comm = Communicator::connect(options);
    sum_and_say(comm, std::stoul(argv[7]), lives);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
