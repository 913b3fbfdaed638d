// The library as its users meet it: aggregators and ranks in one process, real sockets, checked sums.
#include "netsum/communicator.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <future>
#include <latch>
#include <numeric>

#include "e2e/rank_threads.h"
#include "netsum/parameter_server.h"
#include "runtime/cpus.h"

namespace netsum {
namespace {

using namespace testing;

// bfloat16 and binary16 of small whole numbers, which both hold exactly.
std::uint16_t to_half(DType dtype, float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (dtype == DType::bfloat16) return static_cast<std::uint16_t>(bits >> 16);
  if (value == 0) return 0;
  return static_cast<std::uint16_t>((((bits >> 23) - 127 + 15) << 10) | (bits >> 13 & 0x3ff));
}

void put(std::vector<std::byte>& tensor, DType dtype, std::size_t index, float value) {
  std::byte* const at = tensor.data() + index * bytes_of(dtype);
  if (dtype == DType::float32) {
    std::memcpy(at, &value, 4);
  } else if (dtype == DType::int32) {
    const auto whole = static_cast<std::int32_t>(value);
    std::memcpy(at, &whole, 4);
  } else {
    const std::uint16_t half = to_half(dtype, value);
    std::memcpy(at, &half, 2);
  }
}

std::vector<std::byte> tensor_of(DType dtype, std::size_t elements, const std::function<float(std::size_t)>& value) {
  std::vector<std::byte> tensor(elements * bytes_of(dtype));
  for (std::size_t i = 0; i < elements; ++i) put(tensor, dtype, i, value(i));
  return tensor;
}

// Whole numbers whose sums and quarters every type holds, so that results are exact.
float input(std::uint32_t rank, std::size_t i) {
  return static_cast<float>((i * 7 + rank * 3) % 16);
}

float exact(ReduceOp op, DType dtype, std::uint32_t world_size, std::size_t i) {
  float sum = 0;
  for (std::uint32_t rank = 0; rank < world_size; ++rank) sum += input(rank, i);
  if (op == ReduceOp::sum) return sum;
  const float mean = sum / static_cast<float>(world_size);
  return dtype == DType::int32 ? std::trunc(mean) : mean;
}

// Noise over many magnitudes: what rounding makes of it shows every difference between two runs.
std::vector<float> noise(std::uint32_t rank, std::size_t elements) {
  std::vector<float> values(elements);
  std::uint64_t state = rank + 1;
  for (float& value : values) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    const auto mantissa = static_cast<float>(static_cast<std::int32_t>(state >> 32));
    value = std::ldexp(mantissa, -31 - static_cast<int>(state >> 20 & 7));
  }
  return values;
}

constexpr std::size_t lengths[] = {0, 1, 255, 256, 257, 100'000};

void check_every_type(Communicator& comm) {
  for (const DType dtype : {DType::float32, DType::int32, DType::float16, DType::bfloat16}) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
      for (const std::size_t elements : lengths) {
        auto tensor = tensor_of(dtype, elements, [&](std::size_t i) { return input(comm.rank(), i); });
        const auto expected =
            tensor_of(dtype, elements, [&](std::size_t i) { return exact(op, dtype, comm.world_size(), i); });
        comm.all_reduce(TensorView{tensor.data(), elements, dtype}, op);
        EXPECT_TRUE(tensor == expected) << elements << " " << to_string(dtype) << " " << to_string(op);
      }
    }
  }
}

TEST(Communicator, SumsEveryTypeAndLength) {
  const Aggregator aggregator(small_aggregator());
  expect_success(on_ranks(4, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(rank_options({aggregator.address()}, rank, 4));
    EXPECT_EQ(comm.rank(), rank);
    EXPECT_EQ(comm.world_size(), 4U);
    check_every_type(comm);
  }));
}

TEST(Communicator, AJobOfOneRank) {
  const Aggregator aggregator(small_aggregator());
  auto comm = Communicator::connect(rank_options({aggregator.address()}, 0, 1));
  check_every_type(comm);
  comm.barrier();
}

TEST(Communicator, OverIpv6) {
  std::optional<Aggregator> aggregator;
  try {
    aggregator.emplace(small_aggregator("[::1]:0"));
  } catch (const Error& error) {
    GTEST_SKIP() << "this host has no IPv6: " << error.what();
  }
  expect_success(on_ranks(2, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(rank_options({aggregator->address()}, rank, 2));
    check_every_type(comm);
  }));
}

