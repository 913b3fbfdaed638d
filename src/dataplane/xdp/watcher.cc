#include "dataplane/xdp/watcher.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "netsum/error.h"

namespace netsum::dataplane::xdp {
namespace {

// One change is many messages, as when an interface comes up.
constexpr int settling_milliseconds = 100;

}  // namespace

Watcher::Watcher(std::function<void()> changed)
    : news_(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE)), end_(::eventfd(0, EFD_CLOEXEC)) {
  sockaddr_nl groups{};
  groups.nl_family = AF_NETLINK;
  groups.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV4_ROUTE | RTMGRP_NEIGH;
  if (end_.number() < 0 || ::bind(news_.number(), reinterpret_cast<const sockaddr*>(&groups), sizeof groups) != 0) {
    throw Error(ErrorCode::internal,
                "cannot watch this host's interfaces and neighbours by netlink: " + transport::errno_text());
  }
  thread_ = std::thread([this, changed = std::move(changed)] { watch(changed); });
}

Watcher::~Watcher() {
  ::eventfd_write(end_.number(), 1);
  thread_.join();
}

bool Watcher::ends_within(int milliseconds) const {
  pollfd end{end_.number(), POLLIN, 0};
  return ::poll(&end, 1, milliseconds) > 0;
}

// What the messages say is not read: whoever hears of a change asks for all of it. So none is missed when too many come.
void Watcher::watch(const std::function<void()>& changed) const {
  for (;;) {
    changed();
    std::array<pollfd, 2> either{pollfd{news_.number(), POLLIN, 0}, pollfd{end_.number(), POLLIN, 0}};
    ::poll(either.data(), either.size(), -1);
    if (ends_within(settling_milliseconds)) return;
    std::array<std::byte, 8192> unread{};
    while (::recv(news_.number(), unread.data(), unread.size(), 0) > 0 || errno == ENOBUFS) {
    }
  }
}

}  // namespace netsum::dataplane::xdp
