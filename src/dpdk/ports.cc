// DPDK's ports as frame_ports.h wants them: EAL, packet buffers, queues and rules of steering. What is in a frame is not
// looked at here.
#include <pthread.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_flow.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "netsum/version.h"
#include "transport/bypass/frame_ports.h"

namespace netsum::dpdk {
namespace {

using transport::FramePorts;
using transport::FramePortsRequest;
using transport::LaneQueues;

constexpr std::uint16_t descriptors = 1024;
constexpr std::size_t most_added = 256;              // or a few more: frames of a lane that a port has not taken yet
constexpr std::uint16_t spares = 32;                 // buffers that are got at once
constexpr std::chrono::milliseconds handshake{200};  // of two ends of a memif, with time to spare
constexpr std::size_t least_frame = 60;              // what is shorter is filled up: not every device does

[[noreturn]] void refuse(const std::string& what) {
  throw std::runtime_error(what);
}

void must(int result, const std::string& what) {
  if (result < 0) refuse(what + " failed: " + rte_strerror(-result));
}

// What EAL says is kept for an error's text, and printed nowhere: a library is silent.
class EalLog {
 public:
  EalLog() {
    cookie_io_functions_t functions{};
    functions.write = [](void* to, const char* text, std::size_t bytes) {
      static_cast<EalLog*>(to)->add({text, bytes});
      return static_cast<ssize_t>(bytes);
    };
    stream_ = ::fopencookie(this, "w", functions);
    if (stream_ == nullptr) return;
    ::setvbuf(stream_, nullptr, _IOLBF, 0);
    rte_openlog_stream(stream_);
  }
  EalLog(const EalLog&) = delete;
  EalLog& operator=(const EalLog&) = delete;

  [[nodiscard]] std::string line() {
    const std::lock_guard lock(mutex_);
    return line_.empty() ? "no reason was logged" : line_;
  }

 private:
  void add(std::string_view text) {
    const std::lock_guard lock(mutex_);
    while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
    if (!text.empty()) line_ = text;
  }

  std::FILE* stream_ = nullptr;
  std::mutex mutex_;
  std::string line_;
};

// Of this process: EAL can be started once, and logs until the end.
EalLog& eal_log() {
  static auto* const log = new EalLog;
  return *log;
}

// The threads that call are nobody's of DPDK's: with a number they have caches of buffers.
void register_thread() {
  struct Registered {
    Registered() : done(rte_thread_register() == 0) {}
    ~Registered() {
      if (done) rte_thread_unregister();
    }
    bool done;
  };
  static thread_local const Registered registered;
  static_cast<void>(registered.done);
}

struct Buffers {
  rte_mempool* pool = nullptr;
  std::size_t frame_bytes = 0;
};

// Frames to leave by a port.
class Places final : public transport::FramePlaces {
 public:
  explicit Places(const Buffers& buffers) : FramePlaces(buffers.frame_bytes), pool_(buffers.pool) {}
  ~Places() {
    for (const std::span<const Place> all : {filled(), empty()}) {
      for (const Place& place : all) rte_pktmbuf_free(buffer_of(place));
    }
  }
  Places(const Places&) = delete;
  Places& operator=(const Places&) = delete;

  void send(std::uint32_t port, std::uint32_t queue) {
    std::array<rte_mbuf*, most_added + LaneQueues::most_taken> buffers;
    std::uint16_t count = 0;
    for (const Place& frame : filled().first(std::min(added(), buffers.size()))) {
      const std::size_t whole = std::max(frame.bytes, least_frame);
      if (whole > frame.bytes) std::memset(frame.begin + frame.bytes, 0, whole - frame.bytes);
      rte_mbuf* const buffer = buffers[count++] = buffer_of(frame);
      buffer->data_len = static_cast<std::uint16_t>(whole);
      buffer->pkt_len = static_cast<std::uint32_t>(whole);
    }
    leave(rte_eth_tx_burst(static_cast<std::uint16_t>(port), static_cast<std::uint16_t>(queue), buffers.data(), count));
  }

  // A received frame's buffer, which is likelier in a cache than the pool's. False: there are enough.
  [[nodiscard]] bool reuse(rte_mbuf* buffer) {
    const bool ours = RTE_MBUF_DIRECT(buffer) && rte_mbuf_refcnt_read(buffer) == 1 && buffer->nb_segs == 1;
    if (!ours || added() >= most_added || empty().size() >= LaneQueues::most_taken) return false;
    buffer->ol_flags = 0;
    rte_pktmbuf_reset_headroom(buffer);
    append(rte_pktmbuf_mtod(buffer, std::byte*), buffer);
    return true;
  }