// Of parts of different lengths, and with ranks that have none.
void check_unequal_parts(Communicator& comm) {
  const std::uint32_t n = comm.world_size(), rank = comm.rank();
  for (const std::size_t step : {std::size_t{0}, std::size_t{1}, std::size_t{701}}) {
    std::vector<std::size_t> counts(n);
    for (std::uint32_t of = 0; of < n; ++of) counts[of] = (n - 1 - of) * step;  // the last rank has none
    const std::size_t length = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
    const auto before = std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0});
    for (const bool waits : {false, true}) {
      std::vector<float> in(length), sums(length), out(counts[rank], -1), whole(length, -1);
      for (std::size_t i = 0; i < length; ++i) in[i] = input(rank, i);
      for (std::size_t i = 0; i < length; ++i) sums[i] = exact(ReduceOp::sum, DType::float32, n, i);
      const std::vector<float> values = in;
      waits ? comm.reduce_scatter_v_async(in, out, ReduceOp::sum, counts).wait()
            : comm.reduce_scatter_v(in, out, ReduceOp::sum, counts);
      EXPECT_EQ(values, in);
      EXPECT_TRUE(std::equal(out.begin(), out.end(), sums.begin() + static_cast<std::ptrdiff_t>(before)));
      waits ? comm.all_gather_v_async(out, whole, counts).wait() : comm.all_gather_v(out, whole, counts);
      EXPECT_EQ(sums, whole);
      // In place.
      const auto part = std::span(in).subspan(before, counts[rank]);
      comm.reduce_scatter_v(in, part, ReduceOp::sum, counts, {.factor = 2});
      comm.all_gather_v(part, in, counts);
      for (float& value : sums) value *= 2;
      EXPECT_EQ(sums, in);
    }
  }
}

