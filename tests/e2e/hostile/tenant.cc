// A tenant who harms others as well as one core can, with a token of its own:
//   hostile_tenant DAEMON[,DAEMON...] TOKEN VICTIM[,VICTIM...] [KIND...]
// attacks the daemons (control addresses) in all the ways below, or in those named; the victims are jobs of somebody else.
// With no daemons (an empty word) it is as busy and talks to nobody. It says "attacking" once all have begun, and after
// SIGTERM, or after 200 s, one line of JSON: what it sent, what was answered, and what reached an address that never asked
// for anything ("reflected").
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "control/border.h"
#include "control/credentials.h"
#include "control/netsum.grpc.pb.h"
#include "sim/random.h"
#include "transport/addresses.h"
#include "transport/socket.h"
#include "wire/atp.h"
#include "wire/switchml.h"

namespace {

using namespace netsum;
using std::chrono::milliseconds;
using std::chrono::seconds;
using transport::Descriptor;
using Bytes = std::vector<std::byte>;
using Json = nlohmann::ordered_json;
using Stub = control::v1::Aggregator::Stub;
namespace proto = control::v1;

// What is open at a time: more than a daemon has to bear of one tenant, and little enough for the machine.
constexpr std::size_t idle_connections = 600, local_connections = 300, half_open_joins = 300, dead_switches = 64;
constexpr std::uint32_t ranks_at_dead_switches = 12;
constexpr milliseconds longest_life = seconds(400), a_moment{20};
constexpr std::size_t busy_threads = 2;

std::atomic<bool> stopping = false;

std::mutex counts_mutex;
std::map<std::string, std::uint64_t> counts;
void count(const std::string& what, std::uint64_t times = 1) {
  const std::lock_guard lock(counts_mutex);
  counts[what] += times;
}

Endpoint loopback(std::uint8_t last) {
  return {.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, last}, .port = 0, .scope = 0};
}

