// The hosts of a ring of NetReduce (docs/protocol-netreduce.md), one half in each of two network namespaces, with a bump in
// the wire or a bridge between them. They send messages as fast as their window allows, and check whatever arrives: its
// order, its checksum, and each value.
//
//   ring_source NAMESPACE NAMESPACE INTERFACE HOSTS SECONDS sums|raw|floats
//
// sums: the bump adds, with the ring "ranks=HOSTS,packets=64,window=4,mtu=1024,dtype=int32" and the hosts 10.0.0.1 and so
// on. raw: packets arrive as they were sent. Prints how many packets came back, and how long that took, in seconds.
// floats: the bump adds with dtype=float32 what comes on standard input, a count (4 bytes) and so many values of each host
// in turn, until it ends; the sums go to standard output (bench/bump/train).
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/crc32.h"
#include "base/virtio_net.h"
#include "transport/ports/port_set.h"
#include "wire/ethernet.h"
#include "wire/netreduce.h"
#include "wire/roce.h"

namespace netsum {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using Bytes = std::vector<std::byte>;

constexpr std::uint32_t packets = 64, window = 4, mtu = 1024, first_qp = 0x11;
constexpr std::uint16_t local_experiment = 0x88b5;  // IEEE 802's ethertype
constexpr std::size_t ethernet_at = virtio_net_header_bytes, ip_at = ethernet_at + wire::ethernet::header_bytes;
constexpr std::size_t value_bytes = 4;
constexpr auto patience = std::chrono::seconds(2);
constexpr wire::netreduce::Layout layout = wire::netreduce::netsum_layout;

void need(bool done, const std::string& what) {
  if (!done) throw std::runtime_error(what);
}

// Bytes in front of a packet's values.
std::size_t skipped(std::uint32_t packet) {
  return packet == 0 ? layout.header_bytes : wire::netreduce::seal_bytes;
}

enum class Mode : std::uint8_t { sums, raw, floats };

// Values of a packet, and of a message.
constexpr std::size_t values_of(std::uint32_t packet) {
  return (mtu - (packet == 0 ? layout.header_bytes : wire::netreduce::seal_bytes)) / value_bytes;
}
constexpr std::size_t values_of_message = values_of(0) + (packets - 1) * values_of(1);

// The first value of a packet tells its place, and the others its host.
std::uint32_t place_value(std::uint64_t message, std::uint32_t packet) {
  return static_cast<std::uint32_t>(message & 0xffff) * packets + packet;
}
std::uint32_t host_value(std::uint32_t rank, std::size_t index) {
  return (rank + 1) * 1000 + static_cast<std::uint32_t>(index);
}

// One host, and its connection to the next.
class Host {
 public:
  Host(std::uint32_t rank, std::uint32_t hosts, Mode mode)
      : rank_(rank), factor_(mode == Mode::raw ? 1 : hosts), mode_(mode) {
    const bool sums = mode == Mode::sums;
    for (std::uint32_t packet = 0; packet < packets; ++packet) frames_[packet] = frame(packet, (rank + 1) % hosts);
    for (const std::uint32_t packet : {0U, 1U}) {
      Common& common = common_[packet];
      const std::size_t begin = skipped(packet) + value_bytes;
      Bytes& expected = common.expected;
      for (std::size_t i = 1; i < (mtu - skipped(packet)) / value_bytes; ++i) {
        std::uint32_t sum = 0;
        for (std::uint32_t r = 0; r < hosts; ++r) sum += sums || r == rank ? host_value(r, i) : 0;
        append_bytes(expected, sum);
      }
      const std::byte* const payload = &frames_[packet][payload_at(packet)];
      common.end.bytes = mtu - begin;
      common.end.crc = crc32({payload + begin, mtu - begin});
      common.end.shift = Crc32Shift(mtu - begin);
    }
  }

  [[nodiscard]] std::size_t side() const { return rank_ % 2; }
  [[nodiscard]] Bytes hello() const {
    Bytes frame(ethernet_at + 60);
    std::fill_n(&frame[ethernet_at], 6, std::byte{0xff});
    put_address(&frame[ethernet_at + 6], rank_);
    store_be(&frame[ethernet_at + 12], local_experiment);
    return frame;
  }

  // Of the messages from here on, and what arrives in their place.
  std::vector<float> values, results;
  void begin() { begun_ = messages_sent(); }

