#include "transport/rdma/verbs_ring.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "netsum/error.h"
#include "transport/system/random.h"
#include "transport/system/socket.h"

namespace netsum::transport {
namespace {

constexpr std::uint32_t psn_mask = 0xffffff;
constexpr std::uint8_t hop_limit = 64;
constexpr std::uint8_t not_ready_timer = 12;  // 0.64 ms; receives are always posted
constexpr int completions_at_once = 64;
constexpr std::uint16_t roce_port = 4791;
// Ethernet, IPv4, UDP, BTH and ICRC of a packet; RETH and immediate of a message.
constexpr std::uint64_t packet_overhead = 14 + 20 + 8 + 12 + 4, message_overhead = 16 + 4;
constexpr std::uint64_t of_sending = 0, of_receiving = 1;  // work requests' IDs

template <auto Function>
struct Deleter {
  template <class T>
  void operator()(T* what) const {
    Function(what);
  }
};
template <class T, auto Function>
using Owned = std::unique_ptr<T, Deleter<Function>>;
using Context = Owned<ibv_context, ibv_close_device>;
using QueuePair = Owned<ibv_qp, ibv_destroy_qp>;

struct alignas(4096) Page {
  std::byte bytes[4096];
};

[[noreturn]] void refuse(const std::string& device, const char* call) {
  const bool memory = errno == ENOMEM;
  throw Error(ErrorCode::refused, "RDMA device " + device + " refuses " + call + ": " + errno_text() +
                                      (memory ? " (ulimit -l must allow the memory to be locked)" : ""));
}

std::uint32_t bytes_of(ibv_mtu mtu) {
  return 128U << static_cast<unsigned>(mtu);
}

ibv_mtu mtu_of(std::uint32_t bytes) {
  for (const ibv_mtu mtu : {IBV_MTU_4096, IBV_MTU_2048, IBV_MTU_1024, IBV_MTU_512}) {
    if (bytes >= bytes_of(mtu)) return mtu;
  }
  return IBV_MTU_256;
}

Context open_device(const std::string& name) {
  int count = 0;
  const Owned<ibv_device*, ibv_free_device_list> list(ibv_get_device_list(&count));
  std::string names;
  for (int i = 0; list && i < count; ++i) {
    ibv_device* const device = list.get()[i];
    if (name == ibv_get_device_name(device)) {
      Context context(ibv_open_device(device));
      if (!context) refuse(name, "ibv_open_device");
      return context;
    }
    names += std::string(names.empty() ? "" : ", ") + ibv_get_device_name(device);
  }
  throw Error(ErrorCode::bad_argument,
              "no RDMA device '" + name + "' on this host, which has " + (names.empty() ? std::string("none") : names));
}

std::string name_of(const std::string& device, std::uint8_t port) {
  return "port " + std::to_string(port) + " of RDMA device " + device;
}

ibv_port_attr query_port(ibv_context* context, const std::string& device, std::uint8_t number) {
  ibv_port_attr port{};
  if (ibv_query_port(context, number, &port) != 0) refuse(device, "ibv_query_port");
  if (port.state != IBV_PORT_ACTIVE || port.link_layer != IBV_LINK_LAYER_ETHERNET) {
    throw Error(ErrorCode::refused, name_of(device, number) + " is down, or is not an Ethernet port");
  }
  return port;
}

// As InfiniBand's specification numbers them: SDR, DDR, QDR, FDR10, FDR, EDR, HDR and NDR of a lane, and 1, 4, 8, 12 and 2
// lanes. Ports of Ethernet name the ones that make their rate.
std::uint64_t rate_of(const ibv_port_attr& port) {
  constexpr std::array<std::pair<unsigned, std::uint64_t>, 8> mbit_of_lane = {
      {{1, 2'500}, {2, 5'000}, {4, 10'000}, {8, 10'000}, {16, 14'000}, {32, 25'000}, {64, 50'000}, {128, 100'000}}};
  constexpr std::array<std::pair<unsigned, std::uint64_t>, 5> lanes = {{{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}}};
  const auto value = [](const auto& table, unsigned key) {
    const auto found = std::find_if(table.begin(), table.end(), [&](const auto& each) { return each.first == key; });
    return found == table.end() ? 0 : found->second;
  };
  return value(mbit_of_lane, port.active_speed) * value(lanes, port.active_width) * 1'000'000;
}

class Device final : public VerbsRing {
 public:
  explicit Device(const VerbsOptions& options)
      : options_(options),
        send_pages_(pages(options.send_bytes)),
        memory_(send_pages_ + pages(options.receive_bytes)),
        context_(open_device(options.device)),
        readable_(::epoll_create1(EPOLL_CLOEXEC)),
        in_flight_(options.messages) {
    const ibv_port_attr port = query_port(context_.get(), options.device, options.settings.port);
    if (options.mtu > bytes_of(port.active_mtu)) {
      throw Error(ErrorCode::refused, "RDMA device " + options.device + " takes path MTUs up to " +
                                          std::to_string(bytes_of(port.active_mtu)) + " bytes, not " +
                                          std::to_string(options.mtu));
    }
    find_address(port);
    domain_.reset(ibv_alloc_pd(context_.get()));
    check(domain_ != nullptr, "ibv_alloc_pd");
    region_.reset(ibv_reg_mr(domain_.get(), memory_.data(), memory_.size() * sizeof(Page),
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
    check(region_ != nullptr, "ibv_reg_mr");
    channel_.reset(ibv_create_comp_channel(context_.get()));
    check(channel_ != nullptr, "ibv_create_comp_channel");
    watch(channel_->fd);
    watch(context_->async_fd);
    // The predecessor is at most two windows ahead of this rank.
    const std::uint32_t receives = 2 * options.messages;
    queue_.reset(ibv_create_cq(context_.get(), static_cast<int>(options.messages + receives), nullptr, channel_.get(), 0));
    check(queue_ != nullptr, "ibv_create_cq");
    check(ibv_req_notify_cq(queue_.get(), 0) == 0, "ibv_req_notify_cq");
    sending_ = make_pair(options.messages, 1);
    receiving_ = make_pair(1, receives);
    for (std::uint32_t i = 0; i < receives; ++i) post_receive();
    own_.send_qp = sending_->qp_num;
    own_.receive_qp = receiving_->qp_num;
    own_.send_psn = options.first_psn.value_or(static_cast<std::uint32_t>(random_number())) & psn_mask;
    next_psn_ = own_.send_psn;
    own_.memory_address = reinterpret_cast<std::uintptr_t>(memory_.data() + send_pages_);
    own_.memory_key = region_->rkey;
  }

  const VerbsMember& own() const override { return own_; }
  std::span<std::byte> send_memory() override {
    return std::as_writable_bytes(std::span(memory_)).first(options_.send_bytes);
  }
  std::span<std::byte> receive_memory() override {
    return std::as_writable_bytes(std::span(memory_).subspan(send_pages_)).first(options_.receive_bytes);
  }

  void connect(const VerbsMember& successor, const VerbsMember& predecessor) override {
    successor_ = successor;
    // Receiving first. An accelerator passes nothing on before all ranks send, and by then all are ready to receive.
    make_ready(receiving_.get(), predecessor.address, predecessor.send_qp, predecessor.send_psn, 0);
    make_ready(sending_.get(), successor.address, successor.receive_qp, 0, own_.send_psn);
  }

  bool post(std::span<const std::byte> message, std::uint64_t offset, std::uint32_t immediate) override {
    if (posted_ - completed_ >= options_.messages || gave_up_ || !failure_.empty()) return false;
    Posted& posted = in_flight_[posted_ % options_.messages];
    posted = {message, offset, immediate, next_psn_};
    if (!send(posted)) return false;
    ++posted_;
    next_psn_ = (next_psn_ + static_cast<std::uint32_t>(packets_of(message.size()))) & psn_mask;
    count(counters_.packets_sent, counters_.wire_bytes_sent, message.size());
    return true;
  }

  VerbsEvents take_events() override {
    taken_.swap(received_);
    received_.clear();
    return {completed_, taken_};
  }
  std::string failure() const override { return failure_; }
  const std::string& trouble() const override { return trouble_; }
  Duration patience() const override {
    return std::chrono::nanoseconds(std::uint64_t{4096} << options_.settings.ack_timeout) * (options_.settings.retries + 1);
  }

  std::span<const RxView> receive() override {
    // Asynchronous events are rare: it is enough to look for them when nothing else is there.
    if (poll() || (rearm() && poll()) || take_asynchronous()) return {&view_, 1};
    return {};
  }
  Sink& sink() override { return sink_; }
  int descriptor() const override { return readable_.number(); }
  Endpoint local() const override { return {own_.address, roce_port, 0}; }
  Counters counters() const override { return counters_; }
  std::uint64_t queued_bytes() const override { return 0; }

 private:
  // A message of this rank, until it is acknowledged.
  struct Posted {
    std::span<const std::byte> message;
    std::uint64_t offset = 0;
    std::uint32_t immediate = 0, psn = 0;  // of its first packet
  };

  // Protocols that send datagrams would write here: none does.
  class NoSink final : public Sink {
   public:
    ~NoSink() = default;
    std::span<std::byte> datagram(const Endpoint&, std::size_t bytes) override {
      ignored_.resize(bytes);
      return ignored_;
    }
    void multicast(std::span<const std::byte>, std::span<const Endpoint>) override {}
    void flush() override {}

   private:
    std::vector<std::byte> ignored_;
  };

  static std::size_t pages(std::size_t bytes) { return (bytes + sizeof(Page) - 1) / sizeof(Page); }
  void check(bool done, const char* call) const {
    if (!done) refuse(options_.device, call);
  }

  // Makes descriptor() readable when `descriptor` is.
  void watch(int descriptor) const {
    epoll_event event{};
    event.events = EPOLLIN;
    check(::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) | O_NONBLOCK) == 0 &&
              ::epoll_ctl(readable_.number(), EPOLL_CTL_ADD, descriptor, &event) == 0,
          "not to wait for events");
  }

