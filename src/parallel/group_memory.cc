#include "parallel/group_memory.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <thread>
#include <utility>

#include "netsum/error.h"
#include "runtime/thread.h"
#include "transport/local/local_socket.h"

namespace netsum::parallel {
namespace {

constexpr std::size_t page = 4096;
constexpr std::uint32_t most_members = 256;
constexpr std::size_t longest_name = 80;
constexpr Duration retry_interval = std::chrono::milliseconds(2);

// Sent by member 0 with the memory: describes it.
struct GroupMessage {
  static constexpr std::uint64_t expected_magic = 0x32'7075'6f72'676eULL;  // "ngroup2"

  std::uint64_t magic = expected_magic;
  std::uint64_t elements = 0;
  std::uint64_t members = 0;
};

constexpr std::size_t rounded_up(std::size_t bytes, std::size_t to) {
  return (bytes + to - 1) / to * to;
}

std::size_t slots_bytes(std::uint32_t size) {
  return rounded_up(size * sizeof(MemberSlot), page);
}

struct flock byte_lock(std::uint32_t rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

Error group_error(ErrorCode code, const std::string& group, const std::string& what) {
  return {code, "machine group '" + group + "'" + what};
}

// Per user: another user's socket is never mistaken for it.
std::string socket_name(const std::string& group) {
  const auto allowed = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.';
  };
  if (group.empty() || group.size() > longest_name || !std::all_of(group.begin(), group.end(), allowed)) {
    throw Error(ErrorCode::bad_argument, "machine group '" + group + "' is not a valid name: use 1 to " +
                                             std::to_string(longest_name) + " letters, digits, '-', '_' and '.'");
  }
  return "netsum-group-" + std::to_string(::geteuid()) + "-" + group;
}

void pause(Duration patience) {
  const timespec time{0, static_cast<long>(patience.count())};
  ::nanosleep(&time, nullptr);
}

}  // namespace

// Hands member 0's memory to the other members, on a separate thread: member 0 may be busy.
class GroupMemory::Door {
 public:
  Door(transport::LocalListener listener, const GroupMemory& group)
      : listener_(std::move(listener)), memory_(group.memory_->descriptor()) {
    message_.elements = group.elements_;
    message_.members = group.size_;
    const runtime::SignalsBlocked blocked;
    thread_ = std::thread([this] {
      runtime::enter_thread("netsum-group");
      loop();
    });
  }

  ~Door() {
    closing_.store(true, std::memory_order_release);
    wakeup_.notify();
    thread_.join();
  }

 private:
  void loop() {
    while (!closing_.load(std::memory_order_acquire)) {
      pollfd descriptors[] = {{wakeup_.descriptor(), POLLIN, 0}, listener_.poll_for()};
      ::poll(descriptors, 2, listener_.most_wait_ms());
      for (const transport::LocalPeer& peer : listener_.accept()) {
        // The connection's first message: there is room for it. A member that does not get it connects again.
        static_cast<void>(transport::send_local(*peer.socket, std::as_bytes(std::span(&message_, 1)), memory_.get()));
      }
    }
  }