  [[nodiscard]] iovec next_frame() {
    const auto packet = static_cast<std::uint32_t>(sent_ % packets);
    const std::uint64_t message = sent_ / packets;
    Bytes& frame = frames_[packet];
    const std::span<std::byte> ip = std::span(frame).subspan(ip_at);
    std::byte* const payload = &frame[payload_at(packet)];
    store_be(ip.data() + psn_at,
             static_cast<std::uint32_t>(sent_ & wire::roce::psn_mask) | (is_last(packet) ? 1U << 31 : 0));
    if (packet == 0) store_le(payload + layout.message.offset, message);
    if (is_last(packet)) store_be(payload - wire::roce::immediate_bytes, static_cast<std::uint32_t>(message));
    if (mode_ == Mode::floats) {
      std::memcpy(payload + skipped(packet), &values[place(message, packet)], values_of(packet) * value_bytes);
      wire::roce::write_checksums(ip.first(wire::roce::packet_bytes(ip)));
    } else {
      store_le(payload + skipped(packet), place_value(message, packet));
      wire::roce::write_checksums(ip, common_of(packet).end);
    }
    ++sent_;
    return {frame.data(), frame.size()};
  }

  // A packet of this connection at its receiver.
  void received(const wire::roce::Packet& packet, std::span<const std::byte> ip) {
    const auto number = static_cast<std::uint32_t>(arrived_ % packets);
    const std::uint64_t message = arrived_ / packets;
    const auto is = [&](bool right, const char* what) {
      need(right, "packet " + std::to_string(number) + " of message " + std::to_string(message) + " of host " +
                      std::to_string(rank_) + ": " + what);
    };
    is(packet.bth.psn == (arrived_ & wire::roce::psn_mask), "another came in its place");
    is(wire::roce::icrc_valid(ip.first(wire::roce::packet_bytes(ip))), "its checksum is wrong");
    is(packet.payload.size() == mtu, "its length is wrong");
    const std::size_t skip = skipped(number);
    const auto contributions = wire::netreduce::read_seal(packet.payload) & 0xffff;
    is(contributions == (factor_ == 1 ? 0 : factor_), "it is not a sum of all");
    if (mode_ == Mode::floats) {
      std::memcpy(&results[place(message, number)], packet.payload.data() + skip, values_of(number) * value_bytes);
      ++arrived_;
      return;
    }
    is(load_le<std::uint32_t>(packet.payload.data() + skip) == factor_ * place_value(message, number),
       "its first value is wrong");
    const Bytes& expected = common_of(number).expected;
    is(std::memcmp(packet.payload.data() + skip + value_bytes, expected.data(), expected.size()) == 0,
       "its values are wrong");
    ++arrived_;
  }

  [[nodiscard]] std::uint64_t messages_sent() const { return sent_ / packets; }
  [[nodiscard]] std::uint64_t messages_arrived() const { return arrived_ / packets; }

 private:
  static constexpr std::size_t psn_at = wire::roce::ipv4_bytes + wire::roce::udp_bytes + 8;
  struct Common {
    wire::roce::CommonEnd end;  // of what is sent
    Bytes expected;             // values that arrive, but for the first
  };

  static bool is_last(std::uint32_t packet) { return packet + 1 == packets; }
  static void put_address(std::byte* to, std::uint32_t rank) {
    std::fill_n(to, 6, std::byte{0});
    to[0] = std::byte{2};  // locally administered
    to[5] = static_cast<std::byte>(rank + 1);
  }
  static std::size_t payload_at(std::uint32_t packet) {
    return ip_at + wire::roce::ipv4_bytes + wire::roce::udp_bytes + wire::roce::bth_bytes +
           (packet == 0 ? wire::roce::reth_bytes : 0) + (is_last(packet) ? wire::roce::immediate_bytes : 0);
  }
  [[nodiscard]] std::size_t place(std::uint64_t message, std::uint32_t packet) const {
    return (message - begun_) * values_of_message + (packet == 0 ? 0 : values_of(0) + (packet - 1) * values_of(1));
  }
  [[nodiscard]] Common& common_of(std::uint32_t packet) { return common_[packet == 0 ? 0 : 1]; }