void check_list_of_tensors(Communicator& comm) {
  const std::vector<std::size_t> lists[] = {{}, {0}, {5}, {1, 0, 300, 4096, 7}, {20'000, 3, 4097, 2}};
  for (const auto& list : lists) {
    for (const bool waits : {false, true}) {
      std::vector<std::vector<float>> values;
      for (const std::size_t length : list) {
        values.emplace_back(length);
        for (std::size_t i = 0; i < length; ++i) values.back()[i] = input(comm.rank(), i);
      }
      {
        const std::vector<TensorView> tensors(values.begin(), values.end());
        if (!waits) comm.all_reduce_coalesced(tensors, ReduceOp::sum, {.factor = 2});
        if (waits) {
          Work work = comm.all_reduce_coalesced_async(tensors, ReduceOp::sum, {.tag = 4, .factor = 2});
          std::promise<void> told;
          work.on_done([&told] { told.set_value(); });  // also of an empty list
          told.get_future().wait();
          work.wait();
        }
      }
      for (const auto& sums : values) {
        for (std::size_t i = 0; i < sums.size(); ++i) {
          ASSERT_EQ(2 * exact(ReduceOp::sum, DType::float32, comm.world_size(), i), sums[i]);
        }
      }
    }
  }
}

// Every collective, blocking and asynchronous, in place and out of place, where the protocol has it and where others stand
// in.
void check_every_collective(Communicator& comm) {
  const std::uint32_t n = comm.world_size(), rank = comm.rank();
  for (const std::size_t part : {std::size_t{0}, std::size_t{1}, std::size_t{1003}}) {
    const auto value = [&](std::uint32_t of, std::size_t i) { return static_cast<std::int32_t>(of * 1000 + i); };
    const auto sum = [&](std::size_t i) {
      std::int32_t all = 0;
      for (std::uint32_t of = 0; of < n; ++of) all += value(of, i);
      return all;
    };
    std::vector<std::int32_t> in(part * n), out(part), whole(part * n);
    const auto fill = [&] {
      for (std::size_t i = 0; i < in.size(); ++i) in[i] = value(rank, i);
      std::fill(out.begin(), out.end(), -1);
      std::fill(whole.begin(), whole.end(), -1);
    };
    const auto view = [](auto& values) { return TensorView{values.data(), values.size(), DType::int32}; };
    std::vector<std::int32_t> sums(in.size());
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = sum(i);
    const std::vector<std::int32_t> own(sums.begin() + static_cast<std::ptrdiff_t>(rank * part),
                                        sums.begin() + static_cast<std::ptrdiff_t>((rank + 1) * part));
    for (const bool waits : {false, true}) {
      fill();
      const std::vector<std::int32_t> before = in;
      waits ? comm.all_reduce_async(view(in), view(whole), ReduceOp::sum).wait()
            : comm.all_reduce(view(in), view(whole), ReduceOp::sum);
      EXPECT_EQ(sums, whole);
      EXPECT_EQ(before, in);
      waits ? comm.reduce_scatter_async(view(in), view(out), ReduceOp::sum).wait()
            : comm.reduce_scatter(view(in), view(out), ReduceOp::sum);
      EXPECT_EQ(own, out);
      EXPECT_EQ(before, in);
      waits ? comm.reduce_async(view(in), ReduceOp::sum, n - 1).wait() : comm.reduce(view(in), ReduceOp::sum, n - 1);
      EXPECT_EQ(rank == n - 1 ? sums : before, in);
      const auto bytes = std::as_writable_bytes(std::span(whole));
      waits ? comm.all_gather_async(std::as_bytes(std::span(out)), bytes).wait()
            : comm.all_gather(std::as_bytes(std::span(out)), bytes);
      EXPECT_EQ(sums, whole);
      waits ? comm.barrier_async().wait() : comm.barrier();
      // In place.
      fill();
      auto* const at = in.data() + rank * part;
      comm.reduce_scatter(view(in), TensorView{at, part, DType::int32}, ReduceOp::sum);
      const auto all = std::as_writable_bytes(std::span(in));
      comm.all_gather(all.subspan(rank * part * 4, part * 4), all);
      EXPECT_EQ(sums, in);
    }
    std::vector<float> floats(part, 3.0F);
    comm.all_reduce(TensorView{floats.data(), part, DType::float32}, ReduceOp::sum, {.factor = 0.5});
    EXPECT_EQ(std::vector<float>(part, 1.5F * static_cast<float>(n)), floats);
  }
  check_unequal_parts(comm);
  check_list_of_tensors(comm);
}

template <class T>
void check_elements(Communicator& comm) {
  const T own = static_cast<T>(comm.rank() + 1);
  std::vector<T> values(100, own);
  comm.all_reduce(values, ReduceOp::sum);
  EXPECT_EQ(std::vector<T>(100, T{3}), values);
  const std::array<T, 2> in{own, T{2}};
  std::array<T, 2> out{};
  comm.all_reduce_async(std::span(in), out, ReduceOp::max).wait();
  EXPECT_EQ((std::array<T, 2>{T{2}, T{2}}), out);
  comm.reduce_scatter(in, std::span(out).subspan(1), ReduceOp::sum);
  EXPECT_EQ(comm.rank() == 0 ? T{3} : T{4}, out[1]);
  comm.all_gather(std::span(in).first(1), out);
  EXPECT_EQ((std::array<T, 2>{T{1}, T{2}}), out);
  comm.broadcast(values, 1);
  EXPECT_EQ(std::vector<T>(100, T{3}), values);
}

TEST(Communicator, TakesTheTypeOfElementsFromTheTensor) {
  static_assert(!std::is_constructible_v<TensorView, void*, std::size_t>, "no type is assumed");
  static_assert(!std::is_convertible_v<const std::vector<float>&, TensorView>, "a result is written");
  static_assert(!std::is_convertible_v<std::vector<float>, TensorView>, "it would be gone before the operation ends");
  static_assert(!std::is_convertible_v<std::vector<long double>&, TensorView>);
  const Aggregator aggregator(small_aggregator());
  expect_success(on_ranks(2, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(rank_options({aggregator.address()}, rank, 2));
    check_elements<float>(comm);
    check_elements<double>(comm);
    check_elements<std::uint8_t>(comm);
    check_elements<std::int8_t>(comm);
    check_elements<std::int16_t>(comm);
    check_elements<std::int32_t>(comm);
    check_elements<std::int64_t>(comm);
    check_elements<long long>(comm);
  }));
}

TEST(Communicator, HasEveryCollective) {
  const Aggregator aggregator(small_aggregator());
  for (const bool recovers : {false, true}) {
    expect_success(on_ranks(3, [&](std::uint32_t rank) {
      Options options = rank_options({aggregator.address()}, rank, 3);
      options.job = recovers ? "recovers" : "job";
      if (recovers) {
        options.protocol = SwitchMl{.shared_memory = SharedMemory::off};
        options.recovery = std::chrono::seconds(10);
      }
      auto comm = Communicator::connect(options);
      check_every_collective(comm);
    }));
  }
}

TEST(Communicator, RefusesWhatItsProtocolDoesNotHaveAndGoesOn) {
  const ParameterServer server({});
  expect_success(on_ranks(2, [&](std::uint32_t rank) {
    Options options = rank_options({server.address()}, rank, 2);
    options.protocol = Atp{};
    auto comm = Communicator::connect(options);
    std::vector<double> wide(4, 1.0);
    try {
      comm.all_reduce(TensorView{wide.data(), wide.size(), DType::float64}, ReduceOp::sum);
      ADD_FAILURE() << "ATP summed float64";
    } catch (const Error& error) {
      EXPECT_EQ(ErrorCode::bad_argument, error.code());
      EXPECT_NE(std::string::npos, std::string(error.what()).find("ATP")) << error.what();
    }
    check_every_collective(comm);
  }));
}

TEST(Communicator, Int32WrapsAround) {
  const Aggregator aggregator(small_aggregator());
  expect_success(on_ranks(2, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(rank_options({aggregator.address()}, rank, 2));
    std::vector<std::int32_t> values = {INT32_MAX, INT32_MIN, -1};
    comm.all_reduce(std::span<std::int32_t>(values), ReduceOp::sum);
    EXPECT_EQ(values, (std::vector<std::int32_t>{-2, 0, -2}));
  }));
}