 private:
  static rte_mbuf* buffer_of(const Place& place) { return static_cast<rte_mbuf*>(place.buffer); }

  bool get_more() override {
    std::array<rte_mbuf*, spares> more;
    if (added() >= most_added || rte_pktmbuf_alloc_bulk(pool_, more.data(), spares) != 0) return false;
    for (rte_mbuf* const each : more) append(rte_pktmbuf_mtod(each, std::byte*), each);
    return true;
  }

  rte_mempool* const pool_;
};

class Queues final : public LaneQueues {
 public:
  Queues(const Buffers& buffers, std::size_t ports) {
    for (std::size_t i = 0; i < ports; ++i) places_.push_back(std::make_unique<Places>(buffers));
  }
  ~Queues() override { release(); }
  Queues(const Queues&) = delete;
  Queues& operator=(const Queues&) = delete;

  std::span<const iovec> receive(std::uint32_t port, std::uint32_t queue) override {
    register_thread();
    std::array<rte_mbuf*, most_taken> taken;
    const std::uint16_t count =
        rte_eth_rx_burst(static_cast<std::uint16_t>(port), static_cast<std::uint16_t>(queue), taken.data(), most_taken);
    frames_.clear();
    for (std::uint16_t i = 0; i < count; ++i) {
      rte_mbuf* const buffer = taken[i];
      const bool whole = buffer->nb_segs == 1;
      frames_.push_back({rte_pktmbuf_mtod(buffer, void*), whole ? buffer->data_len : std::size_t{0}});
    }
    held_.insert(held_.end(), taken.begin(), taken.begin() + count);
    return frames_;
  }

  void release() override {
    // What came by a port is likely to be answered there.
    std::erase_if(
        held_, [this](rte_mbuf* buffer) { return buffer->port < places_.size() && places_[buffer->port]->reuse(buffer); });
    if (!held_.empty()) rte_pktmbuf_free_bulk(held_.data(), static_cast<unsigned>(held_.size()));
    held_.clear();
  }

  transport::FramePlaces& places(std::uint32_t port) override { return *places_[port]; }

  void send(std::uint32_t port, std::uint32_t queue) override {
    register_thread();
    places_[port]->send(port, queue);
  }

 private:
  std::vector<iovec> frames_;
  std::vector<rte_mbuf*> held_;
  std::vector<std::unique_ptr<Places>> places_;  // by port
};

class Ports final : public FramePorts {
 public:
  explicit Ports(const FramePortsRequest& request) {
    start_eal(request);
    const auto next = [](std::uint64_t from) {
      return rte_eth_find_next_owned_by(static_cast<std::uint16_t>(from), RTE_ETH_DEV_NO_OWNER);
    };
    for (std::uint64_t port = next(0); port < RTE_MAX_ETHPORTS; port = next(port + 1)) {
      numbers_.push_back(static_cast<std::uint16_t>(port));
    }
    if (numbers_.empty()) {
      refuse(
          "no port was found: name one in --dpdk-args (-a 0000:03:00.0, or --vdev net_memif0,...), and check its driver "
          "(dpdk-devbind.py --status)");
    }
    std::size_t buffers = 0;
    for (const std::uint16_t number : numbers_) buffers += look_at(number, request.queues);
    // Beside those in the devices' queues, those that lanes have in hand: some may begin while others end.
    const std::size_t lanes = 2 * std::size_t{request.queues} + 2;
    buffers += lanes * numbers_.size() * (most_added + (1 + request.queues) * LaneQueues::most_taken);
    const std::size_t room = RTE_PKTMBUF_HEADROOM + buffers_.frame_bytes;
    buffers_.pool = rte_pktmbuf_pool_create("netsum", static_cast<unsigned>(buffers), 256, 0,
                                            static_cast<std::uint16_t>(room), SOCKET_ID_ANY);
    if (buffers_.pool == nullptr) {
      refuse("cannot allocate " + std::to_string(buffers) + " buffers of " + std::to_string(room) + " bytes (" +
             rte_strerror(rte_errno) + "): raise -m in --dpdk-args, for example -m 256, or reserve huge pages");
    }
    for (std::size_t i = 0; i < numbers_.size(); ++i) start(i);
  }
  ~Ports() override {
    for (const std::uint16_t number : numbers_) {
      rte_eth_dev_stop(number);
      rte_eth_dev_close(number);
    }
    rte_eal_cleanup();
  }
  Ports(const Ports&) = delete;
  Ports& operator=(const Ports&) = delete;

