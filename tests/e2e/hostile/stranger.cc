// Sends what nobody should believe to a switch and to its workers, and watches what it gets for it:
//   stranger SEED DATAGRAMS_PER_SECOND KNOWLEDGE
// KNOWLEDGE is JSON: the switch's control address, a running job's name, epochs and shape, its workers' data addresses, and
// the addresses from which the switch believes them. So the forgeries are the best that somebody could send who has read all
// of a job's traffic and sits elsewhere. Says "storming" once a thousand datagrams are out, and after SIGTERM one line of
// JSON.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "control/border.h"
#include "control/client.h"
#include "sim/random.h"
#include "tests/support/raw_channel.h"
#include "transport/addresses/addresses.h"
#include "wire/epochs.h"
#include "wire/switchml.h"

namespace {

using namespace netsum;
using std::chrono::milliseconds;
using Bytes = std::vector<std::byte>;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;
using control::Kind;
using control::Life;
using testing::RawChannel;

std::atomic<bool> stopping = false;

constexpr std::size_t longest_datagram = 65507;
constexpr std::size_t burst_of_unknown = 300;  // more than a switch answers at once
constexpr milliseconds burst_interval{250};
constexpr milliseconds answers_take{300};
constexpr std::size_t complaints_kept = 10;

struct Knowledge {
  std::string control, job;
  std::uint64_t job_epoch;
  std::vector<std::uint32_t> rank_epochs;
  std::uint32_t packet_elements, slots;
  std::vector<Endpoint> workers, believed, lanes;
};

class Socket {
 public:
  // False if this host does not have the address, or the port is taken.
  [[nodiscard]] bool open(const Endpoint& local) {
    descriptor_ = ::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    sockaddr_storage address{};
    const socklen_t size = transport::to_sockaddr(local, false, address);
    return descriptor_ >= 0 && bind(descriptor_, reinterpret_cast<const sockaddr*>(&address), size) == 0;
  }
  Socket() = default;
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  bool send(const Endpoint& to, const Bytes& packet) const {
    sockaddr_storage address{};
    const socklen_t size = transport::to_sockaddr(to, false, address);
    return sendto(descriptor_, packet.data(), packet.size(), 0, reinterpret_cast<const sockaddr*>(&address), size) >= 0;
  }
  bool receive(Bytes& packet, Endpoint& from) const {
    packet.resize(longest_datagram);
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    const ssize_t got = recvfrom(descriptor_, packet.data(), packet.size(), 0, reinterpret_cast<sockaddr*>(&address), &size);
    if (got < 0) return false;
    packet.resize(static_cast<std::size_t>(got));
    from = transport::endpoint_of(address);
    return true;
  }

 private:
  int descriptor_ = -1;
};

// What came back while the job runs, and whether it was due: an answer to each probe, "unknown job" to a packet of a job
// that is not that one, both at most once and no longer than what they answer. Everything else is more than a stranger is
// entitled to.
class Ledger {
 public:
  explicit Ledger(std::uint64_t running) : running_(running) {}

  void sent(const Bytes& packet) {
    wire::switchml::Common common;
    wire::switchml::ProbePacket probe{};
    if (wire::switchml::parse_common(packet, common) != wire::ParseError::none) return;
    if (common.type == wire::switchml::Type::probe &&
        wire::switchml::parse_probe(packet, common, probe) == wire::ParseError::none) {
      probes_[probe.sequence] = packet.size();
    }
    const bool contribution =
        common.type == wire::switchml::Type::contribution || common.type == wire::switchml::Type::exponent_contribution;
    if (contribution && common.job_epoch != running_) unknown_[{common.job_epoch, common.rank_epoch}] = packet.size();
  }
  void received(const Bytes& packet, const Endpoint& from, const std::vector<Endpoint>& lanes) {
    bytes_ += packet.size();
    wire::switchml::Common common;
    if (std::find(lanes.begin(), lanes.end(), from) == lanes.end()) return complain("a datagram from elsewhere", packet);
    if (wire::switchml::parse_common(packet, common) != wire::ParseError::none)
      return complain("a malformed answer", packet);
    if (common.type == wire::switchml::Type::probe_reply) {
      ++probe_replies_;
      wire::switchml::ProbePacket reply{};
      if (wire::switchml::parse_probe(packet, common, reply) != wire::ParseError::none)
        return complain("a malformed answer", packet);
      take(probes_, reply.sequence, packet);
    } else if (common.type == wire::switchml::Type::unknown_job) {
      ++unknown_replies_;
      take(unknown_, std::pair(common.job_epoch, common.rank_epoch), packet);
    } else {
      complain("a packet of a job", packet);
    }
  }
  void complain(const std::string& what) {
    ++complaints_;
    if (texts_.size() < complaints_kept) texts_.push_back(what);
  }
  [[nodiscard]] Json json() const {
    return {{"probe_replies", probe_replies_},
            {"unknown_job_replies", unknown_replies_},
            {"received_bytes", bytes_},
            {"not_entitled", complaints_},
            {"examples", texts_}};
  }

