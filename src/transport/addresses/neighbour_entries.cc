#include "transport/addresses/neighbour_entries.h"

#include <linux/neighbour.h>

#include <algorithm>

#include "transport/addresses/netlink.h"

namespace netsum::transport {

NeighbourEntries::~NeighbourEntries() {
  for (const Endpoint& each : known_) static_cast<void>(tell(RTM_DELNEIGH, NLM_F_ACK, each, {}));
}

bool NeighbourEntries::set(const Endpoint& address, const EthernetAddress& at) {
  if (!tell(RTM_NEWNEIGH, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE, address, at)) return false;
  if (std::find(known_.begin(), known_.end(), address) == known_.end()) known_.push_back(address);
  return true;
}

bool NeighbourEntries::tell(std::uint16_t type, std::uint16_t flags, const Endpoint& address,
                            const EthernetAddress& at) const {
  ndmsg entry{};
  entry.ndm_family = AF_INET;
  entry.ndm_ifindex = static_cast<int>(interface_);
  entry.ndm_state = NUD_PERMANENT;
  NetlinkMessage message(type, flags, entry);
  message.add(NDA_DST, address.address.data() + 12, 4);
  if (type == RTM_NEWNEIGH) message.add(NDA_LLADDR, at.data(), at.size());
  const auto answer = ask_kernel<nlmsgerr>(message, NLMSG_ERROR);
  return answer && answer->kind.error == 0;
}

}  // namespace netsum::transport
