#include "daemon/broker.h"

#include <poll.h>
#include <pwd.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <mutex>
#include <thread>
#include <utility>

#include "daemon/local_peers.h"
#include "netsum/error.h"
#include "runtime/thread.h"
#include "transport/local/local_socket.h"
#include "transport/system/random.h"

namespace netsum::daemon {
namespace {

std::string random_name() {
  constexpr char digits[] = "0123456789abcdef";
  std::string name = "netsum-";
  for (int word = 0; word < 2; ++word) {
    std::uint64_t bits = transport::random_number();
    for (int i = 0; i < 16; ++i, bits >>= 4) name += digits[bits & 15];
  }
  return name;
}

// Connections that belong to no job yet: with their segments, they take half of this process's descriptor limit.
std::size_t most_pending() {
  rlimit descriptors{};
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return 256;
  return static_cast<std::size_t>(std::clamp<rlim_t>(descriptors.rlim_cur / 4, 16, 1024));
}

uid_t user_called(const std::string& name) {
  uid_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (!name.empty() && error == std::errc() && end == name.data() + name.size()) return number;
  passwd entry{};
  passwd* found = nullptr;
  std::array<char, 4096> text;
  if (::getpwnam_r(name.c_str(), &entry, text.data(), text.size(), &found) == 0 && found != nullptr) return found->pw_uid;
  throw Error(ErrorCode::bad_argument, "local users: there is no user '" + name + "' on this host");
}

std::vector<uid_t> users_called(const std::vector<std::string>& names) {
  std::vector<uid_t> users;
  for (const std::string& name : names) users.push_back(user_called(name));
  return users;
}

// The shorter of two waits; -1: for ever.
int shorter(int a, int b) {
  return a < 0 ? b : b < 0 ? a : std::min(a, b);
}

}  // namespace

struct Broker::Impl {
  explicit Impl(const std::vector<std::string>& users) : listener(name, true, users_called(users)) {}

  std::string name = random_name();
  transport::LocalListener listener;
  runtime::Mailbox mailbox;
  bool stopping = false;
  LocalPeers peers{most_pending(), [this](std::uint64_t job_epoch, std::uint32_t rank) {
                     const std::lock_guard lock(lost_mutex);
                     if (on_lost) on_lost(job_epoch, rank);
                   }};
  std::mutex lost_mutex;
  OnLost on_lost;
  std::thread thread;

  void loop() {
    std::vector<pollfd> descriptors;
    while (!stopping) {
      descriptors = {{mailbox.descriptor(), POLLIN, 0}, listener.poll_for()};
      peers.poll_for(descriptors);
      ::poll(descriptors.data(), descriptors.size(), shorter(listener.most_wait_ms(), peers.most_wait_ms(runtime::now())));
      if (descriptors[0].revents != 0) mailbox.run_all();
      peers.serve(std::span(descriptors).subspan(2), runtime::now());
      if (!peers.has_room()) {
        listener.rest();
        continue;
      }
      for (transport::LocalPeer& peer : listener.accept()) peers.add(std::move(peer), runtime::now());
    }
  }
};

Broker::Broker(const std::vector<std::string>& users, OnLost on_lost) : impl_(std::make_unique<Impl>(users)) {
  impl_->on_lost = std::move(on_lost);
  const runtime::SignalsBlocked blocked;
  impl_->thread = std::thread([impl = impl_.get()] {
    runtime::enter_thread("netsum-broker");
    impl->loop();
  });
}

Broker::~Broker() {
  silence();
  impl_->mailbox.post([impl = impl_.get()] { impl->stopping = true; });
  impl_->thread.join();
}

const std::string& Broker::name() const {
  return impl_->name;
}

void Broker::start_job(std::uint64_t job_epoch, const std::vector<std::uint64_t>& tickets) {
  impl_->mailbox.post([impl = impl_.get(), job_epoch, tickets] { impl->peers.start_job(job_epoch, tickets); });
}

void Broker::stop_job(std::uint64_t job_epoch) {
  impl_->mailbox.post([impl = impl_.get(), job_epoch] { impl->peers.stop_job(job_epoch); });
}

void Broker::silence() {
  const std::lock_guard lock(impl_->lost_mutex);
  impl_->on_lost = nullptr;
}

}  // namespace netsum::daemon
