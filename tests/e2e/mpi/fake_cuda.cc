// CUDA's driver as libnetsum-mpi.so looks for it. Its "device memory" is some that no processor may read.
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

constexpr std::size_t size = std::size_t{1} << 20;
std::byte* memory = nullptr;
int protection = PROT_NONE;

bool is_inside(unsigned long long address) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  return memory != nullptr && address >= begin && address < begin + size;
}

}  // namespace

extern "C" {

std::byte* fake_memory(int readable) {
  protection = readable != 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
  memory = static_cast<std::byte*>(mmap(nullptr, size, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  return memory;
}

int cuPointerGetAttribute(void* value, int attribute, unsigned long long address) {
  if (!is_inside(address)) return 1;
  if (attribute == 1) *static_cast<void**>(value) = memory;
  if (attribute == 2) *static_cast<unsigned*>(value) = 2;
  if (attribute == 8) *static_cast<unsigned*>(value) = 0;
  return 0;
}

static int contexts = 0;
int cuCtxPushCurrent_v2(void* context) {
  contexts += context == memory ? 1 : 0;
  return 0;
}
int cuCtxPopCurrent_v2(void**) {
  --contexts;
  return 0;
}

// For the test.
void fake_copy(void* to, const void* from, std::size_t bytes) {
  mprotect(memory, size, PROT_READ | PROT_WRITE);
  std::memcpy(to, from, bytes);
  mprotect(memory, size, protection);
}

int cuMemcpy(unsigned long long to, unsigned long long from, std::size_t bytes) {
  if (contexts != 1) return 201;
  fake_copy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return 0;
}
}
