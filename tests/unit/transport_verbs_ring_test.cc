// The ring on RDMA hardware, over a libibverbs that is none: it notes what a device is asked for, and ends work as the tests
// say. The functions here take the place of the library's.
#include "transport/rdma/verbs_ring.h"

#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "netsum/error.h"

namespace netsum::transport {
namespace {

using namespace std::chrono_literals;

struct Change {  // of a queue pair's state
  const ibv_qp* pair;
  ibv_qp_attr to;
};
struct Sent {
  std::uint64_t from, to;
  std::uint32_t bytes, immediate;
  bool operator==(const Sent&) const = default;
};

struct FakeDevice {
  ibv_device device{};
  ibv_context context{};
  ibv_pd domain{};
  ibv_mr region{};
  ibv_comp_channel channel{};
  ibv_cq queue{};
  std::vector<std::unique_ptr<ibv_qp>> pairs;  // the one that sends, and the one that receives
  std::vector<ibv_gid_entry> addresses;
  ibv_port_attr port{};
  std::vector<std::uint32_t> ports_asked;

  std::vector<Change> changes;
  std::vector<Sent> sent;
  std::uint32_t receives = 0;
  std::deque<ibv_wc> done;
  std::deque<ibv_async_event> events;
};
FakeDevice* fake = nullptr;

ibv_gid_entry address(std::initializer_list<std::uint8_t> bytes, std::uint32_t type = IBV_GID_TYPE_ROCE_V2) {
  ibv_gid_entry entry{};
  std::copy(bytes.begin(), bytes.end(), entry.gid.raw);
  entry.gid_type = type;
  return entry;
}

// An event descriptor that is readable while there is something.
void signal(int descriptor) {
  ASSERT_EQ(0, ::eventfd_write(descriptor, 1));
}
bool take_signal(int descriptor) {
  eventfd_t value = 0;
  return ::eventfd_read(descriptor, &value) == 0;
}

}  // namespace
}  // namespace netsum::transport

using netsum::transport::fake;

// ---- libibverbs

extern "C" {

ibv_device** ibv_get_device_list(int* count) {
  *count = 1;
  auto** const list = new ibv_device* [2] { &fake->device, nullptr };
  return list;
}
void ibv_free_device_list(ibv_device** list) {
  delete[] list;
}
const char* ibv_get_device_name(ibv_device*) {
  return "fake0";
}
ibv_context* ibv_open_device(ibv_device*) {
  return &fake->context;
}
int ibv_close_device(ibv_context*) {
  return 0;
}
int(ibv_query_port)(ibv_context*, std::uint8_t number, _compat_ibv_port_attr* attributes) {
  fake->ports_asked.push_back(number);
  *reinterpret_cast<ibv_port_attr*>(attributes) = fake->port;
  return 0;
}
int _ibv_query_gid_ex(ibv_context*, std::uint32_t, std::uint32_t index, ibv_gid_entry* entry, std::uint32_t, std::size_t) {
  if (index >= fake->addresses.size()) return ENODATA;
  *entry = fake->addresses[index];
  return 0;
}
ibv_pd* ibv_alloc_pd(ibv_context*) {
  return &fake->domain;
}
int ibv_dealloc_pd(ibv_pd*) {
  return 0;
}
ibv_mr*(ibv_reg_mr)(ibv_pd*, void*, std::size_t, int) {
  return &fake->region;
}
const char* ibv_event_type_str(ibv_event_type event) {
  return event == IBV_EVENT_PORT_ERR ? "port error" : event == IBV_EVENT_GID_CHANGE ? "GID table change" : "another event";
}
const char* ibv_wc_status_str(ibv_wc_status status) {
  return status == IBV_WC_REM_ACCESS_ERR ? "remote access error" : "another status";
}
ibv_mr* ibv_reg_mr_iova2(ibv_pd*, void*, std::size_t, std::uint64_t, unsigned int) {
  return &fake->region;  // in place of ibv_reg_mr(), where a compiler does not see the access as a constant
}
int ibv_dereg_mr(ibv_mr*) {
  return 0;
}
ibv_comp_channel* ibv_create_comp_channel(ibv_context*) {
  return &fake->channel;
}
int ibv_destroy_comp_channel(ibv_comp_channel*) {
  return 0;
}
ibv_cq* ibv_create_cq(ibv_context*, int, void*, ibv_comp_channel*, int) {
  return &fake->queue;
}
int ibv_destroy_cq(ibv_cq*) {
  return 0;
}
ibv_qp* ibv_create_qp(ibv_pd*, ibv_qp_init_attr*) {
  auto& pair = fake->pairs.emplace_back(std::make_unique<ibv_qp>());
  pair->context = &fake->context;
  pair->qp_num = static_cast<std::uint32_t>(fake->pairs.size());
  return pair.get();
}
int ibv_destroy_qp(ibv_qp*) {
  return 0;
}
int ibv_modify_qp(ibv_qp* pair, ibv_qp_attr* attributes, int) {
  fake->changes.push_back({pair, *attributes});
  return 0;
}
int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** queue, void**) {
  *queue = &fake->queue;
  return netsum::transport::take_signal(channel->fd) ? 0 : -1;
}
void ibv_ack_cq_events(ibv_cq*, unsigned) {}
int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  if (fake->events.empty()) return -1;
  *event = fake->events.front();
  fake->events.pop_front();
  if (fake->events.empty()) static_cast<void>(netsum::transport::take_signal(context->async_fd));
  return 0;
}
void ibv_ack_async_event(ibv_async_event*) {}

}  // extern "C"

