// A tenant who harms others as well as one core can, with a token of its own:
//   hostile_tenant DAEMON[,DAEMON...] TOKEN VICTIM[,VICTIM...] [KIND...]
// attacks the daemons (control addresses) in all the ways below, or in those named; the victims are jobs of somebody else.
// With no daemons (an empty word) it is as busy and talks to nobody. It says "attacking" once all have begun, and after
// SIGTERM, or after 200 s, one line of JSON: what it sent, what was answered, and what reached an address that never asked
// for anything ("reflected").
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
#include <csignal>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "calls.h"
#include "control/border.h"
#include "control/client.h"
#include "jobs/atp_job.h"
#include "jobs/switchml_job.h"
#include "jobs/tree.h"
#include "sim/random.h"
#include "tests/support/raw_channel.h"
#include "transport/addresses/addresses.h"
#include "transport/system/socket.h"
#include "wire/atp.h"
#include "wire/switchml.h"

namespace {

using namespace netsum;
using std::chrono::milliseconds;
using std::chrono::seconds;
using transport::Descriptor;
using Bytes = std::vector<std::byte>;
using Json = nlohmann::ordered_json;
using control::Kind;
using hostile::Calls;
using testing::RawChannel;

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
  control::ClientOptions options;
  control::Hello hello{};
  [[nodiscard]] bool is_switch() const { return hello.is_switch; }
};

bool note(const std::string& what, const RawChannel::Outcome& outcome) {
  const auto& failure = outcome.answer.failure;
  const bool silence =
      outcome.error || (failure && (failure->kind == control::ErrorKind::busy || failure->kind == control::ErrorKind::late));
  const bool taken = !outcome.error && !failure;
  count(what + (taken ? "_taken" : silence ? "_unanswered" : "_refused"));
  return taken;
}

// Over a connection of its own.
void begin_join(Calls& calls, const std::string& what, const Daemon& daemon, const control::Join& join, milliseconds limit) {
  calls.begin(std::make_shared<Calls::Channel>(daemon.options, nullptr), Kind::join, control::write(join), limit,
              [what](const RawChannel::Outcome& outcome) { note(what, outcome); });
}
void wait_for(Calls& calls) {
  const auto end = Calls::Channel::Clock::now() + a_moment;
  do calls.proceed(end);
  while (Calls::Channel::Clock::now() < end);
}

constexpr std::string_view own_name = "hostile";  // in the daemons' tenants file

class Tenant {
 public:
  Tenant(const std::vector<std::string>& daemons, const std::string& token, std::vector<std::string> victims)
      : victims_(std::move(victims)) {
    for (const std::string& address : daemons) {
      Daemon& daemon = daemons_.emplace_back(Daemon{{address, token, ""}});
      daemon.hello = control::Client(daemon.options).hello(seconds(20));
    }
  }

  // Each runs in threads of its own, `threads` of them, until the end.
  struct Attack {
    std::size_t threads;
    std::function<void(sim::Random)> attack;
  };
  [[nodiscard]] std::map<std::string, Attack> kinds() {
    const auto of = [this](void (Tenant::*attack)(sim::Random), std::size_t threads = 1) {
      return Attack{threads, [this, attack](sim::Random random) { (this->*attack)(random); }};
    };
    return {{"data", of(&Tenant::data)},           {"joins", of(&Tenant::joins, 2)},  {"control", of(&Tenant::control, 2)},
            {"half_open", of(&Tenant::half_open)}, {"idle", of(&Tenant::idle)},       {"local", of(&Tenant::local)},
            {"switches", of(&Tenant::switches)},   {"reflect", of(&Tenant::reflect)}, {"others", of(&Tenant::others)}};
  }

 private:
  static void wait() { std::this_thread::sleep_for(a_moment); }

  const Daemon& any(sim::Random& random) const { return daemons_[random.below(daemons_.size())]; }

  // Blocking calls, one at a time; to each daemon over one connection.
  struct Caller {
    explicit Caller(const std::vector<Daemon>& daemons) {
      for (const Daemon& daemon : daemons) channels.try_emplace(daemon.options.address, daemon.options);
    }
    // The answer, if it is none that says no.
    template <class Message>
    std::optional<control::Bytes> operator()(const std::string& what, const Daemon& daemon, Kind kind,
                                             const Message& message) {
      auto outcome = channels.at(daemon.options.address).call(kind, control::write(message), seconds(2));
      if (!note(what, outcome)) return std::nullopt;
      return std::move(outcome.answer.payload);
    }
    std::map<std::string, RawChannel> channels;
  };