  const std::vector<Port>& ports() const override { return ports_; }
  std::unique_ptr<LaneQueues> lane_queues() override { return std::make_unique<Queues>(buffers_, ports_.size()); }

  bool has_link(std::uint32_t port) const override {
    rte_eth_link link{};
    return rte_eth_link_get_nowait(numbers_[port], &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
  }

  // A memif's client connects as it starts, and never again. Of other drivers, a start would only delay the link.
  void look_for_link(std::uint32_t port) override {
    const auto now = std::chrono::steady_clock::now();
    if (!memif_[port] || now - started_[port] < handshake) return;
    started_[port] = now;
    const std::uint16_t number = numbers_[port];
    rte_eth_dev_stop(number);
    static_cast<void>(rte_eth_dev_start(number));  // it fails as long as there is no other end
  }

  bool steer(std::uint32_t port, std::uint16_t udp_port, std::uint32_t queue) override {
    rte_flow_attr attributes{};
    attributes.ingress = 1;
    rte_flow_item_udp what{}, mask{};
    what.hdr.dst_port = rte_cpu_to_be_16(udp_port);
    mask.hdr.dst_port = 0xffff;
    std::array<rte_flow_item, 4> items{};
    items[0].type = RTE_FLOW_ITEM_TYPE_ETH;
    items[1].type = RTE_FLOW_ITEM_TYPE_IPV4;
    items[2].type = RTE_FLOW_ITEM_TYPE_UDP;
    items[2].spec = &what;
    items[2].mask = &mask;
    items[3].type = RTE_FLOW_ITEM_TYPE_END;
    rte_flow_action_queue to{};
    to.index = static_cast<std::uint16_t>(queue);
    std::array<rte_flow_action, 2> actions{};
    actions[0].type = RTE_FLOW_ACTION_TYPE_QUEUE;
    actions[0].conf = &to;
    actions[1].type = RTE_FLOW_ACTION_TYPE_END;
    rte_flow_error why{};
    const std::lock_guard lock(rules_mutex_);
    rte_flow* const rule = rte_flow_create(numbers_[port], &attributes, items.data(), actions.data(), &why);
    if (rule == nullptr) return false;
    rules_.emplace(udp_port, std::pair(numbers_[port], rule));
    return true;
  }

  void steer_no_more(std::uint16_t udp_port) override {
    const std::lock_guard lock(rules_mutex_);
    const auto [first, last] = rules_.equal_range(udp_port);
    rte_flow_error why{};
    for (auto rule = first; rule != last; ++rule) rte_flow_destroy(rule->second.first, rule->second.second, &why);
    rules_.erase(first, last);
  }

  std::uint64_t overrun() const override {
    std::uint64_t sum = 0;
    for (const std::uint16_t number : numbers_) {
      rte_eth_stats stats{};
      if (rte_eth_stats_get(number, &stats) == 0) sum += stats.imissed + stats.rx_nombuf;
    }
    return sum;
  }

  std::uint64_t waiting(std::uint32_t port, std::uint32_t queue) const override {
    if (capacity_ == 0) return 0;
    const int frames = rte_eth_rx_queue_count(numbers_[port], static_cast<std::uint16_t>(queue));
    return frames > 0 ? static_cast<std::uint64_t>(frames) * buffers_.frame_bytes : 0;
  }
  std::uint64_t capacity() const override { return capacity_; }

 private:
  static void start_eal(const FramePortsRequest& request) {
    static bool started = false;
    if (started) refuse("EAL can be initialized only once per process");
    started = true;
    EalLog& log = eal_log();
    // EAL keeps what it is given.
    static std::vector<std::string> arguments;
    static std::vector<char*> pointers;
    arguments = {"netsum"};
    cpu_set_t before;
    CPU_ZERO(&before);
    const bool known = ::pthread_getaffinity_np(::pthread_self(), sizeof before, &before) == 0;
    bool cores = false;
    for (std::size_t i = 0; i < request.words_count; ++i) {
      const std::string word = request.words[i];
      cores = cores || word.starts_with("-l") || word.starts_with("-c") || word.starts_with("--lcores");
      arguments.push_back(word);
    }
    // Packets are moved by netsum's own threads: one core is named, so that EAL starts no others.
    for (int cpu = 0; known && !cores && cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &before)) continue;
      arguments.insert(arguments.begin() + 1, "--lcores=0@" + std::to_string(cpu));
      break;
    }
    pointers.reserve(arguments.size() + 1);
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    const int result = rte_eal_init(static_cast<int>(arguments.size()), pointers.data());
    // It had put this thread on its own core.
    if (known) ::pthread_setaffinity_np(::pthread_self(), sizeof before, &before);
    if (result < 0) refuse("EAL initialization failed: " + log.line());
  }

