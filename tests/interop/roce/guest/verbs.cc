// RoCEv2 connections by way of libibverbs, in a guest: one to another guest, or two in a ring of guests. Whatever arrives is
// checked, word by word.
//
// usage: verbs [options] serve                  the end of a connection that receives messages (or is read from)
//        verbs [options] connect ADDRESS        the end that sends them all (or reads them), to `verbs serve` there
//        verbs [options] ring RANK ADDRESS...   sends to rank RANK + 1 and receives from RANK - 1, at most WINDOW messages
//                                               ahead of what was received
//   -o OPERATION   write, write_imm (ring: this), send, read
//   -s BYTES  -n MESSAGES  -w WINDOW  -m MTU  -p FIRST_PSN
//   -T EXPONENT    ack timeout: 4.096 us * 2^EXPONENT
//   -r RETRIES     at most 6: soft-RoCE takes 7 for "for ever", and would wait in silence for a switch that is gone
//   -l SECONDS     limit for everything
//   -x HOST:PORT   serve, connect: the other end is told of this one there, over TCP, and is no `verbs`
//
// Word i of message k: 0x01000193 * (7919 k + i + 1). In a ring: a header (4 words: "NRtv", ring 0 and rank in 16 bits each,
// k, packets of a message), then (rank + 1) * (1000 k + i), of which the sum over all ranks must arrive. All little-endian;
// the immediate value is k, and message k lies at k * BYTES of the peer's memory.
//
// Exit codes: 0 all is well, 1 wrong data, 2 a queue pair's error, 3 not in time, 4 usage or no such device.
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "exchange.h"

namespace {

using Clock = std::chrono::steady_clock;

enum Exit { good = 0, wrong_data = 1, queue_pair_error = 2, too_late = 3, unusable = 4 };
constexpr std::uint16_t exchange_port = 18600;  // TCP, where two ends tell each other of their queue pairs
constexpr std::uint32_t header_words = 4;

struct Options {
  ibv_wr_opcode operation = IBV_WR_RDMA_WRITE;
  std::uint32_t bytes = 65536, messages = 4, window = 0, mtu = 1024, timeout = 17, retries = 6;
  long first_psn = -1;
  int limit_seconds = 60;
  std::string exchange;
};

[[noreturn]] void end(Exit code, const std::string& why) {
  std::printf("%s\n", why.c_str());
  std::exit(code);
}

void need(bool done, const char* what) {
  if (!done) end(unusable, std::string(what) + ": " + std::strerror(errno));
}

class Deadline {
 public:
  explicit Deadline(int seconds) : end_(Clock::now() + std::chrono::seconds(seconds)) {}
  void check(const std::string& what) const {
    if (Clock::now() > end_) end(too_late, "not in time: " + what);
  }

 private:
  Clock::time_point end_;
};

struct Device {
  ibv_context* context;
  ibv_pd* domain;
  ibv_gid gid;
  std::uint8_t gid_index = 0;