  [[nodiscard]] std::string port_name() const { return name_of(options_.device, options_.settings.port); }

  // None: the entry has no RoCEv2 address.
  [[nodiscard]] std::optional<std::array<std::uint8_t, 16>> address_at(std::uint32_t index) const {
    ibv_gid_entry entry{};
    if (ibv_query_gid_ex(context_.get(), options_.settings.port, index, &entry, 0) != 0) return std::nullopt;
    if (entry.gid_type != IBV_GID_TYPE_ROCE_V2) return std::nullopt;
    return std::to_array(entry.gid.raw);
  }

  void find_address(const ibv_port_attr& port) {
    if (options_.settings.gid_index) {
      gid_index_ = *options_.settings.gid_index;
      const auto address = address_at(gid_index_);
      if (!address) {
        throw Error(ErrorCode::refused, port_name() + " has no RoCEv2 address at GID index " + std::to_string(gid_index_));
      }
      own_.address = *address;
      return;
    }
    // Prefers an IPv4 address, then an IPv6 one that is not link-local (Linux gives each port a link-local one).
    constexpr std::uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    bool found = false;
    for (int i = 0; i < port.gid_tbl_len && i <= UINT8_MAX; ++i) {
      const auto address = address_at(static_cast<std::uint32_t>(i));
      if (!address) continue;
      const bool v4 = std::memcmp(address->data(), mapped, sizeof mapped) == 0;
      const bool link_local = (*address)[0] == 0xfe && ((*address)[1] & 0xc0) == 0x80;
      if (link_local || (found && !v4)) continue;
      found = true;
      gid_index_ = static_cast<std::uint8_t>(i);
      own_.address = *address;
      if (v4) return;
    }
    if (found) return;
    throw Error(ErrorCode::refused, port_name() + " has no RoCEv2 address: assign an IP address to its interface");
  }