  [[nodiscard]] Bytes frame(std::uint32_t packet, std::uint32_t successor) const {
    using wire::roce::Opcode;
    Bytes payload(mtu);
    if (packet == 0) {
      wire::netreduce::InaHeader header;
      header.rank = rank_;
      header.packets = packets;
      header.dtype = mode_ == Mode::floats ? DType::float32 : DType::int32;
      wire::netreduce::write_header(layout, payload, header);
    }
    for (std::size_t i = 1; i < (mtu - skipped(packet)) / value_bytes; ++i) {
      store_le(&payload[skipped(packet) + i * value_bytes], host_value(rank_, i));
    }
    wire::roce::Packet made;
    const auto address = [](std::uint32_t rank) {
      return std::array<std::uint8_t, 16>{0, 0, 0,    0,    0,  0, 0, 0,
                                          0, 0, 0xff, 0xff, 10, 0, 0, static_cast<std::uint8_t>(rank + 1)};
    };
    wire::roce::set_addresses(made, address(rank_), address(successor));
    made.source_port = 0xc000;
    made.bth.opcode = packet == 0       ? Opcode::rc_write_first
                      : is_last(packet) ? Opcode::rc_write_last_immediate
                                        : Opcode::rc_write_middle;
    made.bth.destination_qp = first_qp + rank_;
    made.reth.length = packets * mtu;
    made.payload = payload;
    Bytes all(ip_at + wire::roce::packet_bytes(made));
    put_address(&all[ethernet_at], successor);
    put_address(&all[ethernet_at + 6], rank_);
    store_be(&all[ethernet_at + 12], wire::ethernet::ipv4);
    wire::roce::write(std::span(all).subspan(ip_at), made);
    return all;
  }

