#include "transport/bypass/xdp_queues.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "transport/bypass/xdp_steering.h"

namespace netsum::transport {

// The program on an interface, and whose its queues are. Any thread's.
class XdpLink {
 public:
  explicit XdpLink(const std::string& name)
      : interface_(xdp_interface(name)), steering_(interface_, XdpSteering::Takes::some_ports), taken_(interface_.queues) {
    steering_.attach();
  }

  // This process's.
  static std::shared_ptr<XdpLink> at(const std::string& name) {
    static std::mutex mutex;
    static std::map<std::uint32_t, std::weak_ptr<XdpLink>> links;  // by index of the interface
    const std::uint32_t index = xdp_interface(name).index;
    const std::lock_guard lock(mutex);
    std::shared_ptr<XdpLink> link = links[index].lock();
    if (!link) links[index] = link = std::make_shared<XdpLink>(name);
    return link;
  }

  [[nodiscard]] const XdpInterface& interface() const { return interface_; }

  // Empty: all are taken.
  [[nodiscard]] std::vector<std::uint32_t> take(std::size_t most) {
    const std::lock_guard lock(mutex_);
    std::vector<std::uint32_t> found;
    for (std::uint32_t queue = 0; queue < interface_.queues && found.size() < most; ++queue) {
      if (taken_[queue]) continue;
      taken_[queue] = true;
      found.push_back(queue);
    }
    return found;
  }
  void give_back(const std::vector<std::uint32_t>& queues) {
    const std::lock_guard lock(mutex_);
    for (const std::uint32_t queue : queues) taken_[queue] = false;
  }
  // 0 is nobody.
  [[nodiscard]] std::uint32_t new_owner() {
    const std::lock_guard lock(mutex_);
    return ++owners_;
  }
  [[nodiscard]] XdpSteering& steering() { return steering_; }

 private:
  const XdpInterface interface_;
  XdpSteering steering_;  // its calls are the kernel's, which any thread may make
  std::mutex mutex_;
  std::vector<bool> taken_;
  std::uint32_t owners_ = 0;
};

XdpShare::XdpShare(std::shared_ptr<XdpLink> link, std::uint32_t owner, std::vector<std::uint32_t> queues, std::size_t bytes)
    : link_(std::move(link)), owner_(owner), queues_(std::move(queues)) {
  try {
    for (const std::uint32_t queue : queues_) {
      sockets_.push_back(std::make_unique<XdpSocket>(link_->interface(), queue, bytes / queues_.size()));
      link_->steering().add_socket(queue, *sockets_.back(), owner_);
    }
  } catch (...) {
    link_->give_back(queues_);
    throw;
  }
}

XdpShare::~XdpShare() {
  if (port_ != 0) link_->steering().remove_port(port_);
  sockets_.clear();
  link_->give_back(queues_);
}

void XdpShare::open(const Endpoint& local) {
  link_->steering().add_port(local, owner_);
  port_ = local.port;
}

const XdpInterface& XdpShare::interface() const {
  return link_->interface();
}

XdpQueues::XdpQueues(std::vector<std::unique_ptr<XdpShare>> shares) : shares_(std::move(shares)) {}
XdpQueues::~XdpQueues() = default;

std::string XdpQueues::description(std::uint16_t port) const {
  std::string words;
  for (const auto& share : shares_) {
    const XdpInterface& interface = share->interface();
    const auto& queues = share->queues();
    words += (words.empty() ? "" : "; ") + interface.name + (queues.size() == 1 ? ", queue " : ", queues ");
    for (std::size_t i = 0; i < queues.size(); ++i) words += (i == 0 ? "" : ",") + std::to_string(queues[i]);
    words += share->sockets().front()->zero_copy() ? " (zero copy)" : " (the kernel copies)";
    if (queues.size() < interface.queues) {
      words += ", which receives UDP port " + std::to_string(port) + " by: ethtool -N " + interface.name +
               " flow-type udp4 dst-port " + std::to_string(port) + " action " + std::to_string(queues.front());
    }
  }
  return words;
}

std::unique_ptr<XdpQueues> claim_xdp_queues(const XdpQueuesOptions& options) {
  constexpr std::size_t most_queues = 16;  // of a lane at an interface: it looks at them in turn
  std::vector<std::unique_ptr<XdpShare>> shares;
  for (const std::string& name : options.interfaces) {
    std::shared_ptr<XdpLink> link = XdpLink::at(name);
    const std::size_t part = link->interface().queues / std::max(1U, options.lanes);
    std::vector<std::uint32_t> queues = link->take(std::clamp<std::size_t>(part, 1, most_queues));
    if (queues.empty()) continue;
    const std::uint32_t owner = link->new_owner();
    shares.push_back(std::make_unique<XdpShare>(std::move(link), owner, std::move(queues), options.buffer_bytes));
  }
  if (shares.empty()) return nullptr;
  return std::make_unique<XdpQueues>(std::move(shares));
}

}  // namespace netsum::transport
