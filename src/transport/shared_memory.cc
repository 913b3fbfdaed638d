#include "transport/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "netsum/error.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace netsum::transport {
namespace {

constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

[[noreturn]] void fail(const std::string& what, ErrorCode code = ErrorCode::internal) {
  throw Error(code, what + ": " + errno_text());
}

[[noreturn]] void too_long(std::size_t bytes) {
  fail("cannot have " + std::to_string(bytes) + " bytes of shared memory", ErrorCode::bad_argument);
}

// Pages of all of it; large ones where the system has them for this.
bool populate(int number, std::span<std::byte> memory) {
  ::madvise(memory.data(), memory.size(), MADV_HUGEPAGE);
  if (::madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE) == 0) return true;
  return errno == EINVAL && ::fallocate(number, 0, 0, static_cast<off_t>(memory.size())) == 0;  // before Linux 5.14
}

}  // namespace

OwnMemory::OwnMemory(const std::string& name, std::size_t bytes, bool reserved) {
  bytes = std::max<std::size_t>(bytes, 1);
  descriptor_ = std::make_shared<Descriptor>(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int number = descriptor_->number();
  if (number < 0) fail("cannot create shared memory");
  if (::ftruncate(number, static_cast<off_t>(bytes)) != 0) too_long(bytes);
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, number, 0);
  if (memory == MAP_FAILED) too_long(bytes);
  bytes_ = {static_cast<std::byte*>(memory), bytes};
  if (reserved && !populate(number, bytes_)) {
    ::munmap(memory, bytes);
    too_long(bytes);
  }
  // This mapping may write on; no other one can be made to.
  if (::fcntl(number, F_ADD_SEALS, seals) != 0) {
    ::munmap(memory, bytes);
    fail("cannot seal shared memory (Linux 5.1 or newer?)");
  }
}

OwnMemory::~OwnMemory() {
  ::munmap(bytes_.data(), bytes_.size());
}

PeerMemory::PeerMemory(const Descriptor& descriptor, std::size_t least) {
  const int number = descriptor.number();
  const int found = ::fcntl(number, F_GET_SEALS);
  if (found < 0 || (found & seals) != seals) throw Error(ErrorCode::refused, "a rank's shared memory is not sealed");
  struct stat status {};
  if (::fstat(number, &status) != 0 || status.st_size <= 0 || static_cast<std::size_t>(status.st_size) < least) {
    throw Error(ErrorCode::refused, "a rank's shared memory is too short");
  }
  const auto bytes = static_cast<std::size_t>(status.st_size);
  void* const memory = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, number, 0);
  if (memory == MAP_FAILED) fail("cannot map " + std::to_string(bytes) + " bytes of a rank's shared memory");
  bytes_ = {static_cast<const std::byte*>(memory), bytes};
}

PeerMemory::~PeerMemory() {
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace netsum::transport
