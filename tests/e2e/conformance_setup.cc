// Sets netsum up for conformance/run (docs/conformance.md): reads a job as a line of JSON, answers where it is, and ends
// with its input.
//   conformance_setup HOST:PORT    this daemon gets the job: all ranks join there, or (ATP) it is told of the job as a
//   switch conformance_setup              a worker of SwitchML, here
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "control/client.h"
#include "jobs/atp_job.h"
#include "jobs/netreduce_job.h"
#include "jobs/switchml_job.h"
#include "jobs/switchml_terms.h"
#include "protocol/switchml/worker_lane.h"
#include "tests/support/raw_channel.h"
#include "transport/addresses/addresses.h"
#include "transport/system/socket.h"
#include "wire/epochs.h"

namespace {

using namespace netsum;
using Json = nlohmann::json;
using Bytes = std::vector<std::byte>;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds patience = seconds(20);

Endpoint endpoint_in(const Json& pair) {
  return transport::resolve(pair[0].get<std::string>() + ":" + std::to_string(pair[1].get<int>()));
}

void send_to(int socket, const Endpoint& to, std::span<const std::byte> bytes) {
  sockaddr_storage address{};
  const socklen_t size = transport::to_sockaddr(to, false, address);
  static_cast<void>(sendto(socket, bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&address), size));
}

void answer(const Endpoint& at, Json more) {
  const std::string text = transport::to_string(at);
  more["address"] = text.substr(0, text.rfind(':'));
  more["port"] = at.port;
  std::cout << more << std::endl;
}

// Until the input ends, or for `limit`.
bool ended(milliseconds limit) {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  char byte;
  return poll(&input, 1, static_cast<int>(limit.count())) == 1 && read(STDIN_FILENO, &byte, 1) <= 0;
}

// Proof that a rank's socket, which is the kit's, receives what the daemon sends there.
std::uint64_t cookie_of(int socket, const Endpoint& lane) {
  std::array<std::byte, wire::switchml::probe_reply_bytes> probe{}, reply{};
  wire::switchml::write_probe(probe, {{wire::switchml::Type::probe, 0, 0, 0}, 1});
  for (int attempt = 0; attempt < 20; ++attempt) {
    send_to(socket, lane, probe);
    pollfd readable{socket, POLLIN, 0};
    if (poll(&readable, 1, 200) != 1) continue;
    const ssize_t bytes = recv(socket, reply.data(), reply.size(), 0);
    wire::switchml::Common common;
    wire::switchml::ProbePacket parsed{};
    const auto packet = std::span<const std::byte>(reply).first(static_cast<std::size_t>(std::max<ssize_t>(bytes, 0)));
    if (wire::switchml::parse_common(packet, common) == wire::ParseError::none &&
        wire::switchml::parse_probe(packet, common, parsed) == wire::ParseError::none)
      return parsed.cookie;
  }
  throw std::runtime_error("the daemon answers no probe");
}

// ---- ranks that join

netreduce::Member member_of(const Json& job, std::size_t rank) {
  netreduce::Member member;
  member.address = endpoint_in(job["ranks"][rank]).address;
  member.receive_qp = job["queue_pairs"][rank];
  member.send_qp = member.receive_qp & ~1U;
  member.send_psn = job["first_psn"];
  member.memory_key = 1;
  return member;
}

void join(const Json& job, const std::string& address) {
  const bool ring = job["protocol"] == "netreduce";
  const session::ProtocolRules rules = ring ? jobs::netreduce_rules() : jobs::switchml_rules();
  const std::size_t ranks = job["ranks"].size();
  std::vector<control::Client> clients;
  std::vector<session::Admission> admissions(ranks);
  std::vector<session::JoinRequest> requests(ranks);
  Endpoint lane;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    lane = clients.emplace_back(control::ClientOptions{address, "", ""}).hello(patience).lanes.front();
    session::JoinRequest& request = requests[rank];
    request.protocol_version = rules.version;
    request.protocol = rules.name;
    request.job = "conformance-" + std::to_string(getpid());
    request.rank = static_cast<std::uint32_t>(rank);
    request.world_size = static_cast<std::uint32_t>(ranks);
    request.packet_elements = job["packet_elements"];
    request.slots_fixed = job["slots"];
    request.endpoints = {endpoint_in(job["ranks"][rank])};
    request.cookies = {cookie_of(job["sockets"][std::to_string(rank)], lane)};
    request.own = ring ? jobs::own_part(jobs::RingAsk{job["message_packets"], {member_of(job, rank)}})
                       : jobs::own_part(jobs::SwitchMlAsk{});
  }
  {
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] { admissions[rank] = clients[rank].join(requests[rank], rules, patience); });
  }
  const session::Admission& admission = admissions.front();
  answer(lane, {{"job_epoch", admission.job_epoch},
                {"rank_epochs", admission.rank_epochs.values()},
                {"incarnation", jobs::incarnation_of(admission.job_epoch, 0)}});
  while (!ended(seconds(1))) {
    for (std::size_t rank = 0; rank < ranks; ++rank)
      static_cast<void>(
          clients[rank].heartbeat(admission.job_epoch, requests[rank].rank, admissions[rank].rank_epoch, patience));
  }
  for (std::size_t rank = 0; rank < ranks; ++rank)
    clients[rank].leave({admission.job_epoch, requests[rank].rank, admissions[rank].rank_epoch, {}}, patience);
}

// ---- a switch that is told of a job