  std::uint32_t rank_, factor_;
  Mode mode_;
  std::array<Bytes, packets> frames_;
  std::array<Common, 2> common_;          // of first packets, and of the others
  std::uint64_t sent_ = 0, arrived_ = 0;  // packets
  std::uint64_t begun_ = 0;               // messages
};

std::unique_ptr<transport::Port> open_in(const std::string& name, const std::string& interface) {
  const transport::Descriptor there(::open(("/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC));
  need(there.number() >= 0 && ::setns(there.number(), CLONE_NEWNET) == 0, "cannot enter the network namespace " + name);
  return transport::open_port(interface);
}

class Ring {
 public:
  Ring(std::array<std::unique_ptr<transport::Port>, 2> ports, std::uint32_t hosts, Mode mode) : ports_(std::move(ports)) {
    hosts_.reserve(hosts);
    for (std::uint32_t rank = 0; rank < hosts; ++rank) hosts_.emplace_back(rank, hosts, mode);
  }

  // So that what is between knows where each host is.
  void introduce() {
    const Clock::time_point deadline = Clock::now() + patience;
    std::vector<char> heard(hosts_.size());
    while (std::count(heard.begin(), heard.end(), 0) > 0) {
      need(Clock::now() < deadline, "nothing passes between the namespaces");
      for (const Host& host : hosts_) {
        Bytes hello = host.hello();
        iovec frame{hello.data(), hello.size()};
        ports_[host.side()]->send({&frame, 1});
      }
      wait(10);
      take([&](std::span<const std::byte> frame) {
        if (load_be<std::uint16_t>(&frame[ethernet_at + 12]) != local_experiment) return;
        const auto rank = std::to_integer<std::size_t>(frame[ethernet_at + 11]) - 1;
        if (rank < heard.size()) heard[rank] = 1;
      });
    }
  }

  // Packets that arrived, and in which time.
  std::pair<std::uint64_t, Seconds> run(double seconds) {
    exchange(window, Seconds(0));  // while connections are learned
    const std::uint64_t before = hosts_.front().messages_arrived();
    const Clock::time_point began = Clock::now();
    exchange(window, Seconds(seconds));
    return {(hosts_.front().messages_arrived() - before) * packets * hosts_.size(), Clock::now() - began};
  }

  // Of each host's values.
  [[nodiscard]] std::vector<float> sum(std::vector<std::vector<float>> values) {
    const std::size_t count = values.front().size(), messages = (count + values_of_message - 1) / values_of_message;
    for (std::size_t rank = 0; rank < hosts_.size(); ++rank) {
      values[rank].resize(messages * values_of_message);
      hosts_[rank].values = std::move(values[rank]);
      hosts_[rank].results.assign(messages * values_of_message, 0);
      hosts_[rank].begin();
    }
    exchange(messages, Seconds(0));
    std::vector<float> sums = hosts_.front().results;
    for (const Host& host : hosts_) {
      need(std::memcmp(host.results.data(), sums.data(), sums.size() * value_bytes) == 0, "hosts have different sums");
    }
    sums.resize(count);
    return sums;
  }

 private:
  // Until each host has sent so many messages, and for so long.
  void exchange(std::uint64_t messages, Seconds seconds) {
    const Clock::time_point began = Clock::now();
    Clock::time_point progress = began;
    const std::uint64_t least = hosts_.front().messages_sent() + messages;
    while (true) {
      const bool more = hosts_.front().messages_sent() < least || Clock::now() - began < seconds;
      const auto arrived = [](const Host& a, const Host& b) { return a.messages_arrived() < b.messages_arrived(); };
      const std::uint64_t complete = std::min_element(hosts_.begin(), hosts_.end(), arrived)->messages_arrived();
      const std::uint64_t sent = hosts_.front().messages_sent();
      if (!more && complete == sent) return;
      bool busy = false;
      if (more && sent < complete + window) {
        send_message();
        busy = true;
      }
      busy = receive() || busy;
      if (busy) {
        progress = Clock::now();
      } else {
        wait(10);
        need(Clock::now() - progress < patience, "nothing arrives any more: packets were lost, or the ring stalls");
      }
    }
  }

  // One of each host, its packets by turns with the others'.
  void send_message() {
    constexpr std::uint32_t turn = 16;
    for (std::uint32_t begin = 0; begin < packets; begin += turn) {
      std::array<std::vector<iovec>, 2>& frames = frames_;
      for (Host& host : hosts_) {
        for (std::uint32_t i = 0; i < turn; ++i) frames[host.side()].push_back(host.next_frame());
      }
      for (std::size_t side = 0; side < frames.size(); ++side) {
        ports_[side]->send(frames[side]);
        frames[side].clear();
      }
      receive();
    }
  }

  bool receive() {
    bool any = false;
    take([&](std::span<const std::byte> frame) {
      const std::span<const std::byte> ip = frame.subspan(std::min(frame.size(), ip_at));
      if (!wire::roce::is_roce(ip)) return;
      wire::roce::Packet packet;
      need(wire::roce::parse(ip, packet) == wire::ParseError::none, "a packet arrived that cannot be read");
      const std::size_t rank = packet.bth.destination_qp - first_qp;
      need(rank < hosts_.size(), "a packet arrived for no host");
      hosts_[rank].received(packet, ip);
      any = true;
    });
    return any;
  }

  template <class Frame>
  void take(const Frame& each) {
    for (const auto& port : ports_) {
      views_.clear();
      port->receive(views_, {});
      for (const RxView& view : views_) each(view.bytes);
    }
  }

  void wait(int milliseconds) {
    std::array<pollfd, 2> readable = {pollfd{ports_[0]->descriptor(), POLLIN, 0},
                                      pollfd{ports_[1]->descriptor(), POLLIN, 0}};
    ::poll(readable.data(), readable.size(), milliseconds);
  }

  std::array<std::unique_ptr<transport::Port>, 2> ports_;
  std::vector<Host> hosts_;
  std::array<std::vector<iovec>, 2> frames_;  // by side
  std::vector<RxView> views_;
};

void sum_input(Ring& ring, std::uint32_t hosts) {
  const auto read = [](void* to, std::size_t size, std::size_t count) {
    return std::fread(to, size, count, stdin) == count;
  };
  for (std::uint32_t count = 0; read(&count, sizeof count, 1);) {
    std::vector<std::vector<float>> values(hosts, std::vector<float>(count));
    for (auto& each : values) need(read(each.data(), value_bytes, count), "the input ends within a call");
    const std::vector<float> sums = ring.sum(std::move(values));
    need(std::fwrite(sums.data(), value_bytes, count, stdout) == count && std::fflush(stdout) == 0, "cannot write");
  }
}

void run(const std::vector<std::string>& words) {
  need(words.size() == 6 && (words[5] == "sums" || words[5] == "raw" || words[5] == "floats"),
       "usage: ring_source NAMESPACE NAMESPACE INTERFACE HOSTS SECONDS sums|raw|floats");
  const auto hosts = static_cast<std::uint32_t>(std::stoul(words[3]));
  need(hosts >= 2 && hosts <= 16 && hosts % 2 == 0, "neighbours are in different namespaces: 2 to 16 hosts, an even number");
  auto left = open_in(words[0], words[2]), right = open_in(words[1], words[2]);
  const Mode mode = words[5] == "sums" ? Mode::sums : words[5] == "raw" ? Mode::raw : Mode::floats;
  Ring ring({std::move(left), std::move(right)}, hosts, mode);
  ring.introduce();
  if (mode == Mode::floats) return sum_input(ring, hosts);
  const auto [arrived, time] = ring.run(std::stod(words[4]));
  std::printf("%ju %.6f\n", std::uintmax_t{arrived}, time.count());
}

}  // namespace
}  // namespace netsum

int main(int argc, char** argv) {
  try {
    netsum::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ring_source: %s\n", error.what());
    return 1;
  }
}
