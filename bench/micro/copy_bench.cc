// What a copy costs by how many bytes behind its source it lies, modulo a page: the reason for base/copied.h. libc's, and
// the kernel's out of a pipe, whose pages it copies from their beginnings.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/copied.h"

namespace netsum {
namespace {

constexpr std::size_t longest = 15 * copied_page;  // fits into a pipe

// What begins at a page, with `longest` bytes and another page behind it.
std::byte* page_of(const CopiedMemory& memory) {
  return memory.data() + copied_page - reinterpret_cast<std::uintptr_t>(memory.data()) % copied_page;
}

void by_libc(benchmark::State& state) {
  const auto behind = static_cast<std::size_t>(state.range(0)), bytes = static_cast<std::size_t>(state.range(1));
  const CopiedMemory from(Copied::from, longest + 2 * copied_page), to(Copied::into, longest + 2 * copied_page);
  std::memset(page_of(from), 1, longest);
  for (auto _ : state) {
    std::memcpy(page_of(to) + behind, page_of(from), bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * bytes));
}

void by_kernel(benchmark::State& state) {
  const auto behind = static_cast<std::size_t>(state.range(0)), bytes = static_cast<std::size_t>(state.range(1));
  const CopiedMemory from(Copied::from, longest + 2 * copied_page), to(Copied::into, longest + 2 * copied_page);
  std::memset(page_of(from), 1, longest);
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return state.SkipWithError("no pipe");
  for (auto _ : state) {
    const ssize_t written = ::write(pipe[1], page_of(from), bytes);
    if (::read(pipe[0], page_of(to) + behind, bytes) != written) state.SkipWithError("the pipe holds less");
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * bytes));
  for (const int end : pipe) ::close(end);
}

void distances(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"behind", "bytes"});
  benchmark->ArgsProduct({{0, 1, 8, 15, 16, 24, 31, 32, 64, 4080, 4095}, {copied_page, longest}});
}

BENCHMARK(by_libc)->Apply(distances);
BENCHMARK(by_kernel)->Apply(distances);

}  // namespace
}  // namespace netsum

BENCHMARK_MAIN();