  transport::LocalListener listener_;
  const std::shared_ptr<transport::Descriptor> memory_;
  GroupMessage message_;
  runtime::Wakeup wakeup_;
  std::atomic<bool> closing_{false};
  std::thread thread_;
};

GroupMemory::GroupMemory(std::uint32_t size, std::size_t elements)
    : size_(size),
      elements_(elements),
      stride_(rounded_up(std::max<std::size_t>(elements, 1) * sizeof(float), page) / sizeof(float)),
      bytes_(slots_bytes(size) + size * stride_ * sizeof(float)) {}

GroupMemory::~GroupMemory() = default;

void GroupMemory::use(std::unique_ptr<transport::CommonMemory> memory) {
  memory_ = std::move(memory);
  slots_ = reinterpret_cast<MemberSlot*>(memory_->bytes().data());
  tensors_ = reinterpret_cast<float*>(memory_->bytes().data() + slots_bytes(size_));
}

void GroupMemory::make(const std::string& name) {
  use(std::make_unique<transport::CommonMemory>("netsum-" + name, bytes_));
  for (std::uint32_t i = 0; i < size_; ++i) new (&slots_[i]) MemberSlot;
}

std::shared_ptr<GroupMemory> GroupMemory::of_threads(std::uint32_t size, std::size_t elements) {
  std::shared_ptr<GroupMemory> made(new GroupMemory(size, elements));
  made->make("threads");
  return made;
}

std::shared_ptr<GroupMemory> GroupMemory::join(const GroupMemoryOptions& options, Time deadline) {
  if (options.size == 0 || options.size > most_members || options.rank >= options.size) {
    throw Error(ErrorCode::bad_argument, "a machine group has 1 to 256 members, and member " + std::to_string(options.rank) +
                                             " is not below the group size " + std::to_string(options.size));
  }
  const std::string address = socket_name(options.name);
  std::shared_ptr<GroupMemory> made(new GroupMemory(options.size, options.elements));
  if (options.rank == 0) {
    try {
      // First: of two candidates for member 0, only one gets the name.
      transport::LocalListener listener(address, false);
      made->make(options.name);
      static_cast<void>(made->lock(0));
      made->door_ = std::make_unique<Door>(std::move(listener), *made);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::refused)
        throw group_error(ErrorCode::internal, options.name, std::string(": ") + error.what());
      throw group_error(ErrorCode::refused, options.name, "'s name is in use: two jobs of the same name on this machine?");
    }
    return made;
  }
  while (!made->attach(options, deadline)) {
    if (runtime::now() >= deadline) {
      throw group_error(ErrorCode::deadline, options.name,
                        ": member 0 did not create the shared memory in time: does it run, with the same group name?");
    }
    pause(retry_interval);
  }
  return made;
}

bool GroupMemory::attach(const GroupMemoryOptions& options, Time deadline) {
  std::shared_ptr<transport::Descriptor> socket, attached;
  if (transport::connect_local(socket_name(options.name), socket) != transport::LocalOutcome::done) return false;
  if (const auto user = transport::user_of(*socket); user != ::geteuid()) {
    throw group_error(ErrorCode::refused, options.name,
                      " belongs to another user of this machine" +
                          (user ? " (user " + std::to_string(*user) + ")" : std::string()) + ": use another name");
  }
  pollfd descriptor{socket->number(), POLLIN, 0};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - runtime::now()).count();
  ::poll(&descriptor, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1000)));
  GroupMessage message;
  if (transport::receive_local(*socket, std::as_writable_bytes(std::span(&message, 1)), attached) !=
          transport::LocalOutcome::done ||
      message.magic != GroupMessage::expected_magic || !attached) {
    return false;
  }
  if (message.members != size_ || message.elements != elements_) {
    throw group_error(ErrorCode::mismatch, options.name,
                      ": member 0 expects " + std::to_string(message.members) + " members and " +
                          std::to_string(message.elements) + " elements, member " + std::to_string(options.rank) +
                          " expects " + std::to_string(size_) + " members and " + std::to_string(elements_) + " elements");
  }
  use(std::make_unique<transport::CommonMemory>(std::move(attached), bytes_));
  if (!lock(options.rank)) {
    throw group_error(ErrorCode::refused, options.name, " has a member " + std::to_string(options.rank) + " already");
  }
  return true;
}

bool GroupMemory::lock(std::uint32_t rank) {
  locks_ = memory_->opened_again();
  struct flock lock = byte_lock(rank);
  return ::fcntl(locks_->number(), F_OFD_SETLK, &lock) == 0;
}

bool GroupMemory::alive(std::uint32_t rank) const {
  if (!locks_) return true;
  struct flock lock = byte_lock(rank);  // in another open file description
  return ::fcntl(locks_->number(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

void GroupMemory::close_door() {
  door_.reset();
}

}  // namespace netsum::parallel
