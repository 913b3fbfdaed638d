#include "transport/system/late_library.h"

#include <dlfcn.h>

#include "netsum/error.h"

namespace netsum::transport {

void* LateLibrary::function(const char* name) {
  const std::lock_guard lock(mutex_);
  if (loaded_ == nullptr) loaded_ = ::dlopen(file_, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (loaded_ == nullptr) {
    throw Error(ErrorCode::refused,
                std::string(file_) + " cannot be loaded: install " + package_ + " (" + ::dlerror() + ")");
  }
  void* const found = ::dlsym(loaded_, name);
  if (found == nullptr)
    throw Error(ErrorCode::refused, std::string(file_) + " does not have " + name + ": install a newer " + package_);
  return found;
}

}  // namespace netsum::transport
