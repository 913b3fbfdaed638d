// A library of the system that is loaded when it is first called, so that neither programs nor other users of netsum need
// it.
#pragma once

#include <mutex>
#include <string>

namespace netsum::transport {

class LateLibrary {
 public:
  // `package`: what to install if it is missing, for the error.
  constexpr LateLibrary(const char* file, const char* package) : file_(file), package_(package) {}

  // Throws Error: refused, the library or its function is not there. Any thread. The library stays until the process ends.
  [[nodiscard]] void* function(const char* name);

 private:
  const char* const file_;
  const char* const package_;
  std::mutex mutex_;
  void* loaded_ = nullptr;
};

}  // namespace netsum::transport

// Defines a function of a C header, which calls the library's.
#define NETSUM_LATE(library, result, name, parameters, ...)                              \
  result name parameters {                                                               \
    static const auto late = reinterpret_cast<decltype(&name)>(library.function(#name)); \
    return late(__VA_ARGS__);                                                            \
  }