// ---- survivors

// Rank 2 leaves, and a new process of it is let in again.
void expect_to_go_on(const Options& common) {
  using Ranks = std::vector<std::uint32_t>;
  const Ranks all = {0, 1, 2}, fewer = {0, 1};
  expect_success(on_ranks(3, [&](std::uint32_t rank) {
    Options options = common;
    options.rank = options.thread_set = rank;
    options.recovery = patience;
    options.survivors = 2;
    const auto sum_is_of_members = [&](Communicator& comm) {
      std::vector<std::int32_t> values(100'000, 1 << rank);
      comm.all_reduce(std::span<std::int32_t>(values), ReduceOp::sum);
      EXPECT_EQ(values, std::vector<std::int32_t>(values.size(), comm.members() == all ? 7 : 3));
      std::vector<float> halves(1000, static_cast<float>(rank));
      Work work = comm.all_reduce_async(std::span<float>(halves), ReduceOp::avg);
      work.wait();
      EXPECT_EQ(halves.back(), work.members() == all ? 1.0F : 0.5F);
      return work.members();
    };
    auto comm = Communicator::connect(options);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(sum_is_of_members(comm), all);
    if (rank == 2) {
      comm.abort("it is started again");
      comm = Communicator::connect(options);
    } else {
      while (sum_is_of_members(comm) == all) {
      }
      std::vector<std::uint8_t> bytes(9, static_cast<std::uint8_t>(rank));
      comm.broadcast(bytes, 2);
      EXPECT_EQ(bytes[0], 0) << "from the next rank in place of one that is gone";
      while (comm.admit() == fewer) EXPECT_EQ(sum_is_of_members(comm), fewer);
    }
    EXPECT_EQ(comm.members(), all);
    EXPECT_EQ(comm.newcomers(), Ranks{2});
    EXPECT_EQ(sum_is_of_members(comm), all);
    EXPECT_EQ(comm.admit(), all);
    EXPECT_EQ(comm.newcomers(), Ranks{});
    comm.barrier();
  }));
}

void over_each_protocol(const std::function<void(const Options&)>& test) {
  const Aggregator aggregator(small_aggregator());
  const ParameterServer server({});
  Options options = rank_options({aggregator.address()}, 0, 3);
  // Recovery and shared memory exclude each other, and NETSUM_TEST_SHARED_MEMORY requires the latter.
  options.protocol = SwitchMl{.shared_memory = SharedMemory::off};
  test(options);
  options.loss = 0.02;
  test(options);
  options.loss = 0;
  options.protocol = NetReduce{};
  test(options);
  options.protocol = Atp{};
  options.aggregators = {server.address()};
  test(options);
}

TEST(Survivors, GoOnWithoutARankAndLetItInAgain) {
  over_each_protocol(expect_to_go_on);
}

// Rank 2 makes its calls only after the others have the results without it.
void expect_not_to_wait(const Options& common) {
  using Ranks = std::vector<std::uint32_t>;
  std::promise<void> done;
  const std::shared_future<void> others_done = done.get_future().share();
  expect_success(on_ranks(3, [&](std::uint32_t rank) {
    Options options = common;
    options.rank = options.thread_set = rank;
    options.recovery = patience;
    options.survivors = 2;
    options.straggler_deadline = std::chrono::milliseconds(50);
    auto comm = Communicator::connect(options);
    const auto sum = [&](bool waits_for_all) {
      std::vector<std::int32_t> values(100'000, 1 << rank);
      comm.all_reduce(std::span<std::int32_t>(values), ReduceOp::sum, {.waits_for_all = waits_for_all});
      EXPECT_EQ(values, std::vector<std::int32_t>(values.size(), waits_for_all ? 7 : 3));
      EXPECT_EQ(comm.members(), waits_for_all ? Ranks({0, 1, 2}) : Ranks({0, 1}));
    };
    sum(true);
    if (rank == 2) others_done.wait();
    constexpr std::uint64_t calls = 3;
    for (std::uint64_t call = 0; call < calls; ++call) {
      sum(false);
      if (rank == 2) {
        EXPECT_EQ(comm.behind(), calls - 1 - call);
      }
    }
    if (rank == 0) done.set_value();
    sum(true);
    EXPECT_EQ(comm.behind(), 0U);
  }));
}

TEST(Stragglers, GetWhatTheOthersSummedWithoutThem) {
  over_each_protocol(expect_not_to_wait);
}

TEST(Survivors, AreRefusedSharedMemoryOrDoWithoutIt) {
  const Aggregator aggregator(small_aggregator());
  expect_success(on_ranks(2, [&](std::uint32_t rank) {
    Options options = rank_options({aggregator.address()}, rank, 2);
    options.recovery = patience;
    options.survivors = 1;
    options.protocol = SwitchMl{.shared_memory = SharedMemory::required};
    try {
      static_cast<void>(Communicator::connect(options));
      ADD_FAILURE() << "required, and not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_argument);
      EXPECT_NE(std::string(error.what()).find("shared memory cannot be required together with recovery"),
                std::string::npos);
    }
    options.protocol = SwitchMl{.shared_memory = SharedMemory::automatic};
    EXPECT_FALSE(Communicator::connect(options).statistics().shared_memory);
  }));
}

struct Configuration {
  std::uint32_t aggregators = 1, switch_threads = 1, threads = 1, packet_elements = 0, slots = 0;
  double loss = 0;
  std::uint64_t seed = 1;
};

// All ranks' results of a few tensors one after the other, as bytes.
std::vector<std::vector<float>> results_under(const Configuration& setup) {
  std::vector<Aggregator> aggregators;
  std::vector<std::string> addresses;
  for (std::uint32_t i = 0; i < setup.aggregators; ++i) {
    auto options = small_aggregator("127.0.0.1:0", setup.switch_threads);
    options.loss = setup.loss;
    options.loss_seed = setup.seed;
    addresses.push_back(aggregators.emplace_back(options).address());
  }
  constexpr std::uint32_t world_size = 3;
  std::vector<std::vector<float>> results(world_size);
  expect_success(on_ranks(world_size, [&](std::uint32_t rank) {
    Options options = rank_options(addresses, rank, world_size);
    options.threads = setup.threads;
    options.packet_elements = setup.packet_elements;
    options.slots = setup.slots;
    options.loss = setup.loss;
    options.loss_seed = setup.seed;
    auto comm = Communicator::connect(options);
    for (const std::size_t elements : {std::size_t{70'001}, std::size_t{3}, std::size_t{20'000}}) {
      std::vector<float> values = noise(rank, elements);
      comm.all_reduce(std::span<float>(values), ReduceOp::sum);
      results[rank].insert(results[rank].end(), values.begin(), values.end());
    }
    if (setup.packet_elements != 0) {
      EXPECT_EQ(comm.statistics().packet_elements, setup.packet_elements);
    }
    EXPECT_EQ(comm.statistics().packets_dropped_down > 0, setup.loss > 0);
    EXPECT_EQ(comm.statistics().lanes, setup.aggregators * setup.switch_threads);
    EXPECT_EQ(comm.statistics().operations, 3U);
  }));
  return results;
}

TEST(Communicator, SameBitsWhateverTheSetup) {
  const auto expected = results_under({});
  EXPECT_TRUE(expected[0] == expected[1] && expected[0] == expected[2]);
  const Configuration others[] = {
      {.packet_elements = 64, .slots = 16},
      {.packet_elements = 256, .slots = 32, .loss = 0.01, .seed = 7},
      {.packet_elements = 1024, .loss = 0.1, .seed = 8},
      {.switch_threads = 2, .threads = 2, .packet_elements = 512},
      {.aggregators = 3, .switch_threads = 2, .threads = 3, .packet_elements = 256, .slots = 8, .loss = 0.05, .seed = 9},
  };
  for (const Configuration& setup : others) {
    const auto results = results_under(setup);
    for (std::size_t rank = 0; rank < results.size(); ++rank) {
      ASSERT_EQ(results[rank].size(), expected[0].size());
      EXPECT_EQ(std::memcmp(results[rank].data(), expected[0].data(), expected[0].size() * sizeof(float)), 0)
          << "rank " << rank << ", " << setup.packet_elements << " elements per packet, " << setup.aggregators
          << " aggregators";
    }
  }
}

TEST(Communicator, ManyOperationsUnderWay) {
  constexpr std::size_t count = 700;
  const Aggregator aggregator(small_aggregator("127.0.0.1:0", 2));
  expect_success(on_ranks(2, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(rank_options({aggregator.address()}, rank, 2));
    std::vector<std::vector<float>> tensors;
    for (std::size_t k = 0; k < count; ++k) tensors.emplace_back(k % 300, static_cast<float>(k + rank));
    std::vector<Work> works;
    for (auto& tensor : tensors) {
      works.push_back(comm.all_reduce_async(TensorView{tensor.data(), tensor.size(), DType::float32}, ReduceOp::sum));
    }
    for (std::size_t k = 0; k < count; ++k) {
      works[k].wait();
      EXPECT_TRUE(works[k].done());
      for (const float value : tensors[k]) ASSERT_EQ(value, static_cast<float>(2 * k + 1)) << k;
    }
  }));
}

TEST(Communicator, BroadcastAndBarrier) {
  const Aggregator aggregator(small_aggregator());
  expect_success(on_ranks(3, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(rank_options({aggregator.address()}, rank, 3));
    for (const std::size_t bytes : lengths) {
      for (std::uint32_t root = 0; root < 3; ++root) {
        std::vector<std::byte> data(bytes), expected(bytes);
        for (std::size_t i = 0; i < bytes; ++i) expected[i] = static_cast<std::byte>(i * 31 + root);
        if (rank == root) data = expected;
        comm.broadcast(data, root);
        EXPECT_TRUE(data == expected) << bytes << " bytes from rank " << root;
      }
    }
    comm.barrier();
  }));
}

