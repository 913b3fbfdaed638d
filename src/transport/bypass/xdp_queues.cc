#include "transport/bypass/xdp_queues.h"

#include <net/if.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "transport/addresses/links.h"
#include "transport/bypass/xdp_steering.h"

namespace netsum::transport {
namespace {

// All addresses of a host may be many.
constexpr std::chrono::milliseconds learning_every{1500};

}  // namespace

// The program on an interface, and whose its queues are. Any thread's.
class XdpLink {
 public:
  explicit XdpLink(const XdpInterface& interface)
      : interface_(interface), steering_(interface_, XdpSteering::Takes::some_ports), taken_(interface_.queues) {
    steering_.learn_stations();
    steering_.attach();
  }

  // This process's.
  static std::shared_ptr<XdpLink> at(const XdpInterface& interface) {
    static std::mutex mutex;
    static std::map<std::uint32_t, std::weak_ptr<XdpLink>> links;  // by index of the interface
    const std::lock_guard lock(mutex);
    std::shared_ptr<XdpLink> link = links[interface.index].lock();
    if (!link) links[interface.index] = link = std::make_shared<XdpLink>(interface);
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
  // By all lanes, but once in a while is enough.
  void learn_stations(Time at) {
    const std::lock_guard lock(mutex_);
    if (at < learned_ + learning_every) return;
    learned_ = at;
    try {
      steering_.learn_stations();
    } catch (const Error&) {  // what it knew holds
    }
  }

 private:
  const XdpInterface interface_;
  XdpSteering steering_;  // its calls are the kernel's, which any thread may make
  std::mutex mutex_;
  std::vector<bool> taken_;
  std::uint32_t owners_ = 0;
  Time learned_{};
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

void XdpShare::learn_stations(Time at) const {
  link_->learn_stations(at);
}

const XdpInterface& XdpShare::interface() const {
  return link_->interface();
}

namespace {

// Null: all queues are taken. Throws Error: as claim_xdp_queues().
std::unique_ptr<XdpShare> claim(const XdpInterface& interface, const XdpQueuesOptions& options) {
  constexpr std::size_t most_queues = 16;  // of a lane at an interface: it looks at them in turn
  std::shared_ptr<XdpLink> link = XdpLink::at(interface);
  const std::size_t part = interface.queues / std::max(1U, options.lanes);
  std::vector<std::uint32_t> queues = link->take(std::clamp<std::size_t>(part, 1, most_queues));
  if (queues.empty()) return nullptr;
  const std::uint32_t owner = link->new_owner();
  return std::make_unique<XdpShare>(std::move(link), owner, std::move(queues), options.buffer_bytes);
}

const char* mode_of(const XdpShare& share) {
  return share.sockets().front()->zero_copy() ? "zero copy" : "the kernel copies";
}

void tell(const XdpQueuesOptions& options, const XdpShare& share) {
  const std::string& name = share.interface().name;
  if (!options.attachments) return;
  if (is_up(share.interface().index)) {
    options.attachments->attached(name, std::string("AF_XDP, ") + mode_of(share));
  } else {
    options.attachments->detached(name, "it is down, or has no link: ip link set " + name + " up");
  }
}

}  // namespace

XdpQueues::XdpQueues(XdpQueuesOptions options, std::vector<std::unique_ptr<XdpShare>> shares)
    : options_(std::move(options)), shares_(std::move(shares)) {
  for (const auto& share : shares_) tell(options_, *share);
}
XdpQueues::~XdpQueues() = default;

bool XdpQueues::look_after(Time at) {
  bool changed = false;
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    const std::string& name = options_.interfaces[i];
    const std::uint32_t index = ::if_nametoindex(name.c_str());
    if (shares_[i] && shares_[i]->interface().index == index) {
      shares_[i]->learn_stations(at);
      tell(options_, *shares_[i]);
      continue;
    }
    changed = changed || shares_[i] != nullptr;
    shares_[i] = nullptr;
    std::string why = "it was removed";
    try {
      if (index != 0) {
        XdpInterface interface = xdp_interface(name);
        interface.patience = {};
        shares_[i] = claim(interface, options_);
        why = "all its queues are in use";
      }
    } catch (const Error& error) {
      why = error.what();
    }
    changed = changed || shares_[i] != nullptr;
    if (shares_[i]) {
      tell(options_, *shares_[i]);
    } else if (options_.attachments) {
      options_.attachments->detached(name, why + "; packets go through the kernel until AF_XDP is there again");
    }
  }
  return changed;
}

std::string XdpQueues::description(std::uint16_t port) const {
  std::string words;
  for (const auto& share : shares_) {
    if (!share) continue;
    const XdpInterface& interface = share->interface();
    const auto& queues = share->queues();
    words += (words.empty() ? "" : "; ") + interface.name + (queues.size() == 1 ? ", queue " : ", queues ");
    for (std::size_t i = 0; i < queues.size(); ++i) words += (i == 0 ? "" : ",") + std::to_string(queues[i]);
    words += std::string(" (") + mode_of(*share) + ")";
    if (queues.size() < interface.queues) {
      words += ", which receives UDP port " + std::to_string(port) + " by: ethtool -N " + interface.name +
               " flow-type udp4 dst-port " + std::to_string(port) + " action " + std::to_string(queues.front());
    }
  }
  return words;
}

std::unique_ptr<XdpQueues> claim_xdp_queues(const XdpQueuesOptions& options) {
  XdpQueuesOptions claimed = options;
  claimed.interfaces.clear();
  std::vector<std::unique_ptr<XdpShare>> shares;
  for (const std::string& name : options.interfaces) {
    auto share = claim(xdp_interface(name), options);
    if (!share) continue;
    shares.push_back(std::move(share));
    claimed.interfaces.push_back(name);
  }
  if (shares.empty()) return nullptr;
  return std::make_unique<XdpQueues>(std::move(claimed), std::move(shares));
}

}  // namespace netsum::transport
