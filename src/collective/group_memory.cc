#include "collective/group_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "netsum/error.h"
#include "runtime/thread.h"
#include "transport/socket.h"

namespace netsum::collective {
namespace {

constexpr std::uint64_t magic = 0x70756f72'676d736eULL;  // "nsmgroup", set when everything else is
constexpr std::size_t page = 4096;
constexpr std::uint32_t most_members = 256;
constexpr Duration retry_interval = std::chrono::milliseconds(2);

struct Header {
  std::atomic<std::uint64_t> ready{0};
  std::uint64_t elements = 0;
  std::uint32_t members = 0;
};

constexpr std::size_t rounded_up(std::size_t bytes, std::size_t to) {
  return (bytes + to - 1) / to * to;
}

std::size_t slots_bytes(std::uint32_t size) {
  return rounded_up(page + size * sizeof(MemberSlot), page);
}

struct flock byte_lock(std::uint32_t rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

bool lock_byte(int descriptor, std::uint32_t rank) {
  struct flock lock = byte_lock(rank);
  return ::fcntl(descriptor, F_OFD_SETLK, &lock) == 0;
}

// By another open file than this.
bool is_locked(int descriptor, std::uint32_t rank) {
  struct flock lock = byte_lock(rank);
  return ::fcntl(descriptor, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

std::string shm_name(const std::string& name) {
  const auto allowed = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.';
  };
  if (name.empty() || name.size() > 200 || !std::all_of(name.begin(), name.end(), allowed)) {
    throw Error(ErrorCode::bad_argument,
                "a machine group's name is 1 to 200 letters, digits, '-', '_' and '.', not '" + name + "'");
  }
  return "/netsum-" + name;
}

void pause(Duration patience) {
  const timespec time{0, static_cast<long>(patience.count())};
  ::nanosleep(&time, nullptr);
}

}  // namespace

GroupMemory::GroupMemory(std::uint32_t size, std::size_t elements)
    : size_(size),
      elements_(elements),
      stride_(rounded_up(std::max<std::size_t>(elements, 1) * sizeof(float), page) / sizeof(float)),
      bytes_(slots_bytes(size) + size * stride_ * sizeof(float)) {}

GroupMemory::~GroupMemory() {
  remove_name();
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

void GroupMemory::map(int descriptor) {
  const int flags = descriptor < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
  void* const memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  if (memory == MAP_FAILED) {
    throw Error(ErrorCode::internal,
                "cannot map " + std::to_string(bytes_) + " bytes of shared memory: " + transport::errno_text());
  }
  memory_ = static_cast<std::byte*>(memory);
  slots_ = reinterpret_cast<MemberSlot*>(memory_ + page);
  tensors_ = reinterpret_cast<float*>(memory_ + slots_bytes(size_));
}

std::shared_ptr<GroupMemory> GroupMemory::of_threads(std::uint32_t size, std::size_t elements) {
  std::shared_ptr<GroupMemory> made(new GroupMemory(size, elements));
  made->map(-1);
  for (std::uint32_t i = 0; i < size; ++i) new (&made->slots_[i]) MemberSlot;
  return made;
}

std::shared_ptr<GroupMemory> GroupMemory::join(const GroupMemoryOptions& options, Time deadline) {
  if (options.size == 0 || options.size > most_members || options.rank >= options.size) {
    throw Error(ErrorCode::bad_argument, "a machine group has 1 to 256 members, and member " + std::to_string(options.rank) +
                                             " is none of " + std::to_string(options.size));
  }
  std::shared_ptr<GroupMemory> made(new GroupMemory(options.size, options.elements));
  if (options.rank == 0) {
    made->create(options, deadline);
    return made;
  }
  while (!made->attach(options)) {
    if (runtime::now() >= deadline) {
      throw Error(ErrorCode::deadline,
                  "machine group '" + options.name + "': member 0, which makes its memory, has not come in time");
    }
    pause(retry_interval);
  }
  return made;
}

void GroupMemory::remove_left_behind(const std::string& name) {
  const transport::Descriptor found(::shm_open(shm_name(name).c_str(), O_RDWR | O_CLOEXEC, 0));
  if (found.number() >= 0 && !is_locked(found.number(), 0)) ::shm_unlink(shm_name(name).c_str());
}

void GroupMemory::create(const GroupMemoryOptions& options, Time deadline) {
  const std::string name = shm_name(options.name);
  const auto fail = [&](ErrorCode code, const std::string& text) {
    throw Error(code, "shared memory " + name + ": " + text);
  };
  while ((descriptor_ = ::shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) < 0) {
    if (errno != EEXIST) fail(ErrorCode::internal, "cannot be made: " + transport::errno_text());
    // Another job's, or what one left behind.
    const int other = ::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0);
    if (other < 0 && errno != ENOENT) fail(ErrorCode::refused, "belongs to somebody else: " + transport::errno_text());
    const bool in_use = other >= 0 && is_locked(other, 0);
    if (other >= 0) ::close(other);
    if (in_use) fail(ErrorCode::refused, "is in use: two jobs of the same name on this machine?");
    ::shm_unlink(name.c_str());
    if (runtime::now() >= deadline) fail(ErrorCode::deadline, "others keep making it");
  }
  name_to_remove_ = name;
  lock_byte(descriptor_, 0);
  // All of it now: memory that is not there when it is touched would be a SIGBUS.
  if (const int error = ::posix_fallocate(descriptor_, 0, static_cast<off_t>(bytes_)); error != 0) {
    errno = error;
    fail(ErrorCode::internal,
         "cannot have " + std::to_string(bytes_) + " bytes: " + transport::errno_text() + "; is /dev/shm large enough?");
  }
  map(descriptor_);
  auto* const header = new (memory_) Header;
  header->elements = elements_;
  header->members = size_;
  for (std::uint32_t i = 0; i < size_; ++i) new (&slots_[i]) MemberSlot;
  header->ready.store(magic, std::memory_order_release);
}

bool GroupMemory::attach(const GroupMemoryOptions& options) {
  const std::string name = shm_name(options.name);
  const transport::Descriptor found(::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0));
  if (found.number() < 0) {
    if (errno == ENOENT) return false;
    throw Error(ErrorCode::refused, "shared memory " + name + " cannot be opened: " + transport::errno_text());
  }
  struct stat status {};
  // Not ready, or left behind by a job that died.
  if (::fstat(found.number(), &status) != 0 || status.st_size < static_cast<off_t>(page) || !is_locked(found.number(), 0)) {
    return false;
  }
  void* const first = ::mmap(nullptr, page, PROT_READ, MAP_SHARED, found.number(), 0);
  if (first == MAP_FAILED) return false;
  const auto* const header = static_cast<const Header*>(first);
  const bool ready = header->ready.load(std::memory_order_acquire) == magic;
  const std::uint32_t members = header->members;
  const std::uint64_t elements = header->elements;
  ::munmap(first, page);
  if (!ready) return false;
  if (members != size_ || elements != elements_) {
    throw Error(ErrorCode::mismatch, "machine group '" + options.name + "': member 0 has " + std::to_string(members) +
                                         " members of " + std::to_string(elements) + " elements, member " +
                                         std::to_string(options.rank) + " " + std::to_string(size_) + " of " +
                                         std::to_string(elements_));
  }
  if (!lock_byte(found.number(), options.rank)) {
    throw Error(ErrorCode::refused,
                "machine group '" + options.name + "' has a member " + std::to_string(options.rank) + " already");
  }
  descriptor_ = ::fcntl(found.number(), F_DUPFD_CLOEXEC, 0);  // the same open file: the lock stays
  map(descriptor_);
  return true;
}

bool GroupMemory::alive(std::uint32_t rank) const {
  return descriptor_ < 0 || is_locked(descriptor_, rank);
}

void GroupMemory::remove_name() {
  if (const std::string name = std::exchange(name_to_remove_, {}); !name.empty()) ::shm_unlink(name.c_str());
}

}  // namespace netsum::collective