// Rank 1 comes only once rank 0, which waits for it, has been asked often enough to do something else.
TEST(Communicator, DoesSomethingWhileItWaits) {
  const Aggregator aggregator(small_aggregator());
  constexpr std::size_t elements[] = {4, 100'000, 8};  // on this thread, on others, and several operations
  std::array<std::promise<void>, std::size(elements)> enough;
  expect_success(on_ranks(2, [&](std::uint32_t rank) {
    Communicator comm = Communicator::connect(rank_options({aggregator.address()}, rank, 2));
    for (std::size_t i = 0; i < std::size(elements); ++i) {
      std::vector<std::int32_t> tensor(elements[i], 1);
      CallOptions call;
      int turns = 0;
      if (rank == 0) {
        call.while_waiting = [&] {
          if (++turns == 100) enough[i].set_value();
        };
      } else {
        ASSERT_EQ(enough[i].get_future().wait_for(patience), std::future_status::ready);
      }
      const TensorView whole{tensor.data(), tensor.size(), DType::int32};
      if (i < 2) {
        comm.all_reduce(whole, ReduceOp::sum, call);
        EXPECT_EQ(tensor.back(), 2);
      } else {
        const TensorView part{tensor.data() + rank * tensor.size() / 2, tensor.size() / 2, DType::int32};
        comm.reduce_scatter(whole, part, ReduceOp::sum, call);
        EXPECT_EQ(tensor[rank * tensor.size() / 2], 2);
      }
    }
  }));
}

// By a callback, and by a descriptor in an event loop, of a call that is one operation and of one that is several.
TEST(Communicator, TellsWhenAnOperationHasEnded) {
  const Aggregator aggregator(small_aggregator());
  std::latch looked(1);
  expect_success(on_ranks(2, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(rank_options({aggregator.address()}, rank, 2));
    std::vector<float> values(50'000, 1.0F), gathered(100'000);
    if (rank == 1) looked.wait();
    Work work = comm.all_reduce_async(values, ReduceOp::sum);
    pollfd readable{work.descriptor(), POLLIN, 0};
    EXPECT_EQ(readable.fd, work.descriptor());
    std::promise<void> told;
    work.on_done([&told] { told.set_value(); });
    const auto future = told.get_future();
    if (rank == 0) {  // the other rank has not begun
      EXPECT_EQ(0, ::poll(&readable, 1, 0));
      EXPECT_EQ(std::future_status::timeout, future.wait_for(0s));
      looked.count_down();
    }
    EXPECT_EQ(1, ::poll(&readable, 1, -1));
    EXPECT_TRUE(work.done());
    future.wait();
    work.wait();
    EXPECT_EQ(2.0F, values.back());
    bool at_once = false;
    work.on_done([&at_once] { at_once = true; });
    EXPECT_TRUE(at_once);

    std::promise<void> all_gathered;
    Work several = comm.all_gather_async(values, gathered);
    several.on_done([&all_gathered] { all_gathered.set_value(); });
    all_gathered.get_future().wait();
    EXPECT_TRUE(several.done());
    several.wait();
    EXPECT_EQ(std::vector<float>(100'000, 2.0F), gathered);
  }));
}

TEST(Communicator, RunsWhereItsOptionsSay) {
  const std::vector<std::uint32_t> allowed = runtime::allowed_cpus();
  ASSERT_FALSE(allowed.empty());
  const Aggregator aggregator(small_aggregator());
  Options options = rank_options({aggregator.address()}, 0, 1);
  options.cpus = {*std::max_element(allowed.begin(), allowed.end()) + 1};
  expect_error(attempt([&] { static_cast<void>(Communicator::connect(options)); }), ErrorCode::bad_argument,
               {"CPU " + std::to_string(options.cpus.front()) + " of cpus"});
}

TEST(Communicator, ATensorOfAListSharesItsExponentsWithNoOther) {
  const Aggregator aggregator(small_aggregator());
  expect_success(on_ranks(2, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(rank_options({aggregator.address()}, rank, 2));
    std::vector<float> large = noise(rank, 300), small = noise(rank, 100);
    for (float& value : small) value = std::ldexp(value, -60);  // 0 in a block of the large ones
    std::vector<float> alone = small;
    const TensorView tensors[] = {large, small};
    comm.all_reduce_coalesced(tensors, ReduceOp::sum);
    comm.all_reduce(alone, ReduceOp::sum);
    EXPECT_EQ(alone, small);
  }));
}

TEST(Communicator, DuplicateHasItsOwnOperations) {
  const Aggregator aggregator(small_aggregator());
  expect_success(on_ranks(2, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(rank_options({aggregator.address()}, rank, 2));
    auto first = comm.dup(), second = comm.dup();
    std::vector<float> a(1000, 1), b(1000, 10), c(1000, 100);
    Work in_first = first.all_reduce_async(TensorView{a.data(), a.size(), DType::float32}, ReduceOp::sum);
    second.all_reduce(std::span<float>(b), ReduceOp::sum);
    comm.all_reduce(std::span<float>(c), ReduceOp::sum);
    in_first.wait();
    EXPECT_EQ(a, std::vector<float>(1000, 2));
    EXPECT_EQ(b, std::vector<float>(1000, 20));
    EXPECT_EQ(c, std::vector<float>(1000, 200));
  }));
}