 private:
  void complain(const char* what, const Bytes& packet) {
    complain(what + (" of " + std::to_string(packet.size()) + " bytes, type ") +
             (packet.size() > 1 ? std::to_string(std::to_integer<int>(packet[1])) : "?"));
  }
  template <class Key>
  void take(std::map<Key, std::size_t>& due, const Key& key, const Bytes& packet) {
    const auto found = due.find(key);
    if (found == due.end()) return complain("an answer to nothing, or a second one", packet);
    if (packet.size() > found->second) complain("an answer longer than its question", packet);
    due.erase(found);
  }

  std::uint64_t running_;
  std::map<std::uint32_t, std::size_t> probes_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::size_t> unknown_;
  std::uint64_t probe_replies_ = 0, unknown_replies_ = 0, bytes_ = 0, complaints_ = 0;
  std::vector<std::string> texts_;
};

class DataStorm {
 public:
  DataStorm(std::uint64_t seed, const Knowledge& knowledge) : random_(seed), k_(knowledge), ledger_(knowledge.job_epoch) {
    if (!own_.open({.address = loopback(1), .port = 0, .scope = 0})) throw std::runtime_error("no socket");
    // A rank's own port at another address of this host.
    has_same_port_ = same_port_.open({.address = loopback(2), .port = k_.believed.front().port, .scope = 0});
  }

