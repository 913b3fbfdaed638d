// What a plain program takes for an all-reduce in place: integer tensors of several ranks, all in one process, read once,
// added in a core's cache and written once, by a thread per processor. No exponents, no processes that wait for each other,
// no headers. Prints what collectives_mpi prints.
//
//   bare_sum WORKERS ITERATIONS WARMUP ELEMENTS
#include <sched.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/kernels.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t most_workers = 64, row = 65536;  // elements: as long as netsum's rows

struct Plan {
  std::size_t workers = 0, iterations = 0, warmup = 0, elements = 0;
};

Plan parse(std::span<char*> words) {
  Plan plan;
  const std::array places{&plan.workers, &plan.iterations, &plan.warmup, &plan.elements};
  if (words.size() != places.size() + 1) throw std::invalid_argument("usage: bare_sum WORKERS ITERATIONS WARMUP ELEMENTS");
  for (std::size_t i = 0; i < places.size(); ++i) {
    const std::string_view word = words[i + 1];
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), *places[i]);
    if (error != std::errc() || end != word.data() + word.size()) throw std::invalid_argument("a number is expected");
  }
  if (plan.workers == 0 || plan.workers > most_workers || plan.iterations == 0 || plan.elements == 0)
    throw std::invalid_argument("WORKERS: 1 to 64, ITERATIONS and ELEMENTS: at least 1");
  return plan;
}

using Tensors = std::vector<std::vector<std::int32_t>>;

std::byte* bytes_at(std::vector<std::int32_t>& tensor, std::size_t element) {
  return reinterpret_cast<std::byte*>(tensor.data() + element);
}

// Elements [begin, end) of all tensors.
void sum(Tensors& tensors, std::size_t begin, std::size_t end) {
  std::vector<std::byte> sums(row * 4);
  for (; begin < end; begin += row) {
    const std::size_t count = std::min(row, end - begin);
    std::memcpy(sums.data(), bytes_at(tensors[0], begin), count * 4);
    for (std::size_t rank = 1; rank < tensors.size(); ++rank) {
      netsum::kernels::add_int32(sums.data(), bytes_at(tensors[rank], begin), count);
    }
    for (auto& tensor : tensors) netsum::kernels::copy_past_caches(bytes_at(tensor, begin), sums.data(), count * 4);
  }
}

void stay_on(std::size_t processor) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(processor, &one);
  static_cast<void>(::sched_setaffinity(0, sizeof one, &one));  // where that is not allowed it may move
}

// Seconds of the slowest thread.
double timed(Tensors& tensors) {
  const std::size_t threads = std::max(1U, std::thread::hardware_concurrency()), elements = tensors[0].size();
  std::vector<double> seconds(threads);
  std::barrier together(static_cast<std::ptrdiff_t>(threads));
  {
    std::vector<std::jthread> running;
    for (std::size_t i = 0; i < threads; ++i) {
      running.emplace_back([&, i] {
        stay_on(i);
        together.arrive_and_wait();
        const auto begin = Clock::now();
        sum(tensors, elements * i / threads, elements * (i + 1) / threads);
        seconds[i] = std::chrono::duration<double>(Clock::now() - begin).count();
      });
    }
  }
  return *std::max_element(seconds.begin(), seconds.end());
}

void run(const Plan& plan) {
  Tensors tensors(plan.workers, std::vector<std::int32_t>(plan.elements));
  std::vector<double> seconds;
  unsigned long long wrong = 0;
  for (std::size_t i = 0; i < plan.warmup + plan.iterations; ++i) {
    for (std::size_t rank = 0; rank < plan.workers; ++rank) {
      for (std::size_t j = 0; j < plan.elements; ++j) tensors[rank][j] = static_cast<std::int32_t>(j % 1000 + rank);
    }
    const double took = timed(tensors);
    if (i >= plan.warmup) seconds.push_back(took);
    for (const auto& tensor : tensors) {
      for (std::size_t j = 0; j < plan.elements; ++j) {
        const std::size_t sum = plan.workers * (j % 1000) + plan.workers * (plan.workers - 1) / 2;
        wrong += tensor[j] != static_cast<std::int32_t>(sum);
      }
    }
  }
  std::printf("{\"workers\": %zu, \"elements\": %zu, \"wrong\": %llu, \"bytes_per_worker\": null, \"tat_seconds\": [",
              plan.workers, plan.elements, wrong);
  for (std::size_t i = 0; i < seconds.size(); ++i) std::printf("%s%.9f", i == 0 ? "" : ", ", seconds[i]);
  std::printf("]}\n");
  if (wrong != 0) throw std::runtime_error("sums are wrong");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse({argv, static_cast<std::size_t>(argc)}));
    return EXIT_SUCCESS;
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "bare_sum: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bare_sum: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
