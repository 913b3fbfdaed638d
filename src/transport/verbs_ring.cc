#include "transport/verbs_ring.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "netsum/error.h"
#include "transport/random.h"
#include "transport/socket.h"

namespace netsum::transport {
namespace {

constexpr std::uint8_t port_number = 1;
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
              "no RDMA device '" + name + "' here: there is " + (names.empty() ? std::string("none") : names));
}

ibv_port_attr query_port(ibv_context* context, const std::string& device) {
  ibv_port_attr port{};
  if (ibv_query_port(context, port_number, &port) != 0) refuse(device, "ibv_query_port");
  if (port.state != IBV_PORT_ACTIVE || port.link_layer != IBV_LINK_LAYER_ETHERNET) {
    throw Error(ErrorCode::refused, "the port of RDMA device " + device + " is no Ethernet port that is up");
  }
  return port;
}

class Device final : public VerbsRing {
 public:
  explicit Device(const VerbsOptions& options)
      : options_(options),
        send_pages_(pages(options.send_bytes)),
        memory_(send_pages_ + pages(options.receive_bytes)),
        context_(open_device(options.device)) {
    const ibv_port_attr port = query_port(context_.get(), options.device);
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
    check(::fcntl(channel_->fd, F_SETFL, ::fcntl(channel_->fd, F_GETFL) | O_NONBLOCK) == 0, "not to wait for events");
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
    if (posted_ - completed_ >= options_.messages || !failure_.empty()) return false;
    ibv_sge place{reinterpret_cast<std::uintptr_t>(message.data()), static_cast<std::uint32_t>(message.size()),
                  region_->lkey};
    ibv_send_wr request{}, *bad = nullptr;
    request.wr_id = of_sending;
    request.sg_list = &place;
    request.num_sge = 1;
    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request.send_flags = IBV_SEND_SIGNALED;
    request.imm_data = htonl(immediate);
    request.wr.rdma.remote_addr = successor_.memory_address + offset;
    request.wr.rdma.rkey = successor_.memory_key;
    if (ibv_post_send(sending_.get(), &request, &bad) != 0) return false;
    ++posted_;
    count(counters_.packets_sent, counters_.wire_bytes_sent, message.size());
    return true;
  }

  VerbsEvents take_events() override {
    taken_.swap(received_);
    received_.clear();
    return {completed_, taken_};
  }
  std::string failure() const override { return failure_; }

  std::span<const RxView> receive() override {
    if (!poll() && (!rearm() || !poll())) return {};
    return {&view_, 1};
  }
  Sink& sink() override { return sink_; }
  int descriptor() const override { return channel_->fd; }
  Endpoint local() const override { return {own_.address, roce_port, 0}; }
  Counters counters() const override { return counters_; }
  std::uint64_t queued_bytes() const override { return 0; }

 private:
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

  // Prefers an IPv4 address, then an IPv6 one that is not link-local (Linux gives each port a link-local one).
  void find_address(const ibv_port_attr& port) {
    constexpr std::uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    bool found = false;
    for (int i = 0; i < port.gid_tbl_len && i <= UINT8_MAX; ++i) {
      ibv_gid_entry entry{};
      if (ibv_query_gid_ex(context_.get(), port_number, static_cast<std::uint32_t>(i), &entry, 0) != 0) continue;
      if (entry.gid_type != IBV_GID_TYPE_ROCE_V2) continue;
      const bool v4 = std::memcmp(entry.gid.raw, mapped, sizeof mapped) == 0;
      const bool link_local = entry.gid.raw[0] == 0xfe && (entry.gid.raw[1] & 0xc0) == 0x80;
      if (found && !v4) continue;
      if (link_local) continue;
      found = true;
      gid_index_ = static_cast<std::uint8_t>(i);
      std::copy_n(entry.gid.raw, own_.address.size(), own_.address.begin());
      if (v4) return;
    }
    if (found) return;
    throw Error(ErrorCode::refused, "RDMA device " + options_.device + " has no RoCEv2 address: give its interface one");
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
    ibv_qp_attr state{};
    state.qp_state = IBV_QPS_INIT;
    state.port_num = port_number;
    state.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    constexpr int what = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    check(ibv_modify_qp(pair.get(), &state, what) == 0, "ibv_modify_qp (INIT)");
    return pair;
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
    state.ah_attr.port_num = port_number;
    std::copy(peer.begin(), peer.end(), state.ah_attr.grh.dgid.raw);
    state.ah_attr.grh.sgid_index = gid_index_;
    state.ah_attr.grh.hop_limit = hop_limit;
    constexpr int to_receive = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    check(ibv_modify_qp(pair, &state, to_receive) == 0, "ibv_modify_qp (RTR)");
    state.qp_state = IBV_QPS_RTS;
    state.sq_psn = send_psn;
    state.timeout = options_.ack_timeout;
    state.retry_cnt = retries;
    state.rnr_retry = retries;
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
    failure_ =
        std::string("the connection to the ") + (pair == sending_.get() ? "successor" : "predecessor") + " broke: " + why;
  }

  // Whether any work completed.
  bool poll() {
    ibv_wc done[completions_at_once];
    const int number = ibv_poll_cq(queue_.get(), completions_at_once, done);
    if (number < 0) fail(sending_.get(), "its completions cannot be read");
    for (int i = 0; i < number; ++i) {
      const ibv_wc& each = done[i];
      if (each.status != IBV_WC_SUCCESS) {
        fail(each.wr_id == of_sending ? sending_.get() : receiving_.get(), ibv_wc_status_str(each.status));
      } else if (each.wr_id == of_sending) {
        ++completed_;
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

  // Counts without retransmissions, which the device does not report.
  void count(std::uint64_t& packets, std::uint64_t& wire_bytes, std::uint64_t bytes) const {
    const std::uint64_t of_message = (bytes + options_.mtu - 1) / options_.mtu;
    packets += of_message;
    wire_bytes += bytes + of_message * packet_overhead + message_overhead;
  }

  const VerbsOptions options_;
  const std::size_t send_pages_;
  std::vector<Page> memory_;  // the device reads and writes it as long as there is a queue pair
  Context context_;
  Owned<ibv_pd, ibv_dealloc_pd> domain_;
  Owned<ibv_mr, ibv_dereg_mr> region_;
  Owned<ibv_comp_channel, ibv_destroy_comp_channel> channel_;
  Owned<ibv_cq, ibv_destroy_cq> queue_;
  QueuePair sending_, receiving_;
  std::uint8_t gid_index_ = 0;
  VerbsMember own_, successor_;
  std::uint64_t posted_ = 0, completed_ = 0;
  std::vector<VerbsEvents::Received> received_, taken_;
  std::string failure_;
  Counters counters_;
  NoSink sink_;
  const RxView view_{};
};

}  // namespace

std::unique_ptr<VerbsRing> open_verbs_ring(const VerbsOptions& options) {
  return std::make_unique<Device>(options);
}

std::uint32_t verbs_path_mtu(const std::string& device) {
  const Context context = open_device(device);
  return bytes_of(query_port(context.get(), device).active_mtu);
}

}  // namespace netsum::transport