  QueuePair make_pair(std::uint32_t sends, std::uint32_t receives) {
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = queue_.get();
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap.max_send_wr = sends;
    wanted.cap.max_recv_wr = receives;
    wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
    QueuePair pair(ibv_create_qp(domain_.get(), &wanted));
    check(pair != nullptr, "ibv_create_qp");
    initialize(pair.get());
    return pair;
  }

  void initialize(ibv_qp* pair) const {
    ibv_qp_attr state{};
    state.qp_state = IBV_QPS_INIT;
    state.port_num = options_.settings.port;
    state.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    constexpr int what = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    check(ibv_modify_qp(pair, &state, what) == 0, "ibv_modify_qp (INIT)");
  }

  void make_ready(ibv_qp* pair, const std::array<std::uint8_t, 16>& peer, std::uint32_t peer_qp, std::uint32_t receive_psn,
                  std::uint32_t send_psn) {
    ibv_qp_attr state{};
    state.qp_state = IBV_QPS_RTR;
    state.path_mtu = mtu_of(options_.mtu);
    state.dest_qp_num = peer_qp;
    state.rq_psn = receive_psn;
    state.min_rnr_timer = not_ready_timer;
    state.ah_attr.is_global = 1;
    state.ah_attr.port_num = options_.settings.port;
    state.ah_attr.sl = options_.settings.service_level;
    std::copy(peer.begin(), peer.end(), state.ah_attr.grh.dgid.raw);
    state.ah_attr.grh.sgid_index = gid_index_;
    state.ah_attr.grh.hop_limit = hop_limit;
    state.ah_attr.grh.traffic_class = options_.settings.traffic_class;
    constexpr int to_receive = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    check(ibv_modify_qp(pair, &state, to_receive) == 0, "ibv_modify_qp (RTR)");
    state.qp_state = IBV_QPS_RTS;
    state.sq_psn = send_psn;
    state.timeout = options_.settings.ack_timeout;
    state.retry_cnt = options_.settings.retries;
    state.rnr_retry = options_.settings.retries;
    constexpr int to_send =
        IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    check(ibv_modify_qp(pair, &state, to_send) == 0, "ibv_modify_qp (RTS)");
  }