  Json run(std::uint64_t per_second) {
    const auto began = Clock::now();
    auto next_burst = began;
    std::uint64_t sent = 0;
    bool told = false;
    while (!stopping) {
      const double elapsed = std::chrono::duration<double>(Clock::now() - began).count();
      for (int i = 0; i < 64 && static_cast<double>(sent) < elapsed * static_cast<double>(per_second); ++i, ++sent)
        send_one();
      if (Clock::now() >= next_burst) {
        for (std::size_t i = 0; i < burst_of_unknown; ++i) send_unknown();
        next_burst += burst_interval;
      }
      drain();
      if (!told && sent >= 1000) {
        told = true;
        std::puts("storming");
        std::fflush(stdout);
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
    for (const auto end = Clock::now() + answers_take; Clock::now() < end;) {
      drain();
      std::this_thread::sleep_for(milliseconds(1));
    }
    Json json{{"seconds", seconds}, {"sent", sent_}, {"sent_bytes", sent_bytes_}, {"same_port", has_same_port_}};
    json.update(ledger_.json());
    return json;
  }

 private:
  static std::array<std::uint8_t, 16> loopback(std::uint8_t last) {
    return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, last};
  }
  const Endpoint& lane() { return k_.lanes[random_.below(k_.lanes.size())]; }
  std::uint32_t random32() { return static_cast<std::uint32_t>(random_.next()); }

  Bytes noise(std::size_t bytes) {
    Bytes packet(bytes);
    for (std::byte& byte : packet) byte = static_cast<std::byte>(random_.next());
    return packet;
  }

  // What a rank, or the switch, could send next, full of wrong values.
  Bytes chunk(wire::switchml::Type type, std::uint16_t rank, std::uint64_t job_epoch, std::uint32_t rank_epoch) {
    const bool values = type == wire::switchml::Type::contribution || type == wire::switchml::Type::result;
    const wire::switchml::ChunkHeader header{.operation = random_.chance(0.1) ? random_.next() : random_.below(1000),
                                             .chunk = static_cast<std::uint32_t>(random_.below(300)),
                                             .signature = random32(),
                                             .slot = static_cast<std::uint16_t>(random_.below(k_.slots)),
                                             .version = static_cast<std::uint8_t>(random_.below(2)),
                                             .exponents = static_cast<std::uint8_t>(values ? 0 : 1),
                                             .elements = static_cast<std::uint16_t>(values ? k_.packet_elements : 0),
                                             .ahead_operation = values ? wire::switchml::no_ahead : std::uint8_t{0}};
    Bytes packet = noise(wire::switchml::chunk_packet_bytes(header));
    wire::switchml::write_chunk_header(packet, {type, rank, job_epoch, rank_epoch}, header);
    if (!values) packet[wire::switchml::chunk_header_bytes] = std::byte{100};
    wire::switchml::seal(packet);
    return packet;
  }
  Bytes contribution() {
    const std::uint64_t rank = random_.below(k_.rank_epochs.size());
    const auto type = random_.chance(0.5) ? wire::switchml::Type::contribution : wire::switchml::Type::exponent_contribution;
    return chunk(type, static_cast<std::uint16_t>(rank), k_.job_epoch, k_.rank_epochs[rank]);
  }

  void send(const char* kind, const Endpoint& to, const Bytes& packet) {
    ledger_.sent(packet);
    if (!own_.send(to, packet)) return;
    ++sent_[kind];
    sent_bytes_ += packet.size();
  }

  void send_unknown() {
    Bytes packet = chunk(wire::switchml::Type::contribution, 0, random_.next(), random32());
    if (random_.chance(0.3)) {  // the shortest that asks for an answer
      packet.resize(wire::switchml::common_bytes);
      wire::switchml::seal(packet);
    }
    send("unknown_job", lane(), packet);
  }

  void send_one() {
    switch (random_.below(14)) {
      case 0:
        return send("noise", lane(), noise(random_.below(1500)));
      case 1: {
        Bytes packet = noise(random_.between(2, 1500));
        packet[0] = std::byte{wire::switchml::version};
        packet[1] = static_cast<std::byte>(random_.chance(0.8) ? random_.between(1, 9) : random_.between(10, 255));
        if (packet.size() >= wire::switchml::common_bytes && random_.chance(0.5)) wire::switchml::seal(packet);
        return send("noise_with_head", lane(), packet);
      }
      case 2: {
        Bytes packet = contribution();
        packet.resize(random_.below(packet.size()));
        if (packet.size() >= wire::switchml::common_bytes) wire::switchml::seal(packet);
        return send("truncated", lane(), packet);
      }
      case 3: {
        if (!random_.chance(0.03)) return send_unknown();
        Bytes packet = contribution();
        packet.resize(random_.between(packet.size() + 1, longest_datagram));
        wire::switchml::seal(packet);
        return send("oversized", lane(), packet);
      }
      case 4: {
        Bytes packet = contribution();
        packet[random_.below(packet.size())] ^= std::byte{1};
        return send("checksum", lane(), packet);
      }
      case 5:
        return send_unknown();
      case 6:
        return send("rank_epoch", lane(),
                    chunk(wire::switchml::Type::contribution,
                          static_cast<std::uint8_t>(random_.below(k_.rank_epochs.size())), k_.job_epoch, random32()));
      case 7: {
        const Bytes packet = contribution();
        if (has_same_port_ && random_.chance(0.5)) {
          if (same_port_.send(lane(), packet)) ++sent_["source_same_port"];
          return;
        }
        return send("source", lane(), packet);
      }
      case 8:
        return send(
            "rank", lane(),
            chunk(wire::switchml::Type::contribution, static_cast<std::uint8_t>(random_.between(k_.rank_epochs.size(), 255)),
                  k_.job_epoch, k_.rank_epochs[0]));
      case 9:
        return send("type", lane(),
                    chunk(random_.chance(0.5) ? wire::switchml::Type::result : wire::switchml::Type::exponent_result, 0,
                          k_.job_epoch, wire::fold_epochs(k_.rank_epochs)));
      case 10: {
        Bytes packet(random_.between(wire::switchml::common_bytes,
                                     random_.chance(0.1) ? wire::switchml::probe_reply_bytes - 1 : 1500));
        if (packet.size() < wire::switchml::probe_reply_bytes) {
          wire::switchml::write_unknown_job(packet, {wire::switchml::Type::probe, 0, 0, 0});
          packet[1] = static_cast<std::byte>(wire::switchml::Type::probe);
          wire::switchml::seal(packet);
          return send("probe_short", lane(), packet);
        }
        wire::switchml::write_probe(packet, {{wire::switchml::Type::probe, 0, k_.job_epoch, 0}, random32()});
        return send("probe", lane(), packet);
      }
      default:
        return send_to_worker();
    }
  }

  void send_to_worker() {
    const Endpoint& worker = k_.workers[random_.below(k_.workers.size())];
    const std::uint32_t folded = wire::fold_epochs(k_.rank_epochs);
    switch (random_.below(5)) {
      case 0:
        return send("worker_noise", worker, noise(random_.below(1500)));
      case 1: {
        Bytes packet(wire::switchml::common_bytes);
        const std::uint32_t epoch = k_.rank_epochs[random_.below(k_.rank_epochs.size())];
        wire::switchml::write_unknown_job(packet, {wire::switchml::Type::unknown_job, 0, k_.job_epoch, epoch});
        return send("worker_unknown_job", worker, packet);
      }
      case 2: {
        Bytes packet(wire::switchml::mismatch_bytes);
        wire::switchml::write_mismatch(
            packet, {{wire::switchml::Type::mismatch, 0, k_.job_epoch, folded}, random_.below(1000), 0, 1, 2, 0, 1});
        return send("worker_mismatch", worker, packet);
      }
      default:
        return send("worker_result", worker,
                    chunk(random_.chance(0.5) ? wire::switchml::Type::result : wire::switchml::Type::exponent_result, 0,
                          k_.job_epoch, folded));
    }
  }

  void drain() {
    Endpoint from;
    while (own_.receive(buffer_, from)) ledger_.received(buffer_, from, k_.lanes);
    while (has_same_port_ && same_port_.receive(buffer_, from)) ledger_.complain("an answer to a forged address");
  }

  sim::Random random_;
  const Knowledge& k_;
  Socket own_, same_port_;
  bool has_same_port_ = false;
  Ledger ledger_;
  std::map<std::string, std::uint64_t> sent_;
  std::uint64_t sent_bytes_ = 0;
  Bytes buffer_;
};

// Well-formed calls that must not work: for the running job with other epochs, and of shapes that cannot be.
class ControlStorm {
 public:
  ControlStorm(std::uint64_t seed, const Knowledge& knowledge)
      : random_(seed), k_(knowledge), channel_({k_.control, "", ""}) {}

