// What the C API costs: two processes make the same all-reduces by the C++ API and by the C API, in turns.
//   c_api_bench AGGREGATOR RANK [udp | shm]   once for rank 0 and once for rank 1
// Rank 0 prints a line of JSON for each size: the median of each API's microseconds a call, and of the ratio of both within
// a round (C over C++) with the interval of 95 % of that median.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "netsum/communicator.h"
#include "netsum/netsum.h"

namespace {

constexpr std::uint32_t ranks = 2;

void check(netsum_status status) {
  if (status != NETSUM_OK) throw netsum::Error(netsum::ErrorCode::internal, netsum_last_error());
}

netsum::Communicator connect_by_cpp(const char* aggregator, std::uint32_t rank, netsum::SharedMemory memory) {
  netsum::Options options{
      .protocol = netsum::SwitchMl{.shared_memory = memory}, .aggregators = {aggregator}, .job = "by-c++"};
  options.rank = rank;
  options.world_size = ranks;
  return netsum::Communicator::connect(options);
}

netsum_communicator* connect_by_c(const char* aggregator, std::uint32_t rank, const char* memory) {
  netsum_options* options = netsum_options_create();
  netsum_communicator* communicator = nullptr;
  check(netsum_options_set(options, "NETSUM_SWITCH", aggregator));
  check(netsum_options_set(options, "NETSUM_SHARED_MEMORY", memory));
  check(netsum_connect(options, "by-c", rank, ranks, &communicator));
  netsum_options_destroy(options);
  return communicator;
}

template <class Call>
double microseconds_of(int calls, Call&& call) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / calls;
}

// The value that so many of 1 are below.
double quantile(std::vector<double>& values, double share) {
  const double place = share * static_cast<double>(values.size() - 1);
  const auto at =
      values.begin() + static_cast<std::ptrdiff_t>(std::clamp(std::round(place), 0.0, double(values.size() - 1)));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

void measure(netsum::Communicator& by_cpp, netsum_communicator* by_c, std::size_t elements, int rounds, int calls) {
  std::vector<float> tensor(elements, 1.0F);
  std::vector<double> cpp, c, ratios;
  const auto one_cpp = [&] { by_cpp.all_reduce(tensor, netsum::ReduceOp::avg); };
  const auto one_c = [&] {
    check(netsum_all_reduce(by_c, tensor.data(), tensor.data(), elements, NETSUM_FLOAT32, NETSUM_AVG, nullptr));
  };
  one_cpp();
  one_c();
  for (int round = 0; round < rounds; ++round) {
    if (round % 2 == 1) c.push_back(microseconds_of(calls, one_c));
    cpp.push_back(microseconds_of(calls, one_cpp));
    if (round % 2 == 0) c.push_back(microseconds_of(calls, one_c));
    ratios.push_back(c.back() / cpp.back());
  }
  if (std::ranges::count(tensor, 1.0F) != std::ssize(tensor)) throw netsum::Error(netsum::ErrorCode::internal, "wrong sums");
  if (by_cpp.rank() != 0) return;
  const double half = 0.98 / std::sqrt(double(rounds));  // of the median's place among the ratios
  std::printf(
      "{\"bytes\": %zu, \"rounds\": %d, \"cpp_us\": %.2f, \"c_us\": %.2f, \"c_over_cpp\": %.4f, \"interval\": [%.4f, "
      "%.4f]}\n",
      elements * sizeof(float), rounds, quantile(cpp, 0.5), quantile(c, 0.5), quantile(ratios, 0.5),
      quantile(ratios, 0.5 - half), quantile(ratios, 0.5 + half));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string path = argc > 3 ? argv[3] : "udp";
  if (argc < 3 || (path != "udp" && path != "shm")) {
    std::fprintf(stderr, "c_api_bench AGGREGATOR RANK [udp | shm]\n");
    return 2;
  }
  const auto rank = static_cast<std::uint32_t>(std::strtoul(argv[2], nullptr, 10));
  try {
    auto by_cpp = connect_by_cpp(argv[1], rank, path == "shm" ? netsum::SharedMemory::required : netsum::SharedMemory::off);
    netsum_communicator* by_c = connect_by_c(argv[1], rank, path == "shm" ? "required" : "off");
    measure(by_cpp, by_c, 2, 400, 50);
    measure(by_cpp, by_c, 256, 400, 50);
    measure(by_cpp, by_c, 6'250'000, 60, 1);
    netsum_destroy(by_c);
    return 0;
  } catch (const netsum::Error& error) {
    std::fprintf(stderr, "c_api_bench: %s\n", error.what());
    return 1;
  }
}