// The ranks of a communicator, by what each of them was in the one that it is a part of.
std::vector<std::int32_t> former_ranks(Communicator& group, std::uint32_t former) {
  std::vector<std::int32_t> all(group.world_size());
  const auto own = static_cast<std::int32_t>(former);
  group.all_gather(std::span(&own, 1), all);
  return all;
}

TEST(Communicator, SplitMakesOneOfEachColorOrderedByKey) {
  const Aggregator aggregator(small_aggregator());
  expect_success(on_ranks(5, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(rank_options({aggregator.address()}, rank, 5));
    // Rows of 2 columns and a rank that is left over; the columns' ranks in reverse; all four meet at the same time.
    const auto even = rank == 4 ? std::nullopt : std::optional(rank / 2);
    const auto row = comm.split(even, INT32_MIN);
    auto column = comm.split(rank == 4 ? std::nullopt : std::optional(UINT32_MAX - rank % 2), -static_cast<int>(rank));
    auto whole = comm.split(0, rank == 4 ? -1 : 0);
    ASSERT_EQ(rank != 4, row.has_value());
    ASSERT_EQ(rank != 4, column.has_value());
    ASSERT_TRUE(whole.has_value());
    EXPECT_EQ((std::vector<std::int32_t>{4, 0, 1, 2, 3}), former_ranks(*whole, rank));
    EXPECT_EQ(5U, former_ranks(comm, rank).size()) << "it goes on beside its parts";
    if (rank == 4) return;
    EXPECT_EQ(rank % 2, row->rank());
    EXPECT_EQ(2U, row->world_size());
    EXPECT_EQ(1U - rank / 2, column->rank());
    const auto first = static_cast<std::int32_t>(rank % 2);
    EXPECT_EQ((std::vector<std::int32_t>{first + 2, first}), former_ranks(*column, rank));
    auto alone = column->split(column->rank());  // a part of a part
    EXPECT_EQ(std::vector<std::int32_t>{static_cast<std::int32_t>(rank)}, former_ranks(alone.value(), rank));
  }));
}