  // Takes the completion of a write with immediate; the data go straight to memory.
  void post_receive() {
    ibv_recv_wr request{}, *bad = nullptr;
    request.wr_id = of_receiving;
    if (ibv_post_recv(receiving_.get(), &request, &bad) != 0) fail(receiving_.get(), "no more receives are taken");
  }

  void fail(const ibv_qp* pair, const std::string& why) {
    if (!failure_.empty()) return;
    failure_ = std::string("the connection to the ") + (pair == sending_.get() ? "successor" : "predecessor") +
               " broke at " + port_name() + ": " + why;
  }

  [[nodiscard]] bool send(const Posted& posted) {
    ibv_sge place{reinterpret_cast<std::uintptr_t>(posted.message.data()), static_cast<std::uint32_t>(posted.message.size()),
                  region_->lkey};
    ibv_send_wr request{}, *bad = nullptr;
    request.wr_id = of_sending;
    request.sg_list = &place;
    request.num_sge = 1;
    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request.send_flags = IBV_SEND_SIGNALED;
    request.imm_data = htonl(posted.immediate);
    request.wr.rdma.remote_addr = successor_.memory_address + posted.offset;
    request.wr.rdma.rkey = successor_.memory_key;
    return ibv_post_send(sending_.get(), &request, &bad) == 0;
  }

  // Once a device has given up, all messages in flight end in an error.
  void on_sent(ibv_wc_status status) {
    if (status == IBV_WC_SUCCESS) {
      ++completed_;
      return;
    }
    if (status == IBV_WC_RETRY_EXC_ERR || status == IBV_WC_RNR_RETRY_EXC_ERR) gave_up_ = true;
    if (!gave_up_) return fail(sending_.get(), ibv_wc_status_str(status));
    ++returned_;
    if (completed_ + returned_ == posted_) begin_again();
  }

  // The successor takes what it has already for repeats, as those of a device. The receiving end is not touched.
  void begin_again() {
    gave_up_ = false;
    returned_ = 0;
    try {
      ibv_qp_attr state{};
      state.qp_state = IBV_QPS_RESET;
      check(ibv_modify_qp(sending_.get(), &state, IBV_QP_STATE) == 0, "ibv_modify_qp (RESET)");
      initialize(sending_.get());
      make_ready(sending_.get(), successor_.address, successor_.receive_qp, 0,
                 in_flight_[completed_ % options_.messages].psn);
      for (std::uint64_t message = completed_; message < posted_; ++message) {
        check(send(in_flight_[message % options_.messages]), "ibv_post_send");
      }
    } catch (const Error& error) {
      fail(sending_.get(), error.what());
    }
  }

  // Whether any event came.
  bool take_asynchronous() {
    bool any = false;
    ibv_async_event event{};
    for (; ibv_get_async_event(context_.get(), &event) == 0; any = true) {
      on_asynchronous(event);
      ibv_ack_async_event(&event);
    }
    return any;
  }