  Device() {
    ibv_device** const list = ibv_get_device_list(nullptr);
    need(list != nullptr && *list != nullptr, "no RDMA device");
    context = ibv_open_device(*list);
    need(context != nullptr, "ibv_open_device");
    domain = ibv_alloc_pd(context);
    need(domain != nullptr, "ibv_alloc_pd");
    ibv_port_attr port{};
    need(ibv_query_port(context, 1, &port) == 0, "ibv_query_port");
    constexpr std::uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    for (; gid_index < port.gid_tbl_len; ++gid_index) {
      if (ibv_query_gid(context, 1, gid_index, &gid) == 0 && std::memcmp(gid.raw, mapped, sizeof mapped) == 0) return;
    }
    end(unusable, "no IPv4 address");
  }
};

ibv_mtu mtu_of(std::uint32_t bytes) {
  return bytes >= 4096   ? IBV_MTU_4096
         : bytes >= 2048 ? IBV_MTU_2048
         : bytes >= 1024 ? IBV_MTU_1024
         : bytes >= 512  ? IBV_MTU_512
                         : IBV_MTU_256;
}

class Connection {
 public:
  Connection(const Device& device, const Options& options)
      : device_(device), options_(options), memory_(std::size_t{options.bytes} / 4 * options.messages) {
    constexpr int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    region_ = ibv_reg_mr(device.domain, memory_.data(), memory_.size() * 4, access);
    need(region_ != nullptr, "ibv_reg_mr");
    queue_ = ibv_create_cq(device.context, static_cast<int>(2 * options.messages + 8), nullptr, nullptr, 0);
    need(queue_ != nullptr, "ibv_create_cq");
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = queue_;
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap = {options.window + 1, options.messages + 1, 1, 1, 0};
    pair_ = ibv_create_qp(device.domain, &wanted);
    need(pair_ != nullptr, "ibv_create_qp");
    ibv_qp_attr state{};
    state.qp_state = IBV_QPS_INIT;
    state.port_num = 1;
    state.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    need(ibv_modify_qp(pair_, &state, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0, "INIT");
    const long psn = options.first_psn >= 0 ? options.first_psn : random();
    own_.qp = pair_->qp_num;
    own_.psn = static_cast<std::uint32_t>(psn) & 0xffffff;
    own_.key = region_->rkey;
    own_.address = reinterpret_cast<std::uintptr_t>(memory_.data());
    std::memcpy(own_.gid, device.gid.raw, sizeof own_.gid);
  }

  // Tells the other end of itself over `socket`, and is ready to send and to receive when both are.
  void join(int socket) {
    socket_ = socket;
    Peer peer{};
    need(
        ::write(socket, &own_, sizeof own_) == sizeof own_ && ::recv(socket, &peer, sizeof peer, MSG_WAITALL) == sizeof peer,
        "exchange");
    peer_ = peer;
    for (std::uint32_t message = 0; receives() && message < options_.messages; ++message) {
      ibv_sge place = piece(message);
      ibv_recv_wr request{}, *bad = nullptr;
      request.wr_id = message;
      request.sg_list = &place;
      request.num_sge = 1;
      need(ibv_post_recv(pair_, &request, &bad) == 0, "ibv_post_recv");
    }
    ibv_qp_attr state{};
    state.qp_state = IBV_QPS_RTR;
    state.path_mtu = mtu_of(options_.mtu);
    state.dest_qp_num = peer.qp;
    state.rq_psn = peer.psn;
    state.max_dest_rd_atomic = 1;
    state.min_rnr_timer = 12;
    state.ah_attr.is_global = 1;
    state.ah_attr.port_num = 1;
    std::memcpy(state.ah_attr.grh.dgid.raw, peer.gid, sizeof peer.gid);
    state.ah_attr.grh.sgid_index = device_.gid_index;
    state.ah_attr.grh.hop_limit = 64;
    need(ibv_modify_qp(pair_, &state,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0,
         "RTR");
    state.qp_state = IBV_QPS_RTS;
    state.sq_psn = own_.psn;
    state.timeout = static_cast<std::uint8_t>(options_.timeout);
    state.retry_cnt = static_cast<std::uint8_t>(options_.retries);
    state.rnr_retry = 7;
    state.max_rd_atomic = 1;
    need(ibv_modify_qp(pair_, &state,
                       IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                           IBV_QP_MAX_QP_RD_ATOMIC) == 0,
         "RTS");
    meet();
  }

  // Returns when the other end is here too.
  void meet() const {
    arrive();
    await();
  }
  void arrive() const { need(::write(socket_, "", 1) == 1, "the other end is gone"); }
  void await() const {
    char byte = 0;
    need(::recv(socket_, &byte, 1, MSG_WAITALL) == 1, "the other end is gone");
  }

  void send(std::uint32_t message) {
    ibv_sge place = piece(message);
    ibv_send_wr request{}, *bad = nullptr;
    request.wr_id = message;
    request.sg_list = &place;
    request.num_sge = 1;
    request.opcode = options_.operation;
    request.send_flags = IBV_SEND_SIGNALED;
    request.imm_data = htonl(message);
    request.wr.rdma.remote_addr = peer_.address + std::uint64_t{message} * options_.bytes;
    request.wr.rdma.rkey = peer_.key;
    need(ibv_post_send(pair_, &request, &bad) == 0, "ibv_post_send");
  }

  // Whether something was completed.
  bool poll(ibv_wc& completion) {
    const int count = ibv_poll_cq(queue_, 1, &completion);
    need(count >= 0, "ibv_poll_cq");
    if (count == 0) return false;
    if (completion.status != IBV_WC_SUCCESS) {
      end(queue_pair_error, "message " + std::to_string(completion.wr_id) + ": " + ibv_wc_status_str(completion.status));
    }
    return true;
  }

  [[nodiscard]] std::uint32_t* message(std::uint32_t number) {
    return memory_.data() + std::size_t{number} * (options_.bytes / 4);
  }
  [[nodiscard]] bool receives() const {
    return options_.operation == IBV_WR_SEND || options_.operation == IBV_WR_RDMA_WRITE_WITH_IMM;
  }

 private:
  [[nodiscard]] ibv_sge piece(std::uint32_t number) {
    return {reinterpret_cast<std::uintptr_t>(message(number)), options_.bytes, region_->lkey};
  }

  const Device& device_;
  const Options& options_;
  std::vector<std::uint32_t> memory_;
  ibv_mr* region_;
  ibv_cq* queue_;
  ibv_qp* pair_;
  Peer own_{}, peer_{};
  int socket_ = -1;
};

int listen_for_peers() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0), on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(exchange_port);
  need(::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 && ::listen(socket, 4) == 0, "listen");
  return socket;
}

int accept_peer(int listener) {
  const int socket = ::accept(listener, nullptr, nullptr);
  need(socket >= 0, "accept");
  return socket;
}

// `host`: an address, or ADDRESS:PORT.
int connect_to(const std::string& host, const Deadline& deadline) {
  const std::size_t colon = std::min(host.find(':'), host.size());
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port =
      htons(colon == host.size() ? exchange_port : static_cast<std::uint16_t>(std::stoul(host.substr(colon + 1))));
  if (inet_pton(AF_INET, host.substr(0, colon).c_str(), &address.sin_addr) != 1) end(unusable, "no address: " + host);
  while (true) {
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return socket;
    ::close(socket);
    deadline.check("a connection");
    ::usleep(100'000);  // the other end has not been started yet
  }
}

void fill(Connection& connection, const Options& options) {
  for (std::uint32_t k = 0; k < options.messages; ++k) {
    for (std::uint32_t i = 0; i < options.bytes / 4; ++i) connection.message(k)[i] = word(k, i);
  }
}

void expect(Connection& connection, const Options& options) {
  for (std::uint32_t k = 0; k < options.messages; ++k) {
    for (std::uint32_t i = 0; i < options.bytes / 4; ++i) {
      if (connection.message(k)[i] != word(k, i)) end(wrong_data, "message " + std::to_string(k) + " is wrong");
    }
  }
}

int serve(const Device& device, const Options& options) {
  const Deadline deadline(options.limit_seconds);
  Connection connection(device, options);
  if (options.operation == IBV_WR_RDMA_READ) fill(connection, options);
  connection.join(options.exchange.empty() ? accept_peer(listen_for_peers()) : connect_to(options.exchange, deadline));
  ibv_wc completion;
  for (std::uint32_t received = 0; connection.receives() && received < options.messages;) {
    if (connection.poll(completion))
      ++received;
    else
      deadline.check("message " + std::to_string(received));
  }
  connection.meet();  // all was acknowledged
  expect(connection, options);
  connection.meet();
  std::printf("served %u messages\n", options.messages);
  return good;
}

int connect(const Device& device, const Options& options, const char* host) {
  const Deadline deadline(options.limit_seconds);
  Connection connection(device, options);
  if (options.operation != IBV_WR_RDMA_READ) fill(connection, options);
  connection.join(connect_to(options.exchange.empty() ? host : options.exchange, deadline));
  ibv_wc completion;
  for (std::uint32_t sent = 0, completed = 0; completed < options.messages;) {
    if (sent < options.messages && sent - completed < options.window) connection.send(sent++);
    if (connection.poll(completion))
      ++completed;
    else
      deadline.check("message " + std::to_string(completed));
  }
  expect(connection, options);
  connection.meet();
  connection.meet();
  std::printf("completed %u messages\n", options.messages);
  return good;
}

int ring(const Device& device, const Options& options, std::uint32_t rank, char** hosts, std::uint32_t ranks) {
  const Deadline deadline(options.limit_seconds);
  const std::uint32_t before = (rank + ranks - 1) % ranks;
  // Equal numbers of queue pairs on all guests would hide mistakes: some are used up, of each rank others.
  for (std::uint32_t spare = 0; spare < 5 * rank + 3; ++spare) {
    ibv_qp_init_attr wanted{};
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap = {1, 1, 1, 1, 0};
    wanted.send_cq = wanted.recv_cq = ibv_create_cq(device.context, 4, nullptr, nullptr, 0);
    need(wanted.send_cq != nullptr && ibv_create_qp(device.domain, &wanted) != nullptr, "a spare queue pair");
  }
  Connection out(device, options), in(device, options);
  for (std::uint32_t k = 0; k < options.messages; ++k) {
    std::uint32_t* const words = out.message(k);
    std::memcpy(words, "NRtv", 4);
    words[1] = rank << 16;
    words[2] = k;
    words[3] = (options.bytes + options.mtu - 1) / options.mtu;
    for (std::uint32_t i = header_words; i < options.bytes / 4; ++i) words[i] = (rank + 1) * (1000 * k + i);
  }
  const int listener = listen_for_peers();
  for (const bool outwards : {rank == 0, rank != 0}) {  // rank 0 the other way round: somebody must begin
    if (outwards)
      out.join(connect_to(hosts[(rank + 1) % ranks], deadline));
    else
      in.join(accept_peer(listener));
  }
  std::uint32_t posted = 0, sent = 0, received = 0;
  ibv_wc completion;
  while (sent < options.messages || received < options.messages) {
    deadline.check("sent " + std::to_string(sent) + ", received " + std::to_string(received));
    while (posted < options.messages && posted - std::min(sent, received) < options.window) out.send(posted++);
    while (out.poll(completion)) ++sent;
    while (in.poll(completion)) {
      const std::uint32_t k = ntohl(completion.imm_data);
      if (k != received) end(wrong_data, "message " + std::to_string(k) + " in the place of " + std::to_string(received));
      const std::uint32_t* const words = in.message(k);
      if (words[1] >> 16 != before || words[2] != k) end(wrong_data, "message " + std::to_string(k) + ": another's header");
      for (std::uint32_t i = header_words; i < options.bytes / 4; ++i) {
        if (words[i] == ranks * (ranks + 1) / 2 * (1000 * k + i)) continue;
        end(wrong_data, "message " + std::to_string(k) + ", word " + std::to_string(i) + " is " + std::to_string(words[i]));
      }
      ++received;
    }
  }
  // Until the neighbours have everything, what they lack may be asked for.
  for (const Connection* each : {&out, &in}) each->arrive();
  for (const Connection* each : {&out, &in}) each->await();
  std::printf("ring: %u sums\n", received);
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Options options;
  for (int flag = 0; (flag = ::getopt(argc, argv, "o:s:n:w:m:p:T:r:l:x:")) != -1;) {
    const std::string text = optarg == nullptr ? "" : optarg;
    const auto number = static_cast<std::uint32_t>(std::strtoul(text.c_str(), nullptr, 0));
    switch (flag) {
      case 'o':
        options.operation = text == "write_imm" ? IBV_WR_RDMA_WRITE_WITH_IMM
                            : text == "send"    ? IBV_WR_SEND
                            : text == "read"    ? IBV_WR_RDMA_READ
                                                : IBV_WR_RDMA_WRITE;
        break;
      case 's':
        options.bytes = number;
        break;
      case 'n':
        options.messages = number;
        break;
      case 'w':
        options.window = number;
        break;
      case 'm':
        options.mtu = number;
        break;
      case 'p':
        options.first_psn = number;
        break;
      case 'T':
        options.timeout = number;
        break;
      case 'r':
        options.retries = number;
        break;
      case 'l':
        options.limit_seconds = static_cast<int>(number);
        break;
      case 'x':
        options.exchange = text;
        break;
      default:
        return unusable;
    }
  }
  if (options.retries > 6) end(unusable, "retry_cnt " + std::to_string(options.retries) + " is refused: 7 means for ever");
  if (options.window == 0) options.window = options.messages;
  const std::string command = optind < argc ? argv[optind] : "";
  const int words = argc - optind;
  const Device device;
  // Guests boot alike, and would have equal packet numbers.
  srandom(static_cast<unsigned>(Clock::now().time_since_epoch().count()) ^ device.gid.raw[15] * 2654435761U);
  if (command == "serve" && words == 1) return serve(device, options);
  if (command == "connect" && words == 2) return connect(device, options, argv[optind + 1]);
  if (command == "ring" && words > 3) {
    options.operation = IBV_WR_RDMA_WRITE_WITH_IMM;
    return ring(device, options, static_cast<std::uint32_t>(std::atoi(argv[optind + 1])), argv + optind + 2,
                static_cast<std::uint32_t>(words - 2));
  }
  end(unusable, "usage: verbs [options] serve | connect ADDRESS | ring RANK ADDRESS...");
}
