#include "device_memory.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>

#include "netsum/error.h"

namespace netsum::mpi {
namespace {

// Of cuda.h.
using DevicePointer = unsigned long long;
constexpr int attribute_context = 1, attribute_memory_type = 2, attribute_is_managed = 8;
constexpr unsigned type_device = 2;

struct Driver {
  int (*attribute)(void* value, int attribute, DevicePointer);
  int (*copy)(DevicePointer to, DevicePointer from, std::size_t bytes);
  int (*push)(void* context);
  int (*pop)(void** context);
};

const Driver* find_driver() {
  void* const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  static Driver driver;
  driver.attribute = reinterpret_cast<decltype(driver.attribute)>(dlsym(library, "cuPointerGetAttribute"));
  driver.copy = reinterpret_cast<decltype(driver.copy)>(dlsym(library, "cuMemcpy"));
  driver.push = reinterpret_cast<decltype(driver.push)>(dlsym(library, "cuCtxPushCurrent_v2"));
  driver.pop = reinterpret_cast<decltype(driver.pop)>(dlsym(library, "cuCtxPopCurrent_v2"));
  const bool whole =
      driver.attribute != nullptr && driver.copy != nullptr && driver.push != nullptr && driver.pop != nullptr;
  return whole ? &driver : nullptr;
}

// How many libraries the process has loaded so far.
unsigned long long libraries_loaded() {
  unsigned long long loaded = 0;
  const auto first = [](dl_phdr_info* info, std::size_t, void* into) {
    *static_cast<unsigned long long*>(into) = info->dlpi_adds;
    return 1;
  };
  dl_iterate_phdr(first, &loaded);
  return loaded;
}

// The process may load it at any time. Null: it has not.
const Driver* driver() {
  static std::atomic<const Driver*> found{nullptr};
  static std::atomic<unsigned long long> looked_at{0};
  if (const Driver* const known = found.load(std::memory_order_acquire)) return known;
  const unsigned long long loaded = libraries_loaded();
  if (looked_at.load(std::memory_order_relaxed) == loaded) return nullptr;
  const Driver* const now = find_driver();
  found.store(now, std::memory_order_release);
  looked_at.store(loaded, std::memory_order_relaxed);
  return now;
}

DevicePointer pointer(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address);
}

}  // namespace

bool is_on_device(const void* address) {
  const Driver* const cuda = driver();
  if (cuda == nullptr) return false;
  unsigned type = 0, managed = 0;
  if (cuda->attribute(&type, attribute_memory_type, pointer(address)) != 0 || type != type_device) return false;
  return cuda->attribute(&managed, attribute_is_managed, pointer(address)) != 0 || managed == 0;
}

void copy(void* to, const void* from, std::size_t bytes) {
  if (to == from || bytes == 0) return;
  const void* const device = is_on_device(to) ? to : is_on_device(from) ? from : nullptr;
  if (device == nullptr) {
    std::memcpy(to, from, bytes);
    return;
  }
  const Driver& cuda = *driver();
  void* context = nullptr;  // this thread may have no current one
  const bool has_context = cuda.attribute(&context, attribute_context, pointer(device)) == 0 && context != nullptr;
  if (has_context) cuda.push(context);
  const int code = cuda.copy(pointer(to), pointer(from), bytes);
  if (has_context) cuda.pop(&context);
  if (code != 0) throw Error(ErrorCode::internal, "cuMemcpy failed with CUDA error " + std::to_string(code));
}

}  // namespace netsum::mpi
