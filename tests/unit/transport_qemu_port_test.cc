// Ports of QEMU's kind, between sockets of this process that speak as a guest does; and what holds of any set of ports.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <string>

#include "base/copied.h"
#include "netsum/error.h"
#include "transport/addresses/addresses.h"
#include "transport/ports/frame_queue.h"
#include "transport/ports/port_set.h"
#include "unit/transport_fixture.h"

namespace netsum::transport {
namespace {

constexpr std::size_t header = virtio_net_header_bytes;

// A frame as a port has it: with a header in front that says nothing.
Bytes with_header(const Bytes& frame, const VirtioNetHeader& says = {}) {
  Bytes all(header);
  write_virtio_net_header(all, says);
  all.insert(all.end(), frame.begin(), frame.end());
  return all;
}

// The guest's end of a wire.
class Guest {
 public:
  virtual ~Guest() = default;
  virtual void send(const Bytes& frame) = 0;
  [[nodiscard]] int socket() const { return socket_->number(); }

  // The next frame; none if there is none in time.
  std::optional<Bytes> receive(int patience_ms = 5000) {
    pollfd readable{socket(), POLLIN, 0};
    if (::poll(&readable, 1, patience_ms) != 1) return {};
    Bytes frame(70'000);
    const ssize_t size = ::recv(socket(), frame.data(), frame.size(), 0);
    if (size < 0) return {};
    frame.resize(static_cast<std::size_t>(size));
    return frame;
  }

 protected:
  std::optional<Descriptor> socket_;
};

class UnixGuest final : public Guest {
 public:
  UnixGuest(const std::string& path, std::string wire) : path_(path), wire_(std::move(wire)) {
    socket_.emplace(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    const sockaddr_un address = address_of(path_);
    EXPECT_EQ(::bind(socket(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  ~UnixGuest() override { ::unlink(path_.c_str()); }
  void send(const Bytes& frame) override {
    const sockaddr_un address = address_of(wire_);
    EXPECT_EQ(::sendto(socket(), frame.data(), frame.size(), 0, reinterpret_cast<const sockaddr*>(&address), sizeof address),
              static_cast<ssize_t>(frame.size()));
  }

 private:
  static sockaddr_un address_of(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    return address;
  }
  std::string path_, wire_;
};

class UdpGuest final : public Guest {
 public:
  UdpGuest(const std::string& address, const std::string& wire) : wire_(resolve(wire)) {
    const Endpoint own = resolve(address);
    ipv6_ = !is_ipv4(own);
    socket_.emplace(::socket(ipv6_ ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    EXPECT_TRUE(set_option(socket(), SOL_SOCKET, SO_RCVBUF, 1 << 20));
    sockaddr_storage storage{};
    const socklen_t size = to_sockaddr(own, ipv6_, storage);
    EXPECT_EQ(::bind(socket(), reinterpret_cast<const sockaddr*>(&storage), size), 0);
  }
  void send(const Bytes& frame) override {
    sockaddr_storage storage{};
    const socklen_t size = to_sockaddr(wire_, ipv6_, storage);
    EXPECT_EQ(::sendto(socket(), frame.data(), frame.size(), 0, reinterpret_cast<const sockaddr*>(&storage), size),
              static_cast<ssize_t>(frame.size()));
  }

 private:
  Endpoint wire_;
  bool ipv6_ = false;
};

// Addresses of ports that were free just now. As long as this lives nobody gets one of them, also not from here a second
// time.
class FreeAddresses {
 public:
  explicit FreeAddresses(std::string host) : host_(std::move(host)) {}
  std::string next() {
    const bool ipv6 = host_ == "[::1]";
    held_.emplace_back(::socket(ipv6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage address{};
    socklen_t size = to_sockaddr(resolve(host_ + ":0"), ipv6, address);
    EXPECT_EQ(::bind(held_.back().number(), reinterpret_cast<const sockaddr*>(&address), size), 0);
    ::getsockname(held_.back().number(), reinterpret_cast<sockaddr*>(&address), &size);
    return to_string(endpoint_of(address));
  }

 private:
  std::string host_;
  std::deque<Descriptor> held_;
};

struct Wire {
  std::string local, remote;
  [[nodiscard]] std::string port() const { return "qemu:" + local + "," + remote; }
};

class QemuPorts : public testing::TestWithParam<const char*> {
 protected:
  QemuPorts() {
    char pattern_of_name[] = "/tmp/netsum-ports-XXXXXX";
    folder_ = ::mkdtemp(pattern_of_name);
    const std::string kind = GetParam();
    FreeAddresses addresses(kind == "udp" ? "127.0.0.1" : "[::1]");
    for (int i = 0; i < 3; ++i) {
      if (kind == "unix") {
        wires_.push_back({folder_ + "/wire" + std::to_string(i), folder_ + "/vm" + std::to_string(i)});
      } else {
        wires_.push_back({addresses.next(), addresses.next()});
      }
    }
  }
  ~QemuPorts() override {
    guests_.clear();
    set_.reset();
    std::filesystem::remove_all(folder_);
  }

  std::unique_ptr<Guest> guest(std::size_t number) const {
    const Wire& wire = wires_[number];
    if (unix_sockets()) return std::make_unique<UnixGuest>(wire.remote, wire.local);
    return std::make_unique<UdpGuest>(wire.remote, wire.local);
  }
  [[nodiscard]] static bool unix_sockets() { return std::string(GetParam()) == "unix"; }

  // Three ports, and a guest at each.
  void open(const PortOptions& options = {}) {
    open_without_guests(options);
    for (std::size_t i = 0; i < wires_.size(); ++i) guests_.push_back(guest(i));
  }
  void open_without_guests(const PortOptions& options = {}) {
    std::vector<std::string> texts;
    for (const Wire& wire : wires_) texts.push_back(wire.port());
    set_ = std::make_unique<PortSet>(open_ports(texts, options));
  }
  [[nodiscard]] const Endpoint& endpoint(std::size_t number) const { return set_->endpoints()[number]; }
  [[nodiscard]] PortCounters counters(std::size_t number) const { return set_->port(number).counters(); }

  void send(std::size_t to, const Bytes& all) {
    write(set_->sink(), endpoint(to), all);
    set_->sink().flush();
  }

  std::string folder_;
  std::vector<Wire> wires_;
  std::unique_ptr<PortSet> set_;
  std::vector<std::unique_ptr<Guest>> guests_;
};

INSTANTIATE_TEST_SUITE_P(All, QemuPorts, testing::Values("unix", "udp", "udp_ipv6"),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST_P(QemuPorts, HandsOutFramesWithAnEmptyHeaderAndTheirPort) {
  open();
  EXPECT_TRUE(set_->receive().empty());
  for (const std::size_t number : {std::size_t{2}, std::size_t{0}}) {
    guests_[number]->send(pattern(100 + number, number));
    const std::vector<Received> all = collect(*set_, 1);
    ASSERT_EQ(all.size(), 1U);
    EXPECT_EQ(all[0].bytes, with_header(pattern(100 + number, number)));
    EXPECT_EQ(all[0].source, port_endpoint(static_cast<std::uint16_t>(number)));
    EXPECT_EQ(counters(number).frames_received, 1U);
    EXPECT_EQ(counters(number).bytes_received, 100 + number);
  }
  EXPECT_EQ(set_->counters().packets_received, 2U);
  EXPECT_EQ(set_->counters().wire_bytes_received, 202U);
}

TEST_P(QemuPorts, TakesFramesForThePortThatIsNamed) {
  open();
  EXPECT_EQ(set_->endpoints().size(), 3U);
  write(set_->sink(), endpoint(1), with_header(pattern(60, 1)));
  write(set_->sink(), endpoint(0), with_header(pattern(61, 2)));
  set_->sink().flush();
  EXPECT_EQ(guests_[1]->receive(), pattern(60, 1));
  EXPECT_EQ(guests_[0]->receive(), pattern(61, 2));
  for (const auto& each : guests_) EXPECT_EQ(each->receive(0), std::nullopt);
  EXPECT_EQ(set_->counters().packets_sent, 2U);
  EXPECT_EQ(set_->counters().wire_bytes_sent, 121U);
  EXPECT_EQ(set_->counters().send_failures, 0U);
}

TEST_P(QemuPorts, KeepsTheOrderOfAPortWhateverSendsToIt) {
  open();
  const std::vector<Endpoint> group = {endpoint(0), endpoint(2)};
  const Bytes a = with_header(pattern(80, 1)), b = with_header(pattern(80, 3));
  set_->sink().multicast(a, group);
  write(set_->sink(), endpoint(2), with_header(pattern(80, 2)));
  set_->sink().multicast(b, group);
  set_->sink().flush();
  for (const std::size_t number : {1UL, 2UL, 3UL}) EXPECT_EQ(guests_[2]->receive(), pattern(80, number));
  for (const std::size_t number : {1UL, 3UL}) EXPECT_EQ(guests_[0]->receive(), pattern(80, number));
  EXPECT_EQ(guests_[1]->receive(0), std::nullopt);
}

TEST_P(QemuPorts, SendsNothingToNobody) {
  open();
  for (const Endpoint& nobody : {Endpoint{}, port_endpoint(3), Endpoint{.port = 1}, resolve("127.0.0.1:1")}) {
    write(set_->sink(), nobody, with_header(pattern(60, 1)));
  }
  set_->sink().flush();
  EXPECT_EQ(set_->counters().send_failures, 4U);
  for (const auto& each : guests_) EXPECT_EQ(each->receive(0), std::nullopt);
}

TEST_P(QemuPorts, CarriesLongFrames) {
  open();
  for (const std::size_t size : {1514UL, 9014UL, 65'000UL}) {
    guests_[0]->send(pattern(size, 1));
    const std::vector<Received> all = collect(*set_, 1);
    ASSERT_EQ(all.size(), 1U);
    EXPECT_EQ(all[0].bytes, with_header(pattern(size, 1)));
    send(1, all[0].bytes);
    EXPECT_EQ(guests_[1]->receive(), pattern(size, 1));
  }
}

TEST_P(QemuPorts, CarriesMoreThanItHasRoomForBetweenFlushes) {
  open();
  constexpr std::size_t long_ones = 25;  // 1.5 MB
  for (std::size_t i = 0; i < long_ones; ++i) write(set_->sink(), endpoint(1), with_header(pattern(60'000, i)));
  EXPECT_EQ(guests_[1]->receive(), pattern(60'000, 0));  // some have left
  set_->sink().flush();
  for (std::size_t i = 1; i < long_ones; ++i) {
    ASSERT_EQ(guests_[1]->receive(), pattern(60'000, i)) << i;
    static_cast<void>(set_->receive());  // which sends what waits
  }
  constexpr std::size_t short_ones = 300;
  const std::vector<Bytes> memory = {with_header(pattern(60, 0)), with_header(pattern(60, 1)), with_header(pattern(60, 2))};
  const std::vector<Endpoint> only = {endpoint(1)};
  for (std::size_t i = 0; i < short_ones; ++i) set_->sink().multicast(memory[i % 3], only);
  EXPECT_EQ(guests_[1]->receive(), pattern(60, 0));
  set_->sink().flush();
  for (std::size_t i = 1; i < short_ones; ++i) {
    ASSERT_EQ(guests_[1]->receive(), pattern(60, i % 3)) << i;
    static_cast<void>(set_->receive());
  }
}

TEST_P(QemuPorts, CompletesChecksumsOfGuestsThatGetAFrameInCommon) {
  open();
  Bytes frame = pattern(100, 5);
  const VirtioNetHeader says{.flags = VirtioNetHeader::needs_checksum, .csum_start = 34, .csum_offset = 6};
  const Bytes all = with_header(frame, says);
  Bytes expected = all;
  ASSERT_TRUE(complete_checksum(expected));
  expected.erase(expected.begin(), expected.begin() + header);
  ASSERT_NE(expected, frame);
  const std::vector<Endpoint> both = {endpoint(0), endpoint(1)};
  const Bytes plain = with_header(pattern(60, 1));
  for (const Bytes* each : {&plain, &all, &all, &plain}) set_->sink().multicast(*each, both);
  set_->sink().flush();
  for (const std::size_t number : {0UL, 1UL}) {
    EXPECT_EQ(guests_[number]->receive(), pattern(60, 1));
    EXPECT_EQ(guests_[number]->receive(), expected);
    EXPECT_EQ(guests_[number]->receive(), expected);
    EXPECT_EQ(guests_[number]->receive(), pattern(60, 1));
  }
  EXPECT_EQ(all, with_header(frame, says));
}

TEST_P(QemuPorts, DropsAndCountsWhatCannotGoThere) {
  open();
  const auto put = [&](const Bytes& all) { write(set_->sink(), endpoint(0), all); };
  put(with_header(pattern(60, 1)));
  put(with_header(pattern(3000, 2), {.gso_type = VirtioNetHeader::gso_tcpv4, .gso_size = 1000}));
  put(with_header(pattern(13, 3)));
  put(Bytes(9));
  put({});
  put(with_header(pattern(60, 4), {.flags = VirtioNetHeader::needs_checksum, .csum_start = 59}));
  put(with_header(pattern(60, 5)));
  put(with_header(pattern(3000, 6), {.gso_type = VirtioNetHeader::gso_udp_l4, .gso_size = 1000}));
  set_->sink().flush();
  EXPECT_EQ(guests_[0]->receive(), pattern(60, 1));
  EXPECT_EQ(guests_[0]->receive(), pattern(60, 5));
  EXPECT_EQ(guests_[0]->receive(0), std::nullopt);
  EXPECT_EQ(counters(0).dropped_train, 2U);
  EXPECT_EQ(counters(0).dropped_malformed, 4U);
  EXPECT_EQ(counters(0).frames_sent, 2U);
  EXPECT_EQ(set_->counters().send_failures, 6U);
  EXPECT_THROW(static_cast<void>(set_->sink().datagram(endpoint(0), header + max_frame_bytes + 1)), Error);
}

TEST_P(QemuPorts, AGuestThatIsNotThereLosesItsFrames) {
  open_without_guests();
  for (int i = 0; i < 3; ++i) send(0, with_header(pattern(60, 1)));
  EXPECT_TRUE(set_->receive().empty());
  const auto comes = guest(0);
  EXPECT_EQ(comes->receive(0), std::nullopt);
  comes->send(pattern(70, 2));
  ASSERT_EQ(collect(*set_, 1).size(), 1U);
  send(0, with_header(pattern(60, 3)));
  EXPECT_EQ(comes->receive(), pattern(60, 3));
}

TEST_P(QemuPorts, AGuestMayBeStartedAgain) {
  open();
  for (std::size_t life = 0; life < 3; ++life) {
    guests_[0]->send(pattern(80, life));  // the first word is the guest's
    const std::vector<Received> all = collect(*set_, 1);
    ASSERT_EQ(all.size(), 1U);
    EXPECT_EQ(all[0].bytes, with_header(pattern(80, life)));
    send(0, with_header(pattern(81, life)));
    EXPECT_EQ(guests_[0]->receive(), pattern(81, life));
    send(0, with_header(pattern(82, life)));  // which it does not take
    guests_[0].reset();
    if (life == 1) send(0, with_header(pattern(83, life)));  // while it is away
    guests_[0] = guest(0);
  }
}

// Of Unix sockets, the guest's takes ten datagrams (net.unix.max_dgram_qlen), and then none.
class UnixPorts : public QemuPorts {};
INSTANTIATE_TEST_SUITE_P(All, UnixPorts, testing::Values("unix"));

bool readable(int descriptor) {
  pollfd asked{descriptor, POLLIN, 0};
  return ::poll(&asked, 1, 0) == 1;
}

TEST_P(UnixPorts, FramesWaitForASlowGuestAndDoNotHoldUpOthers) {
  open();
  constexpr std::size_t frames = 1000;  // more than any queue length of a kernel
  for (std::size_t i = 0; i < frames; ++i) send(0, with_header(pattern(60 + i, i)));
  EXPECT_EQ(counters(0).dropped_full, 0U);
  EXPECT_LT(counters(0).frames_sent, frames);
  EXPECT_TRUE(set_->port(0).waiting());
  EXPECT_FALSE(readable(set_->descriptor()));  // nothing to do, and so no reason to wake
  send(1, with_header(pattern(60, 1)));
  EXPECT_EQ(guests_[1]->receive(0), pattern(60, 1));
  for (std::size_t i = 0; i < frames; ++i) {
    ASSERT_EQ(guests_[0]->receive(), pattern(60 + i, i)) << i;
    ASSERT_TRUE(readable(set_->descriptor()) || !set_->port(0).waiting()) << i;
    EXPECT_TRUE(set_->receive().empty());
  }
  EXPECT_EQ(counters(0).frames_sent, frames);
  EXPECT_FALSE(set_->port(0).waiting());
  EXPECT_FALSE(readable(set_->descriptor()));
  send(0, with_header(pattern(60, 2)));
  EXPECT_EQ(guests_[0]->receive(), pattern(60, 2));
}

TEST_P(UnixPorts, WhatDoesNotFitIntoTheQueueIsDroppedAndCounted) {
  open({.queue_bytes = 10'000});
  constexpr std::size_t frames = 1000;
  for (std::size_t i = 0; i < frames; ++i) write(set_->sink(), endpoint(0), with_header(pattern(1000, i)));
  set_->sink().flush();
  const std::uint64_t dropped = counters(0).dropped_full;
  EXPECT_GT(dropped, 0U);
  EXPECT_EQ(set_->counters().send_failures, dropped);
  for (std::size_t i = 0; i < frames - dropped; ++i) {  // the first ones, in order
    ASSERT_EQ(guests_[0]->receive(), pattern(1000, i));
    static_cast<void>(set_->receive());
  }
  EXPECT_EQ(guests_[0]->receive(0), std::nullopt);
  EXPECT_EQ(counters(0).frames_sent, frames - dropped);
}

// ECT(0) in IPv4, from the Ethernet header on.
Bytes capable(std::size_t bytes) {
  Bytes frame(bytes);
  frame[12] = std::byte{0x08};
  frame[14] = std::byte{0x45};
  frame[15] = std::byte{0x02};
  return frame;
}
bool mark_capable(std::span<std::byte> frame) {
  if (frame.size() < 16 || frame[15] != std::byte{0x02}) return false;
  frame[15] = std::byte{0x03};
  return true;
}

TEST_P(UnixPorts, FramesThatMeetALongQueueAreMarked) {
  open({.queue_bytes = 100'000, .mark = mark_capable});
  std::size_t sent = 0;
  for (; counters(0).marked == 0 && sent < 5000; ++sent) send(0, with_header(capable(1000)));
  EXPECT_GT(sent, 12U) << "an eighth of the queue";
  EXPECT_EQ(counters(0).dropped_full, 0U);
  send(0, with_header(pattern(1000, 1)));  // is none that understands marks
  EXPECT_EQ(counters(0).marked, 1U);
  Bytes expected = capable(1000);
  for (std::size_t i = 0; i < sent; ++i) {
    if (i + 1 == sent) expected[15] = std::byte{0x03};
    ASSERT_EQ(guests_[0]->receive(), expected) << i;
    static_cast<void>(set_->receive());
  }
  EXPECT_EQ(guests_[0]->receive(), pattern(1000, 1));
}

TEST_P(QemuPorts, FramesThatWaitedLongToBeReceivedAreMarked) {
  if (unix_sockets()) GTEST_SKIP() << "skipped: what waits in a Unix socket counts at its sender";
  open({.buffer_bytes = 40'000, .mark = mark_capable});
  guests_[0]->send(capable(2000));
  EXPECT_EQ(collect(*set_, 1).size(), 1U);
  EXPECT_EQ(counters(0).marked, 0U);
  for (std::size_t i = 0; i < 10; ++i) guests_[0]->send(capable(2000));
  const std::vector<Received> all = collect(*set_, 10);
  ASSERT_EQ(all.size(), 10U);
  EXPECT_GT(counters(0).marked, 0U);
  EXPECT_EQ(all.front().bytes[header + 15], std::byte{0x03});
}

TEST_P(QemuPorts, HasOneSenderOnly) {
  open();
  EXPECT_THROW(static_cast<void>(set_->other_sink()), Error);
  EXPECT_EQ(set_->port_counters(0).frames_sent, 0U);
}

TEST_P(UnixPorts, AGuestThatDiesTakesItsQueueAlong) {
  open();
  for (std::size_t i = 0; i < 1000; ++i) send(0, with_header(pattern(60, i)));
  ASSERT_TRUE(set_->port(0).waiting());
  guests_[0].reset();
  EXPECT_TRUE(eventually([&] {
    static_cast<void>(set_->receive());
    return !set_->port(0).waiting();
  }));
  EXPECT_EQ(counters(0).frames_sent + counters(0).dropped_refused, 1000U);
  guests_[0] = guest(0);
  send(0, with_header(pattern(61, 1)));
  EXPECT_EQ(guests_[0]->receive(), pattern(61, 1));
}

TEST_P(UnixPorts, TakesOverThePathOfAProcessThatIsGoneAndNoOther) {
  const std::string& path = wires_[0].local;
  const std::string kept = path + ".kept";
  {
    const UnixGuest somebody(path, "");
    try {
      static_cast<void>(open_port(wires_[0].port()));
      ADD_FAILURE() << "somebody listens there";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::refused);
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos);
    }
    ASSERT_EQ(::link(path.c_str(), kept.c_str()), 0);  // as a process leaves it that is killed
  }
  ASSERT_EQ(::rename(kept.c_str(), path.c_str()), 0);
  EXPECT_NO_THROW(static_cast<void>(open_port(wires_[0].port())));
  EXPECT_FALSE(std::filesystem::exists(path));  // it tidies up

  std::ofstream(path) << "precious";
  EXPECT_THROW(static_cast<void>(open_port(wires_[0].port())), Error);
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST(PortText, SaysWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "is not a port"},
      {"eth:", "is not a port"},
      {"qemu:", "is not a port"},
      {"qemu:/tmp/a", "is not a port"},
      {"tap:x", "'tap:x' is not a port"},
      {"qemu:wire0,vm0", "'wire0' of a QEMU port is neither"},
      {"qemu:/tmp/wire0,127.0.0.1:1", "must both be paths"},
      {"qemu:127.0.0.1:0,127.0.0.1:0", "cannot send to 127.0.0.1:0"},
      {"qemu:127.0.0.1:0,[::1]:1", "cannot send to [::1]:1"},
      {"qemu:127.0.0.1:x,127.0.0.1:1", "'127.0.0.1:x' is not HOST:PORT"},
  };
  for (const auto& [text, words] : cases) {
    try {
      static_cast<void>(open_port(text));
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_argument) << text;
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << text << ": " << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
  const std::string too_long = "/tmp/" + std::string(200, 'x');
  for (const std::string& text : {"qemu:" + too_long + ",/tmp/a", "qemu:/tmp/netsum-never-bound," + too_long}) {
    EXPECT_THROW(static_cast<void>(open_port(text)), Error);
  }
  EXPECT_FALSE(std::filesystem::exists("/tmp/netsum-never-bound"));
  EXPECT_THROW(static_cast<void>(open_port("qemu:/nowhere/at/all,/tmp/a")), Error);
}

// The queue against one without bounds, filled and emptied at random.
TEST(FrameQueue, IsFirstInFirstOutInABoundedPiece) {
  const auto needed = [](std::size_t frame) { return cache_line + whole_lines(frame); };
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    std::mt19937_64 random(seed);
    const std::size_t bytes = 400 + random() % 4000;
    FrameQueue queue(bytes);
    std::deque<Bytes> model;
    std::size_t held = 0, refused = 0, passed = 0;
    for (std::size_t i = 0; i < 5000; ++i) {
      if (random() % 1000 < (i / 500 % 2 == 0 ? 600 : 400)) {
        const Bytes frame = pattern(random() % 150, i);
        if (queue.push(frame)) {
          model.push_back(frame);
          held += needed(frame.size());
        } else {
          ++refused;
          // What lies unused at the end is less than one frame, and so is what is free in front.
          ASSERT_GT(held + 2 * needed(149), bytes) << "seed " << seed << " step " << i;
        }
        ASSERT_LE(held, bytes);
      } else if (!model.empty()) {
        const auto front = queue.front();
        ASSERT_EQ(Bytes(front.begin(), front.end()), model.front()) << "seed " << seed << " step " << i;
        ASSERT_FALSE(copies_slowly(copied_page, reinterpret_cast<std::uintptr_t>(front.data())));
        held -= needed(front.size());
        queue.pop();
        model.pop_front();
        ++passed;
      }
      ASSERT_EQ(queue.size(), model.size());
      ASSERT_EQ(queue.empty(), model.empty());
      ASSERT_EQ(queue.bytes(), held);
    }
    EXPECT_GT(refused, 0U);
    EXPECT_GT(passed, 1000U);
  }
}

TEST(FrameQueue, HasNoPlaceForWhatIsLongerThanAll) {
  FrameQueue queue(3 * cache_line);
  EXPECT_FALSE(queue.push(Bytes(2 * cache_line + 1)));
  EXPECT_TRUE(queue.push(Bytes(2 * cache_line)));
  EXPECT_FALSE(queue.push({}));
  queue.pop();
  EXPECT_TRUE(queue.push(Bytes(2 * cache_line)));
}

}  // namespace
}  // namespace netsum::transport