  void on_asynchronous(const ibv_async_event& event) {
    const auto of_port = [&] { return event.element.port_num == options_.settings.port; };
    const std::string words = port_name() + " reports an asynchronous event: " + ibv_event_type_str(event.event_type);
    switch (event.event_type) {
      case IBV_EVENT_PORT_ERR:
        if (of_port()) trouble_ = words;
        return;
      case IBV_EVENT_PORT_ACTIVE:
        if (of_port()) trouble_.clear();
        return;
      case IBV_EVENT_GID_CHANGE:
        if (!of_port() || address_at(gid_index_) == own_.address) return;
        break;
      case IBV_EVENT_CQ_ERR:
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
      case IBV_EVENT_DEVICE_FATAL:
        break;
      default:  // no errors of this ring's connections
        return;
    }
    if (failure_.empty()) failure_ = words;
  }

  // Whether any work completed.
  bool poll() {
    ibv_wc done[completions_at_once];
    const int number = ibv_poll_cq(queue_.get(), completions_at_once, done);
    if (number < 0) fail(sending_.get(), "its completions cannot be read");
    for (int i = 0; i < number; ++i) {
      const ibv_wc& each = done[i];
      if (each.wr_id == of_sending) {
        on_sent(each.status);
      } else if (each.status != IBV_WC_SUCCESS) {
        fail(receiving_.get(), ibv_wc_status_str(each.status));
      } else {
        received_.push_back({each.byte_len, ntohl(each.imm_data)});
        count(counters_.packets_received, counters_.wire_bytes_received, each.byte_len);
        post_receive();
      }
    }
    return number != 0;
  }

  // Makes the descriptor signal the next completion. False: it was armed already.
  bool rearm() {
    unsigned events = 0;
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    while (ibv_get_cq_event(channel_.get(), &queue, &context) == 0) ++events;
    if (events == 0) return false;
    ibv_ack_cq_events(queue_.get(), events);
    if (ibv_req_notify_cq(queue_.get(), 0) != 0) fail(sending_.get(), "its completions cannot be waited for");
    return true;
  }

  [[nodiscard]] std::uint64_t packets_of(std::uint64_t bytes) const { return (bytes + options_.mtu - 1) / options_.mtu; }

  // Counts without retransmissions, which the device does not report.
  void count(std::uint64_t& packets, std::uint64_t& wire_bytes, std::uint64_t bytes) const {
    const std::uint64_t of_message = packets_of(bytes);
    packets += of_message;
    wire_bytes += bytes + of_message * packet_overhead + message_overhead;
  }

  const VerbsOptions options_;
  const std::size_t send_pages_;
  std::vector<Page> memory_;  // the device reads and writes it as long as there is a queue pair
  Context context_;
  const Descriptor readable_;  // when completions or asynchronous events are there
  Owned<ibv_pd, ibv_dealloc_pd> domain_;
  Owned<ibv_mr, ibv_dereg_mr> region_;
  Owned<ibv_comp_channel, ibv_destroy_comp_channel> channel_;
  Owned<ibv_cq, ibv_destroy_cq> queue_;
  QueuePair sending_, receiving_;
  std::uint8_t gid_index_ = 0;
  VerbsMember own_, successor_;
  std::uint32_t next_psn_ = 0;
  std::vector<Posted> in_flight_;  // message m at m % VerbsOptions::messages
  std::uint64_t posted_ = 0, completed_ = 0;
  std::uint64_t returned_ = 0;  // since the device gave up, not acknowledged
  bool gave_up_ = false;
  std::vector<VerbsEvents::Received> received_, taken_;
  std::string failure_, trouble_;
  Counters counters_;
  NoSink sink_;
  const RxView view_{};
};

}  // namespace

std::unique_ptr<VerbsRing> open_verbs_ring(const VerbsOptions& options) {
  return std::make_unique<Device>(options);
}

VerbsPort verbs_port(const std::string& device, std::uint8_t port) {
  const Context context = open_device(device);
  const ibv_port_attr attributes = query_port(context.get(), device, port);
  return {bytes_of(attributes.active_mtu), rate_of(attributes)};
}

}  // namespace netsum::transport