  // Returns how many buffers its queues hold.
  std::size_t look_at(std::uint16_t number, std::uint32_t wanted) {
    std::array<char, RTE_ETH_NAME_MAX_LEN> name{};
    must(rte_eth_dev_get_name_by_port(number, name.data()), "asking for the name of port " + std::to_string(number));
    Port port;
    port.name = name.data();
    rte_eth_dev_info info{};
    must(rte_eth_dev_info_get(number, &info), "asking about port " + port.name);
    port.queues = std::clamp(wanted, 1U, std::uint32_t{std::min(info.max_rx_queues, info.max_tx_queues)});
    // Of two ends of a memif the one with fewer queues decides, and the other end is not told.
    memif_.push_back(info.driver_name != nullptr && std::strcmp(info.driver_name, "net_memif") == 0);
    if (memif_.back()) port.queues = 1;
    rte_ether_addr address{};
    must(rte_eth_macaddr_get(number, &address), "asking for the address of port " + port.name);
    std::copy(std::begin(address.addr_bytes), std::end(address.addr_bytes), port.address.begin());
    std::uint16_t mtu = 0;
    if (rte_eth_dev_get_mtu(number, &mtu) == 0 && mtu > 0) port.mtu = mtu;
    buffers_.frame_bytes = std::max<std::size_t>({buffers_.frame_bytes, 2048, port.mtu + RTE_ETHER_HDR_LEN + 8});
    ports_.push_back(port);
    return std::size_t{2} * descriptors * port.queues;
  }

  void start(std::size_t index) {
    const std::uint16_t number = numbers_[index];
    const Port& port = ports_[index];
    rte_eth_conf configuration{};
    const auto queues = static_cast<std::uint16_t>(port.queues);
    must(rte_eth_dev_configure(number, queues, queues, &configuration), "configuring port " + port.name);
    std::uint16_t receive = descriptors, transmit = descriptors;
    must(rte_eth_dev_adjust_nb_rx_tx_desc(number, &receive, &transmit), "sizing the queues of port " + port.name);
    const auto socket = static_cast<unsigned>(std::max(0, rte_eth_dev_socket_id(number)));
    for (std::uint16_t queue = 0; queue < queues; ++queue) {
      must(rte_eth_rx_queue_setup(number, queue, receive, socket, nullptr, buffers_.pool), "a queue of port " + port.name);
      must(rte_eth_tx_queue_setup(number, queue, transmit, socket, nullptr), "a queue of port " + port.name);
    }
    started_.push_back(std::chrono::steady_clock::now());
    if (rte_eth_dev_start(number) < 0) refuse("starting port " + port.name + " failed: " + eal_log().line());
    if (rte_eth_rx_queue_count(number, 0) >= 0) {
      const std::uint64_t bytes = std::uint64_t{receive} * buffers_.frame_bytes;
      capacity_ = capacity_ == 0 ? bytes : std::min(capacity_, bytes);
    }
  }

  std::vector<std::uint16_t> numbers_;  // DPDK's
  std::vector<Port> ports_;             // the same
  std::vector<bool> memif_;             // the same: whether they are such ones
  std::vector<std::chrono::steady_clock::time_point> started_;
  Buffers buffers_;
  std::uint64_t capacity_ = 0;
  std::mutex rules_mutex_;
  std::multimap<std::uint16_t, std::pair<std::uint16_t, rte_flow*>> rules_;  // by UDP port: DPDK's port, and its rule
};

}  // namespace
}  // namespace netsum::dpdk

extern "C" __attribute__((visibility("default"))) netsum::transport::FramePorts* netsum_open_frame_ports(
    const netsum::transport::FramePortsRequest& request) {
  try {
    if (std::strcmp(request.version, NETSUM_VERSION) != 0) {
      throw std::runtime_error(std::string("the plugin was built for netsum " NETSUM_VERSION ", but this is netsum ") +
                               request.version + ": install the same version of both");
    }
    return new netsum::dpdk::Ports(request);
  } catch (const std::exception& error) {
    std::snprintf(request.error, request.error_bytes, "%s", error.what());
    return nullptr;
  }
}
