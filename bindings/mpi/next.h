// MPI's own functions, where this library has one of the same name.
#pragma once

#include <dlfcn.h>

namespace netsum::mpi {

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace netsum::mpi

#define NETSUM_NEXT(name)                                                 \
  ([] {                                                                   \
    static auto* const of_mpi = netsum::mpi::next<decltype(name)>(#name); \
    return of_mpi;                                                        \
  }())
