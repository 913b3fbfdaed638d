#include "transport/local/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "netsum/error.h"
#include "transport/local/local_socket.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace netsum::transport {
namespace {

constexpr int length_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr int own_seals = length_seals | F_SEAL_FUTURE_WRITE;

[[noreturn]] void fail(const std::string& what, ErrorCode code = ErrorCode::internal) {
  throw Error(code, what + ": " + errno_text());
}

[[noreturn]] void too_long(std::size_t bytes) {
  fail("cannot have " + std::to_string(bytes) + " bytes of shared memory", ErrorCode::bad_argument);
}

std::shared_ptr<Descriptor> make_memory(const std::string& name, std::size_t bytes) {
  auto made = not_for_children(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (made->number() < 0) fail("cannot create shared memory");
  if (::ftruncate(made->number(), static_cast<off_t>(bytes)) != 0) too_long(bytes);
  return made;
}

// Allocates all pages, large ones where the system provides them.
void populate(const Descriptor& descriptor, std::span<std::byte> memory) {
  ::madvise(memory.data(), memory.size(), MADV_HUGEPAGE);
  if (::madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE) == 0) return;
  if (errno == EINVAL && ::fallocate(descriptor.number(), 0, 0, static_cast<off_t>(memory.size())) == 0) {
    return;  // before Linux 5.14
  }
  too_long(memory.size());
}

void seal(const Descriptor& descriptor, int seals) {
  if (::fcntl(descriptor.number(), F_ADD_SEALS, seals) != 0) fail("cannot seal shared memory (Linux 5.1 or newer?)");
}

// The memory's length; none: it lacks these seals.
std::optional<std::size_t> sealed_bytes(const Descriptor& descriptor, int seals) {
  const int found = ::fcntl(descriptor.number(), F_GET_SEALS);
  struct stat status {};
  if (found < 0 || (found & seals) != seals || ::fstat(descriptor.number(), &status) != 0) return std::nullopt;
  return static_cast<std::size_t>(status.st_size);
}

}  // namespace

Mapping::Mapping(const Descriptor& descriptor, std::size_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.number(), 0);
  if (memory == MAP_FAILED) too_long(bytes);
  bytes_ = {static_cast<std::byte*>(memory), bytes};
  for_child_ = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_NORESERVE, descriptor.number(), 0);
  if (for_child_ == MAP_FAILED || ::madvise(memory, bytes, MADV_DONTFORK) != 0) {
    if (for_child_ != MAP_FAILED) ::munmap(for_child_, bytes);
    ::munmap(memory, bytes);
    too_long(bytes);
  }
  enlist();
}

Mapping::~Mapping() {
  delist();
  if (for_child_ != nullptr) ::munmap(for_child_, bytes_.size());
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

void Mapping::in_child() noexcept {
  if (for_child_ == nullptr) return;  // in a child's child: the copy is copied like all memory
  // Another fork() handler may have mapped memory here meanwhile: then leave that.
  void* const place = bytes_.data();
  void* const found =
      ::mmap(place, bytes_.size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (found == place) {
    ::mremap(for_child_, bytes_.size(), bytes_.size(), MREMAP_MAYMOVE | MREMAP_FIXED, place);
    ::mprotect(place, bytes_.size(), PROT_READ | PROT_WRITE);
  } else {
    if (found != MAP_FAILED) ::munmap(found, bytes_.size());
    bytes_ = {};
  }
  for_child_ = nullptr;
}

OwnMemory::OwnMemory(const std::string& name, std::size_t bytes, bool reserved)
    : descriptor_(make_memory(name, std::max<std::size_t>(bytes, 1))),
      mapping_(*descriptor_, std::max<std::size_t>(bytes, 1)) {
  if (reserved) populate(*descriptor_, mapping_.bytes());
  seal(*descriptor_, own_seals);  // this mapping stays writable; no other writable one can be made
}

bool PeerMemory::is_readable(const Descriptor& descriptor, std::size_t least) {
  const auto bytes = sealed_bytes(descriptor, own_seals);
  return bytes && *bytes >= std::max<std::size_t>(least, 1);
}

PeerMemory::PeerMemory(const Descriptor& descriptor, std::size_t least) {
  const auto bytes = sealed_bytes(descriptor, own_seals);
  if (!bytes) throw Error(ErrorCode::refused, "a rank's shared memory is not sealed");
  if (*bytes < std::max<std::size_t>(least, 1)) throw Error(ErrorCode::refused, "a rank's shared memory is too short");
  void* const memory = ::mmap(nullptr, *bytes, PROT_READ, MAP_SHARED, descriptor.number(), 0);
  if (memory == MAP_FAILED) fail("cannot map " + std::to_string(*bytes) + " bytes of a rank's shared memory");
  bytes_ = {static_cast<const std::byte*>(memory), *bytes};
}

PeerMemory::~PeerMemory() {
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

CommonMemory::CommonMemory(const std::string& name, std::size_t bytes)
    : descriptor_(make_memory(name, bytes)), mapping_(*descriptor_, bytes) {
  populate(*descriptor_, mapping_.bytes());
  seal(*descriptor_, length_seals);
}

CommonMemory::CommonMemory(std::shared_ptr<Descriptor> made, std::size_t bytes)
    : descriptor_([&] {
        if (sealed_bytes(*made, length_seals) == bytes) return std::move(made);
        throw Error(ErrorCode::refused, "shared memory is not sealed, or not of " + std::to_string(bytes) + " bytes");
      }()),
      mapping_(*descriptor_, bytes) {}

std::shared_ptr<Descriptor> CommonMemory::opened_again() const {
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor_->number());
  auto again = not_for_children(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (again->number() < 0) fail("cannot open shared memory at " + path);
  return again;
}

}  // namespace netsum::transport