TEST(Communicator, AJobWithRecoveryIsNotSplit) {
  const Aggregator aggregator(small_aggregator());
  Options options = rank_options({aggregator.address()}, 0, 1);
  options.protocol = SwitchMl{.shared_memory = SharedMemory::off};
  options.recovery = std::chrono::seconds(10);
  auto comm = Communicator::connect(options);
  expect_error(attempt([&] { static_cast<void>(comm.split(0)); }), ErrorCode::bad_argument, {"recovery", "connect()"});
  comm.barrier();
}

TEST(Communicator, TwoJobsShareAnAggregator) {
  const Aggregator aggregator(small_aggregator());
  expect_success(on_ranks(4, [&](std::uint32_t thread) {
    Options options = rank_options({aggregator.address()}, thread % 2, 2);
    options.job = thread < 2 ? "first" : "second";
    auto comm = Communicator::connect(options);
    std::vector<float> values(50'000, thread < 2 ? 1.0F : 5.0F);
    comm.all_reduce(std::span<float>(values), ReduceOp::sum);
    EXPECT_EQ(values, std::vector<float>(50'000, thread < 2 ? 2.0F : 10.0F));
  }));
}

// A job's name and slots are free again once all ranks have left.
TEST(Communicator, SameJobAgain) {
  const Aggregator aggregator(small_aggregator());
  for (int life = 0; life < 3; ++life) {
    expect_success(on_ranks(2, [&](std::uint32_t rank) {
      Options options = rank_options({aggregator.address()}, rank, 2);
      options.job += std::to_string(life % 2);
      auto comm = Communicator::connect(options);
      std::vector<float> values(10, 1);
      comm.all_reduce(std::span<float>(values), ReduceOp::sum);
      EXPECT_EQ(values[9], 2);
    }));
  }
}

// SwitchML's point: what a worker sends is |U| and headers, not 2|U|(n-1)/n.
TEST(Communicator, SendsTheTensorOnce) {
  constexpr std::size_t elements = 1'000'000;
  const Aggregator aggregator(small_aggregator());
  expect_success(on_ranks(2, [&](std::uint32_t rank) {
    auto comm = Communicator::connect(rank_options({aggregator.address()}, rank, 2));
    std::vector<float> values(elements, 1);
    const Statistics before = comm.statistics();
    comm.all_reduce(std::span<float>(values), ReduceOp::sum);
    const Statistics after = comm.statistics();
    const auto sent = static_cast<double>(after.wire_bytes_sent - before.wire_bytes_sent);
    EXPECT_GE(sent, elements * 4.0);
    if (after.packets_retransmitted == before.packets_retransmitted) {
      EXPECT_LE(sent, elements * 4.0 * 1.1);
    }
  }));
}

TEST(Communicator, SaysWhereItRuns) {
  const Aggregator first(small_aggregator()), second(small_aggregator());
  std::vector<std::string> logged(2);
  expect_success(on_ranks(2, [&](std::uint32_t rank) {
    Options options = rank_options({first.address(), second.address()}, rank, 2);
    options.log = [&logged, rank](const std::string& line) { logged[rank] += line + "\n"; };
    const auto comm = Communicator::connect(options);
    EXPECT_NE(comm.placement().find(first.address() + ", " + second.address()), std::string::npos) << comm.placement();
    EXPECT_NE(comm.placement().find("ring"), std::string::npos) << comm.placement();
  }));
  for (const std::string& lines : logged) EXPECT_NE(lines.find(first.address()), std::string::npos);
}

}  // namespace
}  // namespace netsum