  Json run() {
    while (!stopping) {
      switch (random_.below(3)) {
        case 0:
          heartbeat();
          break;
        case 1:
          ++leaves_;
          static_cast<void>(call(Kind::leave, control::write(forged())));
          break;
        default:
          ++joins_;
          if (call(Kind::join, forged_join())) ++believed_;
      }
    }
    return {{"heartbeats", heartbeats_}, {"leaves", leaves_}, {"joins", joins_}, {"believed", believed_}};
  }

 private:
  Life forged() {
    const std::uint64_t rank = random_.below(k_.rank_epochs.size());
    Life life{.job_epoch = random_.chance(0.8) ? k_.job_epoch : random_.next(),
              .rank = static_cast<std::uint32_t>(random_.chance(0.8) ? rank : random_.next())};
    // Of another rank, or none; never this one's.
    life.rank_epoch = random_.chance(0.5) ? k_.rank_epochs[rank] + 1 + static_cast<std::uint32_t>(random_.below(1000))
                                          : k_.rank_epochs[(rank + 1) % k_.rank_epochs.size()];
    if (life.rank != rank) life.rank_epoch = 0;
    return life;
  }

  // The answer, if it is none that says no.
  std::optional<control::Bytes> call(Kind kind, control::Bytes message) {
    auto outcome = channel_.call(kind, std::move(message), std::chrono::seconds(2));
    if (outcome.error || outcome.answer.failure) return std::nullopt;
    return std::move(outcome.answer.payload);
  }
  void heartbeat() {
    ++heartbeats_;
    const auto answer = call(Kind::heartbeat, control::write(control::Beat{forged()}));
    if (!answer) return;
    const auto reply = control::parse<session::HeartbeatReply>(view(*answer));
    if (!reply || reply->state != session::HeartbeatReply::State::unknown || !reply->reason.empty()) ++believed_;
  }
  control::Bytes forged_join() {
    const auto from = [this](std::uint64_t least) { return static_cast<std::uint32_t>(random_.between(least, 0xffffffff)); };
    control::Join join;
    session::JoinRequest& request = join.request;
    request.protocol_version = wire::switchml::version;
    request.protocol = "switchml";
    request.job = k_.job;
    request.world_size = static_cast<std::uint32_t>(k_.rank_epochs.size());
    request.rank = static_cast<std::uint32_t>(random_.below(request.world_size));
    request.packet_elements = k_.packet_elements;
    request.slots_fixed = k_.slots;
    request.endpoints.assign(k_.lanes.size(), k_.workers.front());
    const std::uint64_t what = random_.below(7);
    if (what > 1) request.job = "s";
    switch (what) {
      case 0:
        break;  // the running job's own
      case 1:
        request.job = std::string(random_.below(100'000), 'j');
        request.world_size = 0;
        break;
      case 2:
        request.rank = from(256);
        request.world_size = from(257);
        break;
      case 3:
        request.packet_elements = from(15361);
        break;
      case 4:
        request.slots_fixed = from(4097);
        break;
      case 5: {  // one more endpoint, whose address is too long: fields 9 and 1, with their lengths
        const std::string address = std::string(random_.below(40), 'e') + "eeeeeeeeeeeeeeeee";
        const auto length = static_cast<char>(address.size());
        control::Bytes bytes = control::write(join);
        for (const char byte : std::string{0x4a, static_cast<char>(length + 2), 0x0a, length} + address)
          bytes.push_back(byte);
        return bytes;
      }
      default:  // alone of two, and not patient
        request.rank = 0;
        request.world_size = 2;
        join.wait = milliseconds(random_.below(20));
    }
    return control::write(join);
  }

  sim::Random random_;
  const Knowledge& k_;
  RawChannel channel_;
  std::uint64_t heartbeats_ = 0, leaves_ = 0, joins_ = 0, believed_ = 0;
};

std::vector<Endpoint> endpoints(const Json& list) {
  std::vector<Endpoint> out;
  for (const auto& each : list) out.push_back(transport::resolve(each.get<std::string>()));
  return out;
}

int run(std::uint64_t seed, std::uint64_t per_second, const Json& json) {
  sigset_t stop;  // blocked before any thread starts, so that only sigwait() takes them
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  sigaddset(&stop, SIGINT);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);

  Knowledge knowledge{json.at("control"),
                      json.at("job"),
                      json.at("job_epoch"),
                      json.at("rank_epochs"),
                      json.at("packet_elements"),
                      json.at("slots"),
                      endpoints(json.at("workers")),
                      endpoints(json.at("believed")),
                      {}};
  knowledge.lanes = control::Client({knowledge.control, "", ""}).hello(std::chrono::seconds(10)).lanes;

  DataStorm data(sim::derive(seed, 1), knowledge);
  ControlStorm control(sim::derive(seed, 2), knowledge);
  Json told_data, told_control;
  std::thread data_thread([&] { told_data = data.run(per_second); });
  std::thread control_thread([&] { told_control = control.run(); });
  int signal = 0;
  sigwait(&stop, &signal);
  stopping = true;
  data_thread.join();
  control_thread.join();
  told_data["control"] = told_control;
  std::printf("%s\n", told_data.dump().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    return run(std::stoull(argv[1]), std::stoull(argv[2]), Json::parse(argv[3]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stranger: %s\n", error.what());
    return 1;
  }
}