namespace netsum::transport {
namespace {

int poll_cq(ibv_cq*, int most, ibv_wc* out) {
  int number = 0;
  for (; number < most && !fake->done.empty(); ++number) {
    out[number] = fake->done.front();
    fake->done.pop_front();
  }
  return number;
}
int req_notify_cq(ibv_cq*, int) {
  return 0;
}
int post_send(ibv_qp*, ibv_send_wr* request, ibv_send_wr**) {
  fake->sent.push_back({request->sg_list->addr, request->wr.rdma.remote_addr, request->sg_list->length, request->imm_data});
  return 0;
}
int post_recv(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**) {
  ++fake->receives;
  return 0;
}

class VerbsRingTest : public testing::Test {
 protected:
  VerbsRingTest() {
    fake = &device_;
    device_.context.async_fd = ::eventfd(0, 0);
    device_.channel.fd = ::eventfd(0, 0);
    device_.context.ops.poll_cq = poll_cq;
    device_.context.ops.req_notify_cq = req_notify_cq;
    device_.context.ops.post_send = post_send;
    device_.context.ops.post_recv = post_recv;
    device_.queue.context = &device_.context;
    device_.port.state = IBV_PORT_ACTIVE;
    device_.port.link_layer = IBV_LINK_LAYER_ETHERNET;
    device_.port.active_mtu = IBV_MTU_1024;
    device_.addresses = {address({0xfe, 0x80}), address({0xfd, 7}),
                         address({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1}, IBV_GID_TYPE_ROCE_V1),
                         address({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 2}), address({0xfd, 8})};
    device_.port.gid_tbl_len = static_cast<int>(device_.addresses.size()) + 1;
  }
  ~VerbsRingTest() override {
    ring_.reset();
    ::close(device_.context.async_fd);
    ::close(device_.channel.fd);
  }

  static VerbsOptions options(const VerbsSettings& settings = {}) {
    VerbsOptions o;
    o.device = "fake0";
    o.settings = settings;
    o.mtu = 1024;
    o.messages = 4;
    o.send_bytes = 4 * 4096;
    o.receive_bytes = 8 * 4096;
    o.first_psn = 0xfffffe;
    return o;
  }
  void open(const VerbsSettings& settings = {}) {
    ring_ = open_verbs_ring(options(settings));
    VerbsMember successor, predecessor;
    successor.receive_qp = 77;
    successor.memory_address = 0x10000;
    predecessor.send_psn = 5;
    ring_->connect(successor, predecessor);
  }
  // The latest change of the pair that sends, or receives, to this state.
  [[nodiscard]] const ibv_qp_attr& last(std::size_t pair, ibv_qp_state state) const {
    const auto found = std::find_if(device_.changes.rbegin(), device_.changes.rend(), [&](const Change& change) {
      return change.pair == device_.pairs[pair].get() && change.to.qp_state == state;
    });
    EXPECT_NE(found, device_.changes.rend());
    return found->to;
  }
  // Message m of so many packets, at offset 4096 m.
  [[nodiscard]] bool post(std::uint32_t message, std::size_t packets) {
    return ring_->post(ring_->send_memory().subspan(message % 4 * 4096, packets * 1024 - 8), message * 4096, message);
  }
  // The oldest work of the pair that sends ends.
  void end(ibv_wc_status status) {
    ibv_wc wc{};
    wc.wr_id = 0;
    wc.status = status;
    device_.done.push_back(wc);
  }
  void happens(ibv_event_type type, int port = 1) {
    ibv_async_event event{};
    event.event_type = type;
    event.element.port_num = port;
    device_.events.push_back(event);
    signal(device_.context.async_fd);
  }
  [[nodiscard]] bool readable() const {
    pollfd descriptor{ring_->descriptor(), POLLIN, 0};
    return ::poll(&descriptor, 1, 0) == 1;
  }

