// Preloaded by with_vectors: Highway chooses no wider vectors than $BENCH_VECTORS names, in this program and in those that
// it starts. So a processor shows how fast netsum is on another one that has less.
#include <hwy/targets.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

__attribute__((constructor)) void choose_no_wider() {
  const char* const wanted = std::getenv("BENCH_VECTORS");
  const std::int64_t supported = hwy::SupportedTargets();
  for (std::int64_t rest = supported; wanted != nullptr && rest != 0; rest &= rest - 1) {
    const std::int64_t target = rest & -rest;
    if (std::strcmp(hwy::TargetName(target), wanted) != 0) continue;
    hwy::DisableTargets(supported & (target - 1));  // a better target is a lower bit
    return;
  }
  std::fprintf(stderr, "with_vectors: this processor has no vectors that Highway calls '%s'\n",
               wanted != nullptr ? wanted : "");
  std::_Exit(2);
}

}  // namespace
