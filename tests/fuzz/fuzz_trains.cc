// Segment trains against a kernel that is made up from the input: which messages it takes, which it refuses and how, what it
// delivers with which lengths and control data. Every datagram leaves once, whole and to whom it was for, or is counted as
// failed; and every byte received lies in the buffer that the kernel filled.
#include <fuzzer/FuzzedDataProvider.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <tuple>

#include "fuzz/harness.h"
#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "transport/datagram/segment_trains.h"
#include "transport/datagram/train_receiver.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function

using Key = std::tuple<Endpoint, std::size_t, std::uint64_t>;  // to whom, bytes, what

std::uint64_t hash_of(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0;  // of both ends: the middle of a datagram does not move alone
  for (const auto part :
       {bytes.first(std::min<std::size_t>(bytes.size(), 16)), bytes.last(std::min<std::size_t>(bytes.size(), 16))}) {
    for (const std::byte byte : part) hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3;
  }
  return hash;
}

struct Kernel {
  FuzzedDataProvider* input = nullptr;
  std::optional<Endpoint> peer;
  std::map<Key, int> expected;  // asked for and not delivered
  std::uint64_t delivered = 0;
  struct Filled {
    const std::byte* begin;
    std::size_t bytes, segment;
    bool congested;
  };
  std::vector<Filled> filled;

  void take(const msghdr& header) {
    std::vector<std::byte> bytes;
    for (std::size_t i = 0; i < header.msg_iovlen; ++i) {
      const auto* const begin = static_cast<const std::byte*>(header.msg_iov[i].iov_base);
      bytes.insert(bytes.end(), begin, begin + header.msg_iov[i].iov_len);
    }
    Endpoint to;
    if (header.msg_name == nullptr) {
      fuzz::check(peer.has_value(), "a socket that is not connected needs an address");
      to = *peer;
    } else {
      sockaddr_storage name{};
      std::memcpy(&name, header.msg_name, header.msg_namelen);
      to = transport::endpoint_of(name);
    }
    std::size_t segment = bytes.size();
    if (const cmsghdr* control = CMSG_FIRSTHDR(&header); control != nullptr) {
      std::uint16_t value = 0;
      std::memcpy(&value, CMSG_DATA(control), sizeof value);
      fuzz::check(control->cmsg_level == SOL_UDP && control->cmsg_type == UDP_SEGMENT && value > 0, "a segment's length");
      segment = value;
      fuzz::check((bytes.size() + segment - 1) / segment <= 64 && bytes.size() <= 65487, "no more than a kernel splits");
    }
    std::size_t begin = 0;
    do {
      const auto one = std::span(bytes).subspan(begin, std::min(segment, bytes.size() - begin));
      const auto found = expected.find({to, one.size(), hash_of(one)});
      fuzz::check(found != expected.end() && found->second > 0, "each datagram leaves once, whole, to whom it is for");
      --found->second;
      ++delivered;
      begin += segment;
    } while (begin < bytes.size());
  }
};

Kernel kernel;

constexpr Endpoint host(std::uint8_t number) {
  Endpoint endpoint;
  endpoint.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, number};
  if (number == 3) endpoint.address = {0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  endpoint.port = 7170;
  return endpoint;
}
const Endpoint hosts[] = {host(0), host(1), host(2), host(3)};

}  // namespace

extern "C" int __wrap_sendmmsg(int, mmsghdr* messages, unsigned count, int) {
  fuzz::check(count > 0, "no call for nothing");
  const int verdict = kernel.input->ConsumeIntegralInRange<int>(0, 15);
  constexpr int errors[] = {EAGAIN, EINTR, EINVAL, EMSGSIZE, EIO, ENOBUFS, ECONNREFUSED, EPERM};
  if (verdict < 8 && kernel.input->remaining_bytes() > 0) {
    errno = errors[verdict];
    return -1;
  }
  const unsigned taken = kernel.input->ConsumeBool() ? count : 1 + kernel.input->ConsumeIntegral<std::uint8_t>() % count;
  for (unsigned i = 0; i < taken; ++i) kernel.take(messages[i].msg_hdr);
  return static_cast<int>(taken);
}

