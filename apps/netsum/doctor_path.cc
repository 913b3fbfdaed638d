// The way to a switch: its ports, its packets' length, and its speed.
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "control/client.h"
#include "doctor.h"
#include "netsum/error.h"
#include "protocol/switchml/probe.h"
#include "session/words.h"
#include "transport/addresses/addresses.h"
#include "transport/addresses/interfaces.h"
#include "transport/addresses/translation.h"
#include "transport/datagram/path.h"
#include "transport/datagram/udp.h"
#include "wire/switchml.h"

namespace netsum::app {
namespace {

using Level = Finding::Level;

constexpr std::chrono::milliseconds for_control{5000};  // for the control channel
constexpr Duration for_one = std::chrono::milliseconds(150);
constexpr std::uint32_t least_mtu = 576;

Time now() {
  return Time(std::chrono::steady_clock::now().time_since_epoch());
}

struct Measured {
  bool answered = false;
  Duration round_trip{};
  double packets_per_second = 0;  // 0: unknown
};

// Probes of `bytes` each: `singles` one after the other, and then a train.
Measured probe(const Endpoint& lane, std::size_t bytes, std::uint32_t singles, std::uint32_t train) {
  transport::UdpOptions options;
  options.ipv6 = !transport::is_ipv4(lane);
  options.bind = transport::path_towards(lane).local;
  options.bind.port = 0;
  options.peer = lane;
  transport::Udp socket(options);
  switchml::ProbeConfig config;
  config.aggregator = lane;
  config.packet_bytes = static_cast<std::uint32_t>(std::max(bytes, wire::switchml::probe_reply_bytes));
  config.singles = singles;
  config.train = train;
  config.patience = for_one;
  config.tries = 3;
  switchml::Probe path(config);
  path.start(now(), socket.sink());
  socket.sink().flush();
  std::uint32_t replies = 0;
  Time first{}, last{};
  while (!path.done()) {
    pollfd descriptor{socket.descriptor(), POLLIN, 0};
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(path.next_timeout() - now()).count();
    ::poll(&descriptor, 1, static_cast<int>(std::clamp<std::int64_t>(wait, 0, 1000)));
    const auto received = socket.receive();
    const Time at = now();
    if (!received.empty()) {
      const std::uint32_t before = replies;
      replies += static_cast<std::uint32_t>(received.size());
      if (before <= singles && replies > singles) first = at;
      last = at;
    }
    path.on_packets(received, at, socket.sink());
    path.on_timer(at, socket.sink());
    socket.sink().flush();
  }
  Measured measured{path.answered(), path.round_trip(), 0};
  const double seconds = std::chrono::duration<double>(last - first).count();
  if (train != 0 && replies > singles + train / 2 && seconds > 0) {
    measured.packets_per_second = (replies - singles - 1) / seconds;
  }
  return measured;
}

// The payload of an IP packet of `mtu` bytes.
std::size_t payload_of(const Endpoint& lane, std::uint32_t mtu) {
  return mtu - (transport::header_bytes(lane) - 14);
}

std::string name_of(const Endpoint& local) {
  const std::string text = transport::to_string(local);
  return text.substr(0, text.rfind(':'));
}

std::string ports(const std::vector<Endpoint>& lanes) {
  std::string text;
  for (const Endpoint& lane : lanes) text += (text.empty() ? "" : ", ") + std::to_string(lane.port);
  return text;
}

// The lanes that answer.
std::vector<Endpoint> check_ports(const std::vector<Endpoint>& lanes, const std::string& address, Findings& findings) {
  std::vector<Endpoint> open, closed;
  for (const Endpoint& lane : lanes) {
    (probe(lane, wire::switchml::probe_reply_bytes, 1, 0).answered ? open : closed).push_back(lane);
  }
  if (closed.empty()) {
    findings.push_back({"firewall", Level::good, address + " answers on TCP, and on UDP " + ports(open)});
  } else if (transport::seems_translated(transport::resolve(address), closed.front())) {
    findings.push_back({"translation", Level::wrong,
                        address + " answers on TCP, but not on UDP " + transport::to_string(closed.front()) +
                            ", where it receives data: its address or port is translated on the way (NAT, docker -p, a "
                            "Kubernetes service), which data packets do not pass",
                        "docker run --network host ..., hostNetwork: true      (ranks and switches on the hosts' network)"});
  } else {
    findings.push_back(
        {"firewall", Level::wrong,
         address + " answers on TCP, but not on UDP " + ports(closed) + ": a firewall there, here or on the way drops it",
         "nft insert rule inet filter input udp dport '{ " + ports(closed) +
             " }' accept      (on the switch's host; see `nft list ruleset` at both ends)"});
  }
  return open;
}

// The longest IP packets that get there. What the route says may be wrong: who drops longer ones need not say so.
std::uint32_t check_path(const Endpoint& lane, const std::string& address, Findings& findings) {
  const transport::Path path = transport::path_towards(lane);
  const auto passes = [&](std::uint32_t mtu) { return probe(lane, payload_of(lane, mtu), 1, 0).answered; };
  if (path.mtu <= least_mtu || passes(path.mtu)) {
    findings.push_back({"path", Level::good, "packets of " + std::to_string(path.mtu) + " bytes reach " + address});
    return path.mtu;
  }
  std::uint32_t most = least_mtu, least = path.mtu;
  for (const std::uint32_t usual : {1280U, 1400U, 1450U, 1500U, 4200U, 9000U}) {
    if (usual <= most || usual >= least) continue;
    (passes(usual) ? most : least) = usual;
    if (least == usual) break;
    if (!passes(usual + 1)) {
      least = usual + 1;
      break;
    }
  }
  while (most + 1 < least) {
    const std::uint32_t middle = most + (least - most) / 2;
    (passes(middle) ? most : least) = middle;
  }
  findings.push_back({"mtu", Level::wrong,
                      "packets of " + std::to_string(path.mtu) + " bytes, this interface's MTU, do not reach " + address +
                          ", and no router reports it: the longest packets that arrive have " + std::to_string(most),
                      "ip link set dev " + interface_with(path.local) + " mtu " + std::to_string(most) +
                          "      (or raise the MTU of the switch's interface, and of those on the way)"});
  return most;
}

void check_speed(const Endpoint& lane, std::uint32_t mtu, const std::string& address, std::uint32_t threads,
                 Findings& findings) {
  Duration round_trip = Duration::max();
  double packets = 0;
  const std::size_t bytes = payload_of(lane, mtu);
  for (int i = 0; i < 3; ++i) {
    const Measured measured = probe(lane, bytes, 8, 64);
    if (!measured.answered) continue;
    round_trip = std::min(round_trip, measured.round_trip);
    packets = std::max(packets, measured.packets_per_second);
  }
  if (round_trip == Duration::max()) return;
  const double values = static_cast<double>(bytes - std::min<std::size_t>(bytes, wire::switchml::chunk_header_bytes + 4));
  const double bits = packets * values * 8;
  char text[256];
  std::snprintf(text, sizeof text, "a round trip to %s takes %.0f us", address.c_str(),
                std::chrono::duration<double, std::micro>(round_trip).count());
  std::string what = text;
  if (packets > 0) {
    std::snprintf(
        text, sizeof text,
        "; a train of packets passes one of its %u threads at %.2f Gbit/s: about %.0f ms for an all-reduce of 100 MB, "
        "and longer where ranks share the way",
        threads, bits / 1e9, 0.8 / (bits / 1e9) * 1e3);
    what += text;
  }
  const bool slow = round_trip > std::chrono::milliseconds(2);
  findings.push_back(
      {"speed", slow ? Level::advice : Level::good, what,
       slow ? "ping -c 5 " + address.substr(0, address.rfind(':')) + "      (the switch should be in the same rack)" : ""});
}

}  // namespace

std::optional<Endpoint> check_switch(const SwitchToAsk& asked, Findings& findings) {
  const Endpoint control = transport::resolve(asked.address);
  std::optional<Endpoint> local;
  try {
    local = transport::path_towards(control).local;
    local->port = 0;
  } catch (const Error& error) {
    findings.push_back(
        {"route", Level::wrong, error.what(), "ip route get " + asked.address.substr(0, asked.address.rfind(':'))});
    return std::nullopt;
  }
  control::Hello hello;
  try {
    control::Client client({asked.address, asked.token, asked.tls_ca});
    hello = client.hello(for_control);
  } catch (const Error& error) {
    const bool refused = error.code() == ErrorCode::refused;
    const bool lacks_ca = refused && asked.tls_ca.empty() && std::string(error.what()).find("--tls-ca") != std::string::npos;
    findings.push_back(
        {lacks_ca  ? "tls"
         : refused ? "token"
                   : "control",
         Level::wrong, error.what(),
         lacks_ca  ? "--tls-ca FILE: the CA of the daemon's certificate, or that certificate if it signs itself"
         : refused ? "--token-file FILE, as the daemon has"
                   : "netsum switch --listen " + asked.address + " ...      (is it running, and is TCP open?)"});
    return local;
  }
  for (Endpoint& lane : hello.lanes) {
    if (!transport::is_unspecified(lane)) continue;
    lane.address = control.address;
    lane.scope = control.scope;
  }
  if (hello.lanes.empty()) return local;
  const bool near = hello.same_host && transport::is_of_this_host(hello.lanes.front());
  if (near) {
    findings.push_back(
        {"path", Level::good,
         asked.address + " is on this host (" + name_of(*local) + "): run this on another one to see the network"});
  }
  const std::vector<Endpoint> open = check_ports(hello.lanes, asked.address, findings);
  if (open.empty()) return local;
  const std::uint32_t mtu = check_path(open.front(), asked.address, findings);
  check_speed(open.front(), mtu, asked.address, hello.threads, findings);
  if (hello.receive_bytes != 0 && hello.receive_bytes < transport::socket_buffer_bytes) {
    findings.push_back({"rmem", Level::wrong,
                        "the receive buffers of " + asked.address + " have " + session::in_bytes(hello.receive_bytes) +
                            ": jobs get short windows, or lose bursts",
                        "sysctl -w net.core.rmem_max=" + std::to_string(transport::socket_buffer_bytes) +
                            "      (on the switch's host; then start the daemon again)"});
  }
  return local;
}

}  // namespace netsum::app