void install(const Json& job, const std::string& address) {
  const control::ClientOptions options{address, "", ""};
  const Endpoint lane = control::Client(options).hello(patience).lanes.front();
  jobs::AtpInstallation installation;
  installation.job = "conformance";
  installation.job_epoch = job["job_epoch"].get<std::uint64_t>() + static_cast<std::uint64_t>(getpid());  // never again
  const std::vector<std::uint32_t> epochs = job["rank_epochs"];
  installation.folded_epochs = wire::fold_epochs(epochs);
  installation.packet_elements = job["packet_elements"];
  installation.window = job["slots"];
  installation.next_level = 1;
  jobs::AtpInstallation::Lane& own = installation.lanes.emplace_back();
  own.parent = endpoint_in(job["server"]);
  own.own = lane;
  for (std::size_t rank = 0; rank < epochs.size(); ++rank) {
    const std::uint64_t cookie = cookie_of(job["sockets"][std::to_string(rank)], lane);
    own.children.push_back(
        {endpoint_in(job["ranks"][rank]), false, epochs[rank], {static_cast<std::uint32_t>(rank)}, cookie, {}});
  }
  testing::RawChannel channel(options);
  const auto tell = [&] {
    const auto outcome = channel.call(control::Kind::install, control::write(jobs::message_of(installation)), patience);
    if (const std::string why = testing::RawChannel::why(outcome); !why.empty()) throw std::runtime_error(why);
    installation.again = true;
  };
  static_cast<void>(channel.call(control::Kind::hello, control::HelloRequest{}));
  tell();
  answer(lane, {{"job_epoch", installation.job_epoch}});
  while (!ended(seconds(1))) tell();
  // All jobs share the slots: those of this one are to be free.
  static_cast<void>(channel.call(control::Kind::uninstall, control::Uninstall{installation.job_epoch}));
}

// ---- a worker

class UdpSink final : public Sink {
 public:
  explicit UdpSink(int socket) : socket_(socket) {}
  ~UdpSink() = default;
  std::span<std::byte> datagram(const Endpoint& to, std::size_t bytes) override {
    return items_.emplace_back(to, Bytes(bytes)).second;
  }
  void multicast(std::span<const std::byte> packet, std::span<const Endpoint> to) override {
    for (const Endpoint& each : to) items_.emplace_back(each, Bytes(packet.begin(), packet.end()));
  }
  void flush() override {
    for (const auto& [to, bytes] : items_) send_to(socket_, to, bytes);
    items_.clear();
  }

 private:
  int socket_;
  std::vector<std::pair<Endpoint, Bytes>> items_;
};

void work(const Json& job) {
  const transport::Descriptor own(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage address{};
  socklen_t size = transport::to_sockaddr(transport::resolve("127.0.0.1:0"), false, address);
  if (bind(own.number(), reinterpret_cast<sockaddr*>(&address), size) != 0) throw std::runtime_error("no socket");
  getsockname(own.number(), reinterpret_cast<sockaddr*>(&address), &size);
  const std::vector<std::uint32_t> epochs = job["rank_epochs"];
  const std::uint32_t rank = job["rank"];
  switchml::WorkerConfig config;
  config.job_epoch = job["job_epoch"];
  config.rank = rank;
  config.world_size = static_cast<std::uint32_t>(epochs.size());
  config.rank_epoch = epochs[rank];
  config.folded_epochs = wire::fold_epochs(epochs);
  config.packet_elements = job["packet_elements"];
  config.slots = job["slots"];
  config.aggregator = endpoint_in(job["switch"]);
  const auto lane = switchml::make_worker_lane(config);

  const Json& call = job["call"];
  const std::vector<std::int32_t> values = call["values"];
  std::vector<std::int32_t> tensor(call["elements"].get<std::size_t>());
  for (std::size_t i = 0; i < tensor.size(); ++i) tensor[i] = values[i * values.size() / tensor.size()];
  stream::Operation operation;
  operation.dtype = DType::int32;
  operation.elements = tensor.size();
  operation.data = tensor.data();
  answer(transport::endpoint_of(address), Json::object());

  UdpSink sink(own.number());
  const auto now = [] { return Time(std::chrono::steady_clock::now().time_since_epoch()); };
  if (!lane->submit(operation, now(), sink)) throw std::runtime_error("the worker takes no call");
  for (;;) {
    sink.flush();
    if (!lane->take_completed().empty()) std::cout << Json{{"values", tensor}} << std::endl;
    std::array<pollfd, 2> ready{pollfd{STDIN_FILENO, POLLIN, 0}, pollfd{own.number(), POLLIN, 0}};
    poll(ready.data(), ready.size(), 1);
    if (ready[0].revents != 0) return;
    if (ready[1].revents != 0) {
      std::array<std::byte, 65536> bytes;
      sockaddr_storage from{};
      socklen_t length = sizeof from;
      const ssize_t got = recvfrom(own.number(), bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&from), &length);
      if (got < 0) continue;
      const RxView view{std::span<const std::byte>(bytes).first(static_cast<std::size_t>(got)),
                        transport::endpoint_of(from)};
      lane->on_packets(std::span(&view, 1), now(), sink);
    }
    if (now() >= lane->next_timeout()) lane->on_timer(now(), sink);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  std::string line;
  std::getline(std::cin, line);
  const Json job = Json::parse(line);
  const bool worker = job["role"] == "worker";
  if (worker != (argc == 1) || (worker && job["protocol"] != "switchml"))
    throw std::runtime_error("a switch is a daemon, whose HOST:PORT is to be named; a worker is SwitchML's, at none");
  if (worker) {
    work(job);
  } else if (job["protocol"] == "atp") {
    install(job, argv[1]);
  } else {
    join(job, argv[1]);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "conformance_setup: %s\n", error.what());
  return 1;
}