  // A socket at which a rank of ours is, and what shows each daemon that it is there.
  struct Rank {
    explicit Rank(const std::vector<Daemon>& daemons) {
      for (const Daemon& daemon : daemons) {
        std::vector<std::uint64_t>& cookies = proofs[daemon.options.address];
        for (const Endpoint& lane : daemon.hello.lanes) cookies.push_back(cookie_of(lane));
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
  [[nodiscard]] static control::Join request(const Daemon& daemon, const std::string& job, std::uint32_t rank,
                                             std::uint32_t world_size, const Endpoint& endpoint,
                                             const std::vector<std::uint64_t>& proved = {}) {
    control::Join join;
    session::JoinRequest& request = join.request;
    request.protocol_version = daemon.is_switch() ? wire::switchml::version : wire::atp::version;
    request.protocol = daemon.is_switch() ? "switchml" : "atp";
    request.job = job;
    request.rank = rank;
    request.world_size = world_size;
    request.packet_elements = 256;
    request.slots_fixed = 2;
    request.endpoints.assign(daemon.hello.lanes.size(), endpoint);
    request.cookies = proved;
    return join;
  }
  [[nodiscard]] control::Join request(const Daemon& daemon, const std::string& job, std::uint32_t rank,
                                      std::uint32_t world_size, const Rank& own) const {
    return request(daemon, job, rank, world_size, own.socket.local, own.proofs.at(daemon.options.address));
  }

  // Packets of no job, noise, and trains of such packets, to all data ports.
  void data(sim::Random random) {
    const Socket socket(SOCK_DGRAM, 1);
    std::vector<sockaddr_storage> lanes;
    for (const Daemon& daemon : daemons_) {
      for (const Endpoint& lane : daemon.hello.lanes) {
        static_cast<void>(transport::to_sockaddr(lane, false, lanes.emplace_back()));
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
    Caller call(daemons_);
    while (!stopping) {
      const Daemon& daemon = any(random);
      const control::Join asked = request(daemon, "h" + std::to_string(random.next()), 0, 1, own);
      const auto answer = call("join", daemon, Kind::join, asked);
      if (!answer || random.chance(0.1)) continue;
      const auto rules = daemon.is_switch() ? jobs::switchml_rules() : jobs::atp_rules();
      const auto admission = control::parse_admission(view(*answer), asked.request, rules);
      if (admission) call("leave", daemon, Kind::leave, control::Life{admission->job_epoch, 0, admission->rank_epoch, {}});
    }
  }

  // Ranks of jobs that never become complete.
  void half_open(sim::Random random) {
    const Rank own(daemons_);
    Calls calls;
    while (!stopping) {
      for (std::size_t i = calls.size(); i < half_open_joins; ++i) {
        const Daemon& daemon = any(random);
        control::Join join = request(daemon, "half" + std::to_string(random.below(200)),
                                     static_cast<std::uint32_t>(random.below(256)), 256, own);
        join.wait = std::chrono::minutes(30);
        begin_join(calls, "half_open", daemon, join, longest_life);
      }
      wait_for(calls);
    }
  }

  // Every other call, with nothing in it, with noise, and as messages that are none.
  void control(sim::Random random) {
    Caller call(daemons_);
    while (!stopping) {
      const Daemon& daemon = any(random);
      switch (random.below(6)) {
        case 0:
          call("hello", daemon, Kind::hello, control::HelloRequest());
          break;
        case 1:
          call("status", daemon, Kind::status, control::StatusRequest());
          break;
        case 2:
          call("heartbeat", daemon, Kind::heartbeat, control::Beat{{random.next(), 0, 0, {}}});
          break;
        case 3:
          call("install", daemon, Kind::install, jobs::message_of(jobs::AtpInstallation()));
          break;
        case 4:
          call("install_tree", daemon, Kind::install, jobs::message_of(jobs::TreeInstallation()));
          break;
        default:
          noise_to(daemon.options.address, random);
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
    keep("idle", idle_connections,
         [this](std::size_t i) { return connected(daemons_[i % daemons_.size()].options.address); });
  }
  void local(sim::Random) {
    for (const Daemon& daemon : daemons_) {
      const std::string& name = daemon.hello.local_socket;
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
      for (const Daemon& daemon : daemons_) {
        if (daemon.is_switch() || calls.size() > 10 * ranks_at_dead_switches) continue;
        const std::string job = "dead" + std::to_string(random.next());
        for (std::uint32_t rank = 0; rank < ranks_at_dead_switches; ++rank) {
          control::Join join = request(daemon, job, rank, ranks_at_dead_switches, own);
          join.request.switch_address = random.chance(0.3) ? "nowhere" + std::to_string(random.below(1000)) + ".invalid:7170"
                                                           : transport::to_string(dead[random.below(dead.size())]->local);
          join.request.own = jobs::own_part(jobs::AtpAsk{4096});
          join.wait = seconds(5);
          begin_join(calls, "at_dead_switch", daemon, join, seconds(10));
        }
      }
      wait_for(calls);
    }
  }

  // An installation whose parent is here, and whose children are a stranger's, who has never asked for it.
  void reflect(sim::Random random) {
    const Socket own(SOCK_DGRAM, 1), stranger(SOCK_DGRAM, 3);
    constexpr std::uint32_t children = 32, elements = 256;
    Caller call(daemons_);
    while (!stopping) {
      for (const Daemon& daemon : daemons_) {
        jobs::AtpInstallation installation;
        const std::uint64_t epoch = random.next();
        installation.job = "r" + std::to_string(epoch);
        installation.job_epoch = epoch;
        installation.folded_epochs = 7;
        installation.packet_elements = elements;
        installation.next_level = 1;
        installation.window = 64;
        jobs::AtpInstallation::Lane lane_of_others;
        lane_of_others.parent = own.local;
        for (std::uint32_t rank = 0; rank < children; ++rank) {
          lane_of_others.children.push_back({stranger.local, false, rank + 1, {rank}, 0});
        }
        installation.lanes.assign(daemon.hello.lanes.size(), lane_of_others);
        call("reflecting_install", daemon, Kind::install, jobs::message_of(installation));
        Bytes bytes(wire::atp::parameter_header_bytes + elements * 4);
        wire::atp::Common common;
        common.type = wire::atp::Type::parameter;
        common.job_epoch = epoch;
        common.rank_epoch = 7;
        common.elements = elements;
        wire::atp::write_parameter_header(bytes, common, 0);
        wire::atp::seal(bytes);
        for (const Endpoint& lane : daemon.hello.lanes) {
          sockaddr_storage to{};
          const socklen_t size = transport::to_sockaddr(lane, false, to);
          static_cast<void>(
              sendto(own.descriptor.number(), bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&to), size));
        }
        call("reflecting_join", daemon, Kind::join, request(daemon, installation.job, 0, 1, stranger.local));
      }
      wait();
      count("reflected", stranger.drain());
    }
    count("reflected", stranger.drain());
  }

  // Somebody else's jobs: their ranks, their ends, their names.
  void others(sim::Random random) {
    const Rank own(daemons_);
    Caller call(daemons_);
    Calls calls;
    while (!stopping) {
      for (const Daemon& daemon : daemons_) {
        if (const auto status = call("status", daemon, Kind::status, control::StatusRequest())) {
          const auto reply = control::parse<control::StatusReply>(view(*status));
          const Json report = Json::parse(reply ? reply->report_json : R"({"jobs": []})");
          for (const auto& job : report.at("jobs")) {
            if (job.at("tenant") == own_name) continue;  // may have a victim's name all the same
            count("others_seen");
            const control::Life life{job.at("job_epoch"), 0, static_cast<std::uint32_t>(random.next()), {}};
            call("others_leave", daemon, Kind::leave, life);
            call("others_uninstall", daemon, Kind::uninstall, control::Uninstall{life.job_epoch});
            call("others_heartbeat", daemon, Kind::heartbeat, control::Beat{life});
          }
        }
        for (const std::string& victim : victims_) {
          if (calls.size() > 64) continue;
          control::Join join = request(daemon, victim, static_cast<std::uint32_t>(random.below(2)), 2, own);
          join.wait = milliseconds(200);
          begin_join(calls, "others_name", daemon, join, seconds(2));
        }
      }
      wait_for(calls);
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