// At 127.0.0.LAST, any port; nobody accepts.
struct Socket {
  Socket(int type, std::uint8_t last) : descriptor(socket(AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_storage address{};
    socklen_t size = transport::to_sockaddr(loopback(last), false, address);
    if (bind(descriptor.number(), reinterpret_cast<sockaddr*>(&address), size) != 0) throw std::runtime_error("no socket");
    if (type == SOCK_STREAM) listen(descriptor.number(), 0);
    getsockname(descriptor.number(), reinterpret_cast<sockaddr*>(&address), &size);
    local = transport::endpoint_of(address);
  }
  std::size_t drain() const {
    std::array<char, 2048> bytes;
    std::size_t packets = 0;
    while (recv(descriptor.number(), bytes.data(), bytes.size(), MSG_TRUNC) > 0) ++packets;
    return packets;
  }
  Descriptor descriptor;
  Endpoint local;
};

struct Daemon {
  std::string address;
  std::unique_ptr<control::Credentials> credentials;
  std::unique_ptr<Stub> stub;
  proto::HelloReply hello;
  [[nodiscard]] bool is_switch() const { return hello.pool_slots() != 0; }
};

// Calls that wait for their answers without a thread; all are over at the end.
class Calls {
 public:
  template <class Reply>
  struct Call {
    grpc::ClientContext context;
    proto::JoinRequest request;
    Reply reply;
  };
  void join(const std::string& what, const Daemon& daemon, const proto::JoinRequest& request, milliseconds limit);
  [[nodiscard]] std::size_t open() {
    const std::lock_guard lock(mutex_);
    return open_.size();
  }
  ~Calls() {
    std::unique_lock lock(mutex_);
    for (auto& each : open_) each->context.TryCancel();
    changed_.wait(lock, [&] { return open_.empty(); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Call<proto::JoinReply>>> open_;
};

template <class Request>
void prepare(grpc::ClientContext& context, const Daemon& daemon, const char* call, const Request& request,
             milliseconds limit) {
  context.set_deadline(std::chrono::system_clock::now() + limit);
  for (const auto& [key, proof] : daemon.credentials->proofs(call, request.SerializeAsString()))
    context.AddMetadata(key, proof);
}

void note(const std::string& what, const grpc::Status& status) {
  const bool silence = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ||
                       status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                       status.error_code() == grpc::StatusCode::CANCELLED;
  count(what + (status.ok() ? "_taken" : silence ? "_unanswered" : "_refused"));
}

void Calls::join(const std::string& what, const Daemon& daemon, const proto::JoinRequest& request, milliseconds limit) {
  auto call = std::make_shared<Call<proto::JoinReply>>();
  call->request = request;
  prepare(call->context, daemon, "Join", call->request, limit);
  {
    const std::lock_guard lock(mutex_);
    open_.push_back(call);
  }
  daemon.stub->async()->Join(&call->context, &call->request, &call->reply, [this, what, call](const grpc::Status& status) {
    note(what, status);
    const std::lock_guard lock(mutex_);
    std::erase(open_, call);
    changed_.notify_all();
  });
}

constexpr std::string_view own_name = "hostile";  // in the daemons' tenants file

class Tenant {
 public:
  Tenant(const std::vector<std::string>& daemons, const std::string& token, std::vector<std::string> victims)
      : victims_(std::move(victims)) {
    for (const std::string& address : daemons) {
      Daemon& daemon = daemons_.emplace_back();
      daemon.address = address;
      daemon.credentials = std::make_unique<control::Credentials>(token, "");
      daemon.stub = proto::Aggregator::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
      while (true) {
        grpc::ClientContext context;
        prepare(context, daemon, "Hello", proto::HelloRequest(), seconds(20));
        if (daemon.stub->Hello(&context, {}, &daemon.hello).ok()) break;
        const auto challenge = context.GetServerTrailingMetadata().find(control::challenge_key);
        if (challenge == context.GetServerTrailingMetadata().end() ||
            !daemon.credentials->learn({challenge->second.data(), challenge->second.size()})) {
          throw std::runtime_error(address + " does not answer");
        }
      }
    }
  }

  // Each runs in threads of its own, `threads` of them, until the end.
  struct Kind {
    std::size_t threads;
    std::function<void(sim::Random)> attack;
  };
  [[nodiscard]] std::map<std::string, Kind> kinds() {
    const auto of = [this](void (Tenant::*attack)(sim::Random), std::size_t threads = 1) {
      return Kind{threads, [this, attack](sim::Random random) { (this->*attack)(random); }};
    };
    return {{"data", of(&Tenant::data)},           {"joins", of(&Tenant::joins, 2)},  {"control", of(&Tenant::control, 2)},
            {"half_open", of(&Tenant::half_open)}, {"idle", of(&Tenant::idle)},       {"local", of(&Tenant::local)},
            {"switches", of(&Tenant::switches)},   {"reflect", of(&Tenant::reflect)}, {"others", of(&Tenant::others)}};
  }

 private:
  static void wait() { std::this_thread::sleep_for(a_moment); }

  Daemon& any(sim::Random& random) { return daemons_[random.below(daemons_.size())]; }

  template <class Request, class Reply>
  bool call(const std::string& what, Daemon& daemon, const char* name,
            grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*), const Request& request,
            Reply& reply) {
    grpc::ClientContext context;
    prepare(context, daemon, name, request, seconds(2));
    const grpc::Status status = (daemon.stub.get()->*method)(&context, request, &reply);
    note(what, status);
    return status.ok();
  }

  // A socket at which a rank of ours is, and what shows each daemon that it is there.
  struct Rank {
    explicit Rank(const std::vector<Daemon>& daemons) {
      for (const Daemon& daemon : daemons) {
        std::vector<std::uint64_t>& cookies = proofs[daemon.address];
        for (const auto& lane : daemon.hello.lanes()) cookies.push_back(cookie_of(*control::parse(lane)));
      }
    }
    [[nodiscard]] std::uint64_t cookie_of(const Endpoint& lane) const {
      sockaddr_storage to{};
      const socklen_t size = transport::to_sockaddr(lane, false, to);
      std::array<std::byte, wire::switchml::probe_reply_bytes> probe{}, reply{};
      wire::switchml::write_probe(probe, {{wire::switchml::Type::probe, 0, 0, 0}, 1});
      for (int attempt = 0; attempt < 20 && !stopping; ++attempt) {
        static_cast<void>(
            sendto(socket.descriptor.number(), probe.data(), probe.size(), 0, reinterpret_cast<sockaddr*>(&to), size));
        pollfd readable{socket.descriptor.number(), POLLIN, 0};
        if (poll(&readable, 1, 50) != 1) continue;
        const ssize_t bytes = recv(socket.descriptor.number(), reply.data(), reply.size(), 0);
        wire::switchml::Common common;
        wire::switchml::ProbePacket parsed{};
        const auto packet = std::span<const std::byte>(reply).first(static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
        if (wire::switchml::parse_common(packet, common) != wire::ParseError::none) continue;
        if (wire::switchml::parse_probe(packet, common, parsed) == wire::ParseError::none) return parsed.cookie;
      }
      return 0;
    }
    Socket socket{SOCK_DGRAM, 1};
    std::map<std::string, std::vector<std::uint64_t>> proofs;
  };

  // With `proved`, from where results may be sent to that socket: its cookies, as the lanes answer probes.
  [[nodiscard]] static proto::JoinRequest request(const Daemon& daemon, const std::string& job, std::uint32_t rank,
                                                  std::uint32_t world_size, const Endpoint& endpoint,
                                                  const std::vector<std::uint64_t>& proved = {}) {
    proto::JoinRequest request;
    request.set_protocol_version(daemon.is_switch() ? wire::switchml::version : wire::atp::version);
    request.set_protocol(daemon.is_switch() ? "switchml" : "atp");
    request.set_job(job);
    request.set_rank(rank);
    request.set_world_size(world_size);
    request.set_packet_elements(256);
    request.set_slots_fixed(2);
    for (int i = 0; i < daemon.hello.lanes_size(); ++i) control::write(endpoint, *request.add_endpoints());
    request.mutable_cookies()->Add(proved.begin(), proved.end());
    return request;
  }
  [[nodiscard]] proto::JoinRequest request(const Daemon& daemon, const std::string& job, std::uint32_t rank,
                                           std::uint32_t world_size, const Rank& own) const {
    return request(daemon, job, rank, world_size, own.socket.local, own.proofs.at(daemon.address));
  }

  // Packets of no job, noise, and trains of such packets, to all data ports.
  void data(sim::Random random) {
    const Socket socket(SOCK_DGRAM, 1);
    std::vector<sockaddr_storage> lanes;
    for (const Daemon& daemon : daemons_) {
      for (const auto& lane : daemon.hello.lanes()) {
        static_cast<void>(transport::to_sockaddr(*control::parse(lane), false, lanes.emplace_back()));
      }
    }
    constexpr std::size_t batch = 64;
    std::vector<Bytes> packets(batch);
    while (!stopping) {
      if (random.chance(0.5)) {
        send_train(socket, lanes[random.below(lanes.size())], random);
      } else {
        for (int i = 0; i < 8; ++i) packets[random.below(batch)] = packet(random);
        send_all(socket, lanes[random.below(lanes.size())], packets);
      }
      count("answers", socket.drain());
    }
  }

  static Bytes packet(sim::Random& random) {
    Bytes bytes(random.chance(0.5) ? wire::switchml::chunk_header_bytes + 4 : random.below(1400));
    if (bytes.size() < wire::switchml::chunk_header_bytes + 4 || random.chance(0.1)) {
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
      return bytes;
    }
    bytes.resize(wire::switchml::chunk_packet_bytes(
        {.elements = static_cast<std::uint16_t>((bytes.size() - wire::switchml::chunk_header_bytes) / 4)}));
    wire::switchml::write_chunk_header(
        bytes, {wire::switchml::Type::contribution, 0, random.next(), 1},
        {.elements = static_cast<std::uint16_t>((bytes.size() - wire::switchml::chunk_header_bytes) / 4)});
    wire::switchml::seal(bytes);
    return bytes;
  }

  static void send_all(const Socket& socket, sockaddr_storage& lane, std::vector<Bytes>& packets) {
    std::vector<iovec> parts(packets.size());
    std::vector<mmsghdr> messages(packets.size());
    for (std::size_t i = 0; i < packets.size(); ++i) {
      parts[i] = {packets[i].data(), packets[i].size()};
      messages[i].msg_hdr.msg_name = &lane;
      messages[i].msg_hdr.msg_namelen = sizeof(sockaddr_in);
      messages[i].msg_hdr.msg_iov = &parts[i];
      messages[i].msg_hdr.msg_iovlen = 1;
    }
    const int sent = sendmmsg(socket.descriptor.number(), messages.data(), static_cast<unsigned>(messages.size()), 0);
    if (sent > 0) count("datagrams", static_cast<std::uint64_t>(sent));
  }

  // Many datagrams for one system call.
  static void send_train(const Socket& socket, sockaddr_storage& lane, sim::Random& random) {
    constexpr std::size_t of_train = 64;
    constexpr std::uint16_t each = wire::switchml::chunk_header_bytes + 4;
    Bytes bytes(of_train * each);
    for (std::size_t i = 0; i < of_train; ++i) {
      const auto one = std::span(bytes).subspan(i * each, each);
      wire::switchml::write_chunk_header(one, {wire::switchml::Type::exponent_contribution, 0, random.next(), 1},
                                         {.exponents = 1});
      wire::switchml::seal(one);
    }
    iovec part{bytes.data(), bytes.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof each)> room{};
    msghdr message{};
    message.msg_name = &lane;
    message.msg_namelen = sizeof(sockaddr_in);
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = room.data();
    message.msg_controllen = room.size();
    cmsghdr* const length = CMSG_FIRSTHDR(&message);
    length->cmsg_level = SOL_UDP;
    length->cmsg_type = UDP_SEGMENT;
    length->cmsg_len = CMSG_LEN(sizeof each);
    std::memcpy(CMSG_DATA(length), &each, sizeof each);
    if (sendmsg(socket.descriptor.number(), &message, 0) > 0) count("datagrams", of_train);
  }

  // Whole jobs, one after the other; some of them are left to be found out.
  void joins(sim::Random random) {
    const Rank own(daemons_);
    while (!stopping) {
      Daemon& daemon = any(random);
      proto::JoinReply reply;
      if (!call("join", daemon, "Join", &Stub::Join, request(daemon, "h" + std::to_string(random.next()), 0, 1, own), reply))
        continue;
      if (random.chance(0.1)) continue;
      proto::Membership membership;
      membership.set_job_epoch(reply.job_epoch());
      membership.set_rank_epoch(reply.rank_epoch());
      proto::LeaveReply left;
      call("leave", daemon, "Leave", &Stub::Leave, membership, left);
    }
  }

  // Ranks of jobs that never become complete.
  void half_open(sim::Random random) {
    const Rank own(daemons_);
    Calls calls;
    while (!stopping) {
      for (std::size_t i = calls.open(); i < half_open_joins; ++i) {
        Daemon& daemon = any(random);
        proto::JoinRequest join = request(daemon, "half" + std::to_string(random.below(200)),
                                          static_cast<std::uint32_t>(random.below(256)), 256, own);
        join.set_wait_ms(1'800'000);
        calls.join("half_open", daemon, join, longest_life);
      }
      wait();
    }
  }

  // Every other call, with nothing in it, with noise, and as messages that are none.
  void control(sim::Random random) {
    while (!stopping) {
      Daemon& daemon = any(random);
      proto::HelloReply hello;
      proto::StatusReply status;
      proto::HeartbeatReply heartbeat;
      proto::InstallReply installed;
      proto::RingView view;
      proto::Membership nobody;
      nobody.set_job_epoch(random.next());
      switch (random.below(6)) {
        case 0:
          call("hello", daemon, "Hello", &Stub::Hello, {}, hello);
          break;
        case 1:
          call("status", daemon, "Status", &Stub::Status, {}, status);
          break;
        case 2:
          call("heartbeat", daemon, "Heartbeat", &Stub::Heartbeat, nobody, heartbeat);
          break;
        case 3:
          call("install", daemon, "Install", &Stub::Install, {}, installed);
          break;
        case 4:
          call("install_ring", daemon, "InstallRing", &Stub::InstallRing, {}, view);
          break;
        default:
          noise_to(daemon.address, random);
      }
    }
  }

  static void noise_to(const std::string& address, sim::Random& random) {
    const auto to = connected(address);
    Bytes bytes(random.below(4096));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
    static_cast<void>(send(to->number(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
    count("noise");
  }
  static std::unique_ptr<Descriptor> connected(const std::string& address) {
    auto to = std::make_unique<Descriptor>(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_storage there{};
    const socklen_t size = transport::to_sockaddr(transport::resolve(address), false, there);
    static_cast<void>(connect(to->number(), reinterpret_cast<const sockaddr*>(&there), size));
    return to;
  }

  // Keeps `most` connections, the oldest of which makes way for a new one now and then, as do those that were ended.
  template <class Connect>
  static void keep(const std::string& what, std::size_t most, const Connect& connect) {
    std::deque<std::unique_ptr<Descriptor>> open;
    while (!stopping) {
      std::erase_if(open, [](const auto& each) {
        char byte;
        return recv(each->number(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0 ||
               (errno != EAGAIN && errno != ENOTCONN && errno != EINPROGRESS);
      });
      if (open.size() == most) open.erase(open.begin(), open.begin() + static_cast<std::ptrdiff_t>(most / 20));
      for (std::size_t i = open.size(); i < most; ++i) {
        open.push_back(connect(i));
        count(what);
      }
      wait();
    }
  }
  void idle(sim::Random) {
    keep("idle", idle_connections, [this](std::size_t i) { return connected(daemons_[i % daemons_.size()].address); });
  }
  void local(sim::Random) {
    for (const Daemon& daemon : daemons_) {
      const std::string& name = daemon.hello.local_socket();
      if (name.empty()) continue;
      keep("local", local_connections, [&](std::size_t i) {
        auto to = std::make_unique<Descriptor>(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        sockaddr_un there{};
        there.sun_family = AF_UNIX;
        name.copy(there.sun_path + 1, sizeof there.sun_path - 1);
        static_cast<void>(connect(to->number(), reinterpret_cast<const sockaddr*>(&there),
                                  static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())));
        if (i % 2 == 0) static_cast<void>(send(to->number(), "noise", 5, MSG_NOSIGNAL));
        return to;
      });
      return;  // keep() does until the end
    }
  }

  // Jobs whose switches do not answer, or have no address.
  void switches(sim::Random random) {
    const Rank own(daemons_);
    std::vector<std::unique_ptr<Socket>> dead;
    for (std::size_t i = 0; i < dead_switches; ++i) dead.push_back(std::make_unique<Socket>(SOCK_STREAM, 1));
    Calls calls;
    while (!stopping) {
      for (Daemon& daemon : daemons_) {
        if (daemon.is_switch() || calls.open() > 10 * ranks_at_dead_switches) continue;
        const std::string job = "dead" + std::to_string(random.next());
        for (std::uint32_t rank = 0; rank < ranks_at_dead_switches; ++rank) {
          proto::JoinRequest join = request(daemon, job, rank, ranks_at_dead_switches, own);
          join.set_switch_address(random.chance(0.3) ? "nowhere" + std::to_string(random.below(1000)) + ".invalid:7170"
                                                     : transport::to_string(dead[random.below(dead.size())]->local));
          join.set_pool_slots(4096);
          join.set_wait_ms(5000);
          calls.join("at_dead_switch", daemon, join, seconds(10));
        }
      }
      wait();
    }
  }

  // An installation whose parent is here, and whose children are a stranger's, who has never asked for it.
  void reflect(sim::Random random) {
    const Socket own(SOCK_DGRAM, 1), stranger(SOCK_DGRAM, 3);
    constexpr std::uint32_t children = 32, elements = 256;
    while (!stopping) {
      for (Daemon& daemon : daemons_) {
        proto::Installation installation;
        const std::uint64_t epoch = random.next();
        installation.set_job("r" + std::to_string(epoch));
        installation.set_job_epoch(epoch);
        installation.set_folded_epochs(7);
        installation.set_packet_elements(elements);
        installation.set_next_level(1);
        installation.set_window(64);
        for (int i = 0; i < daemon.hello.lanes_size(); ++i) {
          auto& lane = *installation.add_lanes();
          control::write(own.local, *lane.mutable_parent());
          for (std::uint32_t rank = 0; rank < children; ++rank) {
            auto& child = *lane.add_children();
            control::write(stranger.local, *child.mutable_endpoint());
            child.set_rank_epoch(rank + 1);
            child.add_ranks(rank);
          }
        }
        proto::InstallReply reply;
        call("reflecting_install", daemon, "Install", &Stub::Install, installation, reply);
        Bytes bytes(wire::atp::parameter_header_bytes + elements * 4);
        wire::atp::Common common;
        common.type = wire::atp::Type::parameter;
        common.job_epoch = epoch;
        common.rank_epoch = 7;
        common.elements = elements;
        wire::atp::write_parameter_header(bytes, common, 0);
        wire::atp::seal(bytes);
        for (const auto& lane : daemon.hello.lanes()) {
          sockaddr_storage to{};
          const socklen_t size = transport::to_sockaddr(*control::parse(lane), false, to);
          static_cast<void>(
              sendto(own.descriptor.number(), bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&to), size));
        }
        proto::JoinReply joined;
        call("reflecting_join", daemon, "Join", &Stub::Join,
             request(daemon, "r" + std::to_string(epoch), 0, 1, stranger.local), joined);
      }
      wait();
      count("reflected", stranger.drain());
    }
    count("reflected", stranger.drain());
  }

  // Somebody else's jobs: their ranks, their ends, their names.
  void others(sim::Random random) {
    const Rank own(daemons_);
    Calls calls;
    while (!stopping) {
      for (Daemon& daemon : daemons_) {
        proto::StatusReply status;
        if (call("status", daemon, "Status", &Stub::Status, {}, status)) {
          const Json report = Json::parse(status.report_json());
          for (const auto& job : report.at("jobs")) {
            if (job.at("tenant") == own_name) continue;  // may have a victim's name all the same
            count("others_seen");
            proto::Membership membership;
            membership.set_job_epoch(job.at("job_epoch"));
            membership.set_rank_epoch(static_cast<std::uint32_t>(random.next()));
            proto::LeaveReply left;
            proto::HeartbeatReply heartbeat;
            call("others_leave", daemon, "Leave", &Stub::Leave, membership, left);
            call("others_uninstall", daemon, "Uninstall", &Stub::Uninstall, membership, left);
            call("others_heartbeat", daemon, "Heartbeat", &Stub::Heartbeat, membership, heartbeat);
          }
        }
        for (const std::string& victim : victims_) {
          if (calls.open() > 64) continue;
          proto::JoinRequest join = request(daemon, victim, static_cast<std::uint32_t>(random.below(2)), 2, own);
          join.set_wait_ms(200);
          calls.join("others_name", daemon, join, seconds(2));
        }
      }
      wait();
    }
  }

  std::vector<std::string> victims_;
  std::vector<Daemon> daemons_;
};

std::vector<std::string> split(const std::string& words) {
  std::vector<std::string> list;
  std::istringstream in(words);
  for (std::string word; std::getline(in, word, ',');) list.push_back(word);
  return list;
}

// As hard as one core can: no thread of this process runs on another.
void stay_on_one_core() {
  cpu_set_t allowed, last;
  sched_getaffinity(0, sizeof allowed, &allowed);
  CPU_ZERO(&last);
  for (int cpu = CPU_SETSIZE - 1; CPU_COUNT(&last) == 0; --cpu) {
    if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &last);
  }
  sched_setaffinity(0, sizeof last, &last);
}

int run(const std::string& daemons, const std::string& token, const std::string& victims,
        const std::vector<std::string>& names) {
  sigset_t stop;  // blocked before any thread starts, so that only sigtimedwait() takes them
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  stay_on_one_core();

  Tenant tenant(split(daemons), token, split(victims));
  auto kinds = tenant.kinds();
  if (daemons.empty()) {
    kinds = {{"busy", {busy_threads, [](sim::Random random) {
                         while (!stopping) static_cast<void>(random.next());
                       }}}};
  }
  std::vector<std::thread> threads;
  for (const auto& [name, kind] : kinds) {
    if (!names.empty() && std::find(names.begin(), names.end(), name) == names.end()) continue;
    for (std::size_t i = 0; i < kind.threads; ++i) threads.emplace_back(kind.attack, sim::Random(threads.size()));
  }
  std::puts("attacking");
  std::fflush(stdout);
  const timespec life{std::chrono::duration_cast<seconds>(longest_life).count(), 0};
  while (sigtimedwait(&stop, nullptr, &life) < 0 && errno == EINTR) {  // it was stopped (SIGSTOP), and goes on
  }
  stopping = true;
  for (std::thread& thread : threads) thread.join();
  const std::lock_guard lock(counts_mutex);
  std::printf("%s\n", Json(counts).dump().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  try {
    return run(argv[1], argv[2], argv[3], {argv + 4, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "hostile_tenant: %s\n", error.what());
    return 1;
  }
}