  FakeDevice device_;
  std::unique_ptr<VerbsRing> ring_;
};

TEST_F(VerbsRingTest, APortHasARate) {
  struct Case {
    std::uint8_t speed, width;
    std::uint64_t gbit;
  };
  for (const auto& [speed, width, gbit] :
       {Case{4, 1, 10}, Case{32, 1, 25}, Case{4, 2, 40}, Case{32, 2, 100}, Case{64, 2, 200}, Case{128, 2, 400},
        Case{32, 16, 50}, Case{0, 2, 0}, Case{32, 0, 0}}) {
    device_.port.active_speed = speed;
    device_.port.active_width = width;
    const VerbsPort port = verbs_port("fake0", 1);
    EXPECT_EQ(gbit * 1'000'000'000, port.bits_per_second) << int{speed} << " " << int{width};
    EXPECT_EQ(1024U, port.mtu);
  }
}

TEST_F(VerbsRingTest, LeavesTheDeviceItsOwnValues) {
  open();
  EXPECT_EQ(2, ring_->own().address[15]) << "the first IPv4 address of RoCEv2";
  EXPECT_EQ(device_.ports_asked, std::vector<std::uint32_t>{1});
  for (const std::size_t pair : {0U, 1U}) {
    EXPECT_EQ(1, last(pair, IBV_QPS_INIT).port_num);
    const ibv_qp_attr &receiving = last(pair, IBV_QPS_RTR), &sending = last(pair, IBV_QPS_RTS);
    EXPECT_EQ(1, receiving.ah_attr.port_num);
    EXPECT_EQ(3, receiving.ah_attr.grh.sgid_index);
    EXPECT_EQ(2, receiving.ah_attr.grh.traffic_class);  // ECT(0)
    EXPECT_EQ(0, receiving.ah_attr.sl);
    EXPECT_EQ(20, sending.timeout);
    EXPECT_EQ(6, sending.retry_cnt);
  }
  EXPECT_EQ(5U, last(1, IBV_QPS_RTR).rq_psn);
  EXPECT_EQ(8U, device_.receives);
  EXPECT_EQ(4096ns * (1 << 20) * 7, ring_->patience());
}

TEST_F(VerbsRingTest, TakesAnOperatorsValues) {
  open({.port = 2, .gid_index = 4, .ack_timeout = 18, .retries = 5, .traffic_class = 106, .service_level = 3});
  EXPECT_EQ(8, ring_->own().address[1]);
  EXPECT_EQ(device_.ports_asked, std::vector<std::uint32_t>{2});
  for (const std::size_t pair : {0U, 1U}) {
    EXPECT_EQ(2, last(pair, IBV_QPS_INIT).port_num);
    const ibv_qp_attr &receiving = last(pair, IBV_QPS_RTR), &sending = last(pair, IBV_QPS_RTS);
    EXPECT_EQ(2, receiving.ah_attr.port_num);
    EXPECT_EQ(4, receiving.ah_attr.grh.sgid_index);
    EXPECT_EQ(106, receiving.ah_attr.grh.traffic_class);
    EXPECT_EQ(3, receiving.ah_attr.sl);
    EXPECT_EQ(18, sending.timeout);
    EXPECT_EQ(5, sending.retry_cnt);
  }
}

TEST_F(VerbsRingTest, RefusesAnAddressOfAnotherKind) {
  for (const std::uint8_t index : {std::uint8_t{2}, std::uint8_t{9}}) {
    try {
      open({.port = 2, .gid_index = index});
      FAIL() << "took it";
    } catch (const Error& error) {
      EXPECT_EQ(ErrorCode::refused, error.code());
      EXPECT_EQ("port 2 of RDMA device fake0 has no RoCEv2 address at GID index " + std::to_string(index),
                std::string(error.what()));
    }
  }
}

// Nobody answered: a rank is late. Two of three messages are not acknowledged.
TEST_F(VerbsRingTest, BeginsAgainWhenTheDeviceGivesUp) {
  open();
  for (int round = 0; round < 3; ++round) {
    device_.sent.clear();
    device_.changes.clear();
    const auto first = static_cast<std::uint32_t>(3 * round);
    ASSERT_TRUE(post(first, 2) && post(first + 1, 1) && post(first + 2, 3));
    const std::vector<Sent> sent = device_.sent;
    end(IBV_WC_SUCCESS);
    end(IBV_WC_RETRY_EXC_ERR);
    EXPECT_FALSE(ring_->receive().empty());
    EXPECT_EQ(first + 1, ring_->take_events().completed);
    EXPECT_FALSE(post(first + 3, 1)) << "the device has not returned all yet";
    EXPECT_TRUE(device_.changes.empty());
    end(IBV_WC_WR_FLUSH_ERR);
    EXPECT_FALSE(ring_->receive().empty());
    EXPECT_EQ("", ring_->failure());

    std::vector<ibv_qp_state> states;
    for (const Change& change : device_.changes) {
      EXPECT_EQ(change.pair, device_.pairs[0].get()) << "what the predecessor writes to is not touched";
      states.push_back(change.to.qp_state);
    }
    EXPECT_EQ(states, (std::vector{IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}));
    // Six packets a round, two of which were acknowledged, modulo 2^24.
    EXPECT_EQ((0xfffffeU + 6 * static_cast<std::uint32_t>(round) + 2) & 0xffffffU, last(0, IBV_QPS_RTS).sq_psn);
    EXPECT_EQ(77U, last(0, IBV_QPS_RTR).dest_qp_num);
    ASSERT_EQ(5U, device_.sent.size());
    EXPECT_EQ(sent[1], device_.sent[3]);
    EXPECT_EQ(sent[2], device_.sent[4]);
    end(IBV_WC_SUCCESS);
    end(IBV_WC_SUCCESS);
    EXPECT_FALSE(ring_->receive().empty());
    EXPECT_EQ(first + 3, ring_->take_events().completed);
  }
}

TEST_F(VerbsRingTest, OtherErrorsEndTheRing) {
  open();
  ASSERT_TRUE(post(0, 1) && post(1, 1));
  end(IBV_WC_REM_ACCESS_ERR);
  end(IBV_WC_WR_FLUSH_ERR);
  EXPECT_FALSE(ring_->receive().empty());
  EXPECT_EQ("the connection to the successor broke at port 1 of RDMA device fake0: remote access error", ring_->failure());
  EXPECT_FALSE(post(2, 1));
}

TEST_F(VerbsRingTest, AsynchronousErrorsEndTheRing) {
  for (const ibv_event_type type :
       {IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_DEVICE_FATAL}) {
    device_.pairs.clear();
    open();
    EXPECT_TRUE(ring_->receive().empty());
    EXPECT_FALSE(readable());
    happens(type);
    EXPECT_TRUE(readable());
    EXPECT_FALSE(ring_->receive().empty());
    EXPECT_FALSE(readable());
    EXPECT_EQ(std::string("port 1 of RDMA device fake0 reports an asynchronous event: ") + ibv_event_type_str(type),
              ring_->failure());
    EXPECT_FALSE(post(0, 1));
    ring_.reset();
  }
}

TEST_F(VerbsRingTest, OtherAsynchronousEventsEndNothing) {
  open();
  for (const ibv_event_type type : {IBV_EVENT_COMM_EST, IBV_EVENT_SQ_DRAINED, IBV_EVENT_QP_LAST_WQE_REACHED,
                                    IBV_EVENT_PORT_ACTIVE, IBV_EVENT_GID_CHANGE}) {
    happens(type);
    EXPECT_FALSE(ring_->receive().empty());
  }
  EXPECT_EQ("", ring_->failure() + ring_->trouble());
}

TEST_F(VerbsRingTest, APortMayComeBack) {
  open({.port = 2});
  happens(IBV_EVENT_PORT_ERR, 1);
  EXPECT_FALSE(ring_->receive().empty());
  EXPECT_EQ("", ring_->trouble()) << "another port";
  happens(IBV_EVENT_PORT_ERR, 2);
  EXPECT_FALSE(ring_->receive().empty());
  EXPECT_EQ("port 2 of RDMA device fake0 reports an asynchronous event: port error", ring_->trouble());
  EXPECT_EQ("", ring_->failure());
  happens(IBV_EVENT_PORT_ACTIVE, 1);
  EXPECT_FALSE(ring_->receive().empty());
  EXPECT_NE("", ring_->trouble());
  happens(IBV_EVENT_PORT_ACTIVE, 2);
  EXPECT_FALSE(ring_->receive().empty());
  EXPECT_EQ("", ring_->trouble());
}

TEST_F(VerbsRingTest, AnAddressThatWentAwayEndsTheRing) {
  open();
  device_.addresses[3].gid.raw[15] = 9;
  happens(IBV_EVENT_GID_CHANGE);
  EXPECT_FALSE(ring_->receive().empty());
  EXPECT_EQ("port 1 of RDMA device fake0 reports an asynchronous event: GID table change", ring_->failure());
}

}  // namespace
}  // namespace netsum::transport
