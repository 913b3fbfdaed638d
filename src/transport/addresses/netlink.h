// One request to the kernel by netlink, and its one answer. The library for that, libmnl, is not linked: ranks need no
// further library, and Debian has no static one.
#pragma once

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "transport/system/socket.h"

namespace netsum::transport {

// A header, the kind's own, attributes.
class NetlinkMessage {
 public:
  template <class Kind>
  NetlinkMessage(std::uint16_t type, std::uint16_t flags, const Kind& kind) : bytes_(NLMSG_SPACE(sizeof kind)) {
    nlmsghdr header{};
    header.nlmsg_type = type;
    header.nlmsg_flags = static_cast<std::uint16_t>(NLM_F_REQUEST | flags);
    std::memcpy(bytes_.data(), &header, sizeof header);
    std::memcpy(bytes_.data() + NLMSG_HDRLEN, &kind, sizeof kind);
  }

  NetlinkMessage& add(std::uint16_t type, const void* value, std::size_t size) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + RTA_SPACE(size));
    const rtattr attribute{static_cast<std::uint16_t>(RTA_LENGTH(size)), type};
    std::memcpy(bytes_.data() + at, &attribute, sizeof attribute);
    std::memcpy(bytes_.data() + at + RTA_LENGTH(0), value, size);
    return *this;
  }

  [[nodiscard]] const std::vector<std::byte>& bytes() {
    const auto length = static_cast<std::uint32_t>(bytes_.size());
    std::memcpy(bytes_.data(), &length, sizeof length);
    return bytes_;
  }

 private:
  std::vector<std::byte> bytes_;
};

template <class Kind>
struct NetlinkAnswer {
  Kind kind{};
  std::vector<std::byte> attributes;

  // The value of the attribute, if it has exactly that size; in the second one, within another attribute.
  template <class Value>
  [[nodiscard]] std::optional<Value> find(std::uint16_t type) const {
    return value_of<Value>(payload_of(attributes, type));
  }
  template <class Value>
  [[nodiscard]] std::optional<Value> find_in(std::uint16_t outer, std::uint16_t type) const {
    return value_of<Value>(payload_of(payload_of(attributes, outer), type));
  }

 private:
  template <class Value>
  static std::optional<Value> value_of(std::span<const std::byte> payload) {
    Value value;
    if (payload.size() != sizeof value) return std::nullopt;
    std::memcpy(&value, payload.data(), sizeof value);
    return value;
  }
  // Empty: there is none.
  static std::span<const std::byte> payload_of(std::span<const std::byte> in, std::uint16_t type) {
    for (std::size_t at = 0; at + sizeof(rtattr) <= in.size();) {
      rtattr attribute;
      std::memcpy(&attribute, in.data() + at, sizeof attribute);
      if (attribute.rta_len < sizeof attribute || at + attribute.rta_len > in.size()) break;
      if ((attribute.rta_type & NLA_TYPE_MASK) == type)
        return in.subspan(at + RTA_LENGTH(0), attribute.rta_len - RTA_LENGTH(0));
      at += RTA_ALIGN(attribute.rta_len);
    }
    return {};
  }
};

// The kernel answers before send() returns, so this does not wait. None: it has no answer.
template <class Kind>
[[nodiscard]] std::optional<NetlinkAnswer<Kind>> ask_kernel(NetlinkMessage& request, std::uint16_t type,
                                                            int protocol = NETLINK_ROUTE) {
  const Descriptor netlink(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol));
  const std::vector<std::byte>& bytes = request.bytes();
  if (::send(netlink.number(), bytes.data(), bytes.size(), 0) < 0) return std::nullopt;
  alignas(nlmsghdr) std::array<std::byte, 8192> received{};
  const ssize_t size = ::recv(netlink.number(), received.data(), received.size(), MSG_DONTWAIT);
  nlmsghdr header{};
  NetlinkAnswer<Kind> answer;
  if (size < static_cast<ssize_t>(NLMSG_SPACE(sizeof answer.kind))) return std::nullopt;
  std::memcpy(&header, received.data(), sizeof header);
  if (header.nlmsg_type != type || header.nlmsg_len > static_cast<std::size_t>(size)) return std::nullopt;
  std::memcpy(&answer.kind, received.data() + NLMSG_HDRLEN, sizeof answer.kind);
  answer.attributes.assign(received.begin() + NLMSG_SPACE(sizeof answer.kind), received.begin() + header.nlmsg_len);
  return answer;
}

}  // namespace netsum::transport