extern "C" int __wrap_recvmmsg(int, mmsghdr* messages, unsigned count, int, timespec*) {
  FuzzedDataProvider& input = *kernel.input;
  constexpr int errors[] = {EAGAIN, ECONNREFUSED};
  if (input.ConsumeIntegralInRange<int>(0, 7) == 0) {
    errno = input.PickValueInArray(errors);
    return -1;
  }
  const unsigned taken = 1 + input.ConsumeIntegral<std::uint8_t>() % count;
  for (unsigned i = 0; i < taken; ++i) {
    msghdr& header = messages[i].msg_hdr;
    const iovec& buffer = *header.msg_iov;
    const std::size_t bytes = std::min<std::size_t>(input.ConsumeIntegral<std::uint16_t>(), buffer.iov_len);
    messages[i].msg_len = static_cast<unsigned>(bytes);
    sockaddr_storage name{};
    name.ss_family = input.PickValueInArray<sa_family_t>({AF_INET, AF_INET6});
    fuzz::check(header.msg_namelen >= sizeof name, "room for any address");
    std::memcpy(header.msg_name, &name, sizeof name);
    header.msg_namelen = name.ss_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    header.msg_flags = input.PickValueInArray<int>({0, 0, 0, 0, 0, MSG_TRUNC, MSG_CTRUNC});
    std::size_t segment = bytes;
    bool congested = false;
    fuzz::check(header.msg_controllen >= 2 * CMSG_SPACE(sizeof(int)), "room for a segment's length and a traffic class");
    header.msg_controllen = 0;
    const auto note = [&](int level, int type, auto value) {
      std::byte* const place = static_cast<std::byte*>(header.msg_control) + header.msg_controllen;
      const cmsghdr head{CMSG_LEN(sizeof value), level, type};
      std::memcpy(place, &head, sizeof head);
      std::memcpy(place + CMSG_LEN(0), &value, sizeof value);
      header.msg_controllen += CMSG_SPACE(sizeof value);
    };
    for (int left = input.ConsumeIntegralInRange<int>(0, 2); left > 0; --left) {  // in any order; the last of a kind counts
      const int kind = input.ConsumeIntegralInRange<int>(0, 4);
      const auto tos = input.ConsumeIntegral<std::uint8_t>();
      if (kind == 0) {  // control data that nobody asked for
        note(SOL_SOCKET, SO_RXQ_OVFL, int{tos});
      } else if (kind == 1) {
        note(IPPROTO_IP, IP_TOS, tos);
        congested = tos % 4 == 3;
      } else if (kind == 2) {
        note(IPPROTO_IPV6, IPV6_TCLASS, int{tos});
        congested = tos % 4 == 3;
      } else {
        const int value = input.PickValueInArray<int>({0, -1, 1, 1000, 1472, 65535, 70000});
        note(SOL_UDP, UDP_GRO, value);
        segment = value > 0 ? static_cast<std::size_t>(value) : bytes;
      }
    }
    if (header.msg_flags == 0) {
      kernel.filled.push_back({static_cast<const std::byte*>(buffer.iov_base), bytes, segment, congested});
    }
  }
  return static_cast<int>(taken);
}

namespace {

void send(FuzzedDataProvider& input) {
  transport::Counters counters;
  const bool ipv6 = input.ConsumeBool();
  if (input.ConsumeBool()) kernel.peer = hosts[0];
  transport::SegmentTrains trains(-1, ipv6, kernel.peer, input.ConsumeBool(), nullptr, counters);
  std::deque<std::vector<std::byte>> lent;  // until the next flush
  std::uint64_t asked = 0, number = 0;
  const auto fill = [&](std::span<std::byte> place) {
    ++number;
    std::fill(place.begin(), place.end(), static_cast<std::byte>(number));
    if (!place.empty()) std::memcpy(place.data(), &number, std::min(place.size(), sizeof number));
  };
  const auto expect = [&](const Endpoint& to, std::span<const std::byte> bytes) {
    ++kernel.expected[{to, bytes.size(), hash_of(bytes)}];
    ++asked;
  };
  while (input.remaining_bytes() > 0) {
    const std::size_t bytes = input.ConsumeBool() ? input.PickValueInArray<std::size_t>({0, 1, 20, 1024, 1472, 9000, 65507})
                                                  : input.ConsumeIntegralInRange<std::size_t>(0, 2000);
    const int copies = input.PickValueInArray<int>({1, 1, 2, 8, 70});
    const int action = input.ConsumeIntegralInRange<int>(0, 7);
    const std::size_t first = input.ConsumeIntegralInRange<std::size_t>(0, std::size(hosts) - 1);
    const std::span<const Endpoint> group(hosts + first,
                                          input.ConsumeIntegralInRange<std::size_t>(0, std::size(hosts) - first));
    for (int i = 0; i < copies; ++i) {
      if (action < 4) {
        const auto place = trains.datagram(hosts[first], bytes);
        fuzz::check(place.size() == bytes, "a place of the size asked for");
        fill(place);
        expect(hosts[first], place);
      } else if (action < 7) {
        fill(lent.emplace_back(bytes));
        for (const Endpoint& to : group) expect(to, lent.back());
        trains.multicast(lent.back(), group);
      }
    }
    if (action == 7) {
      trains.flush();
      lent.clear();
    }
  }
  bool refused = false;
  try {
    static_cast<void>(trains.datagram(hosts[0], transport::max_datagram_bytes + 1));
  } catch (const Error&) {
    refused = true;
  }
  fuzz::check(refused, "more than a datagram holds is refused");
  trains.flush();
  fuzz::check(counters.packets_sent == kernel.delivered, "what the kernel took is counted");
  fuzz::check(kernel.delivered + counters.send_failures == asked, "each datagram is sent or counted as failed");
}

void receive(FuzzedDataProvider& input) {
  transport::Counters counters;
  transport::TrainReceiver receiver(-1, input.ConsumeBool(), nullptr, counters);
  std::uint64_t received = 0;
  while (input.remaining_bytes() > 0) {
    kernel.filled.clear();
    const std::span<const RxView> views = receiver.receive();
    received += views.size();
    std::size_t next = 0;
    for (const Kernel::Filled& one : kernel.filled) {
      std::size_t begin = 0;
      do {
        fuzz::check(next < views.size(), "no datagram is missing");
        const RxView& view = views[next++];
        fuzz::check(view.bytes.data() == one.begin + begin && view.bytes.size() == std::min(one.segment, one.bytes - begin),
                    "a train is cut where its segments end");
        fuzz::check(view.congested == one.congested, "each datagram of a train is as congested as the train");
        begin += view.bytes.size();
      } while (begin < one.bytes);
    }
    fuzz::check(next == views.size(), "nothing is received that did not arrive");
  }
  fuzz::check(counters.packets_received == received, "what is received is counted");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  kernel = {};
  kernel.input = &input;
  input.ConsumeBool() ? send(input) : receive(input);
  return 0;
}
