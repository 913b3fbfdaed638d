// Two racks' bumps and their root, which agree on a ring of foreign hosts (protocol/netreduce/learned_racks.h), as nodes of
// a search.
//
// A rack's node is its bump, and the one host there, which repeats its message until it has the sum. What the host sends
// comes to its bump at once, or is lost with the host. Its process may end at any time, and another one begin with queue
// pairs that are new, which sends when it has been told the other host's; a bump may be started again, with its state file.
// What is sent between the bumps, headers of messages among them, is the network of nodes.h.
#pragma once

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "model/nodes.h"
#include "support/rack_bump.h"

namespace netsum::model::learned_racks {

using testing::Bytes;
using testing::RackBump;

constexpr std::uint32_t ranks = 2;  // one in each rack

// A rule that is left out, to see that the search misses it.
enum class Wrongly : std::uint8_t {
  nothing,
  lives_repeat,             // of a root that is started again
  processes_repeat,         // of a rack's bump that is started again
  queue_pairs_not_awaited,  // hosts send to a process that is not there yet
};

struct Setup {
  std::uint32_t jobs = 1;           // one after the other
  std::uint32_t rack_restarts = 0;  // of the bump of rack 0
  std::uint32_t root_restarts = 0;
  Wrongly wrongly = Wrongly::nothing;
};

struct Job {
  explicit Job(const Setup& given) : setup(given) {
    netreduce::RingConfig ring = RackBump::ring_of({1, 1});
    ring.window = 1;
    ring.message_packets = 1;
    rings.push_back(ring);
    ring.racks.clear();
    for (std::uint32_t job = 0; job <= setup.jobs; ++job) {
      hosts.push_back(std::make_unique<testing::RingHosts>(ring, 1, 20 + job));
      for (std::uint32_t& psn : hosts.back()->first_psns) psn += 100 * job;
    }
  }

  // No two sums of different messages are alike.
  [[nodiscard]] static float value(std::uint32_t rank, std::uint32_t job) {
    return static_cast<float>((rank + 1U) << (4 * job));
  }
  [[nodiscard]] static float sum(std::uint32_t job) { return value(0, job) + value(1, job); }
  // The message of a host, as a frame to its bump.
  [[nodiscard]] Bytes message(std::uint32_t rank, std::uint32_t job) const {
    testing::Crafted made = hosts[job]->gradient(rank, 0, 0);
    for (std::size_t at = hosts[job]->skipped(0); at < made.payload.size(); at += 4) {
      store_le(made.payload.data() + at, std::bit_cast<std::uint32_t>(value(rank, job)));
    }
    return RackBump::framed(made.frame(), static_cast<std::uint8_t>(rank + 1), static_cast<std::uint8_t>(ranks - rank));
  }
  // What the file of a bump has of a connection.
  [[nodiscard]] netreduce::KnownConnection known(const netreduce::Connection& connection) const {
    netreduce::KnownConnection known{connection, {}};
    for (const auto& of : hosts) {
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        if (of->connections[rank] == connection) known.first_psn = of->first_psns[rank];
      }
    }
    return known;
  }

  Setup setup;
  std::vector<netreduce::RingConfig> rings;
  std::vector<std::unique_ptr<testing::RingHosts>> hosts;  // of each job, and of one more
};
using JobPointer = std::shared_ptr<const Job>;

// Bumps have no copies: a node has all that has ever changed it, and does it to another.
class BumpNode : public Node {
 public:
  BumpNode(JobPointer job, std::uint32_t number) : job_(std::move(job)), number_(number) { start({}, {}); }
  BumpNode(const BumpNode& other)
      : Node(other), job_(other.job_), number_(other.number_), restarts_(other.restarts_), events_(other.events_) {
    start(other.known_, other.started_);
    RecordingSink nobody;
    for (const Event& event : events_) give(event, nobody);
  }

  void check() const override { bump().accelerator().check(); }
  [[nodiscard]] Time when(std::size_t) override { return Time{} + std::chrono::hours(1); }
  void receive(const RxView& view, Time now, RecordingSink& out) override {
    // Racks send each other frames, and datagrams to the root.
    const std::uint32_t from = view.source.address[15];
    const bool frame = from != RackBump::root && number_ != RackBump::root;
    meet({frame ? RackBump::trunk_of(number_) : RackBump::socket_of(from), {view.bytes.begin(), view.bytes.end()}, now},
         out);
  }

 protected:
  struct Event {
    Endpoint from;
    Bytes bytes;
    Time now;
  };

  void meet(Event event, RecordingSink& out) {
    const std::vector<std::byte> before = state();
    give(event, out);
    if (state() != before) events_.push_back(std::move(event));
  }
  void restart(Time now) {
    ++restarts_;
    std::vector<netreduce::KnownConnection> known;
    for (const auto& connection : bump().accelerator().known()) known.push_back(job_->known(connection));
    events_.clear();
    start(std::move(known), now);
  }
  // What it sends to other nodes is put into `out`; to the host here: arrive().
  virtual void arrive(std::span<const std::byte> /*ip*/) {}
  [[nodiscard]] netreduce::Bump& bump() const { return *bump_->operator->(); }
  [[nodiscard]] bool wrongly(Wrongly what) const { return job_->setup.wrongly == what; }
  // As a random number.
  [[nodiscard]] std::uint64_t process() const {
    return 1 + 16 * number_ + (wrongly(Wrongly::processes_repeat) ? 0 : restarts_);
  }

  JobPointer job_;
  std::uint32_t number_, restarts_ = 0;

 private:
  void start(std::vector<netreduce::KnownConnection> known, Time now) {
    known_ = std::move(known);
    started_ = now;
    lives_ = 0;
    const std::uint64_t former = wrongly(Wrongly::lives_repeat) ? 0 : 1000 * restarts_;
    const RackBump::Start start{job_->rings, process(), [this, former] { return former + ++lives_; }, known_};
    bump_ = std::make_unique<RackBump>(number_, start, now);
  }
  [[nodiscard]] std::vector<std::byte> state() const {
    std::vector<std::byte> state;
    append_state(state);
    return state;
  }
  void give(const Event& event, RecordingSink& out) {
    if (RackBump::is_port(event.from)) {
      bump_->give_frame(event.from, event.bytes, event.now);
    } else {
      bump_->give_datagram(event.from, event.bytes, event.now);
    }
    for (const testing::Datagram& each : bump_->take()) {
      const bool port = RackBump::is_port(each.to);
      if (port && each.to != RackBump::trunk_of(number_)) {
        arrive(std::span(each.bytes).subspan(RackBump::ip_at));
        continue;
      }
      const auto sent = out.datagram(host(port ? 1 - number_ : RackBump::number_of(each.to)), each.bytes.size());
      std::copy(each.bytes.begin(), each.bytes.end(), sent.begin());
    }
    out.flush();
  }

  std::vector<netreduce::KnownConnection> known_;
  Time started_;
  std::uint64_t lives_ = 0;
  std::vector<Event> events_;  // that have changed it since it was started
  std::unique_ptr<RackBump> bump_;
};

class RackNode final : public BumpNode {
 public:
  // Hosts tell each other their queue pairs, by other means than these connections.
  [[nodiscard]] static bool is_greeting(std::span<const std::byte> bytes) { return bytes.size() == sizeof(std::uint32_t); }

  RackNode(JobPointer job, std::uint32_t rack) : BumpNode(std::move(job), rack) {}
  RackNode(const RackNode& other) = default;

  [[nodiscard]] std::unique_ptr<Node> clone() const override { return std::make_unique<RackNode>(*this); }
  void append_state(std::vector<std::byte>& out) const override {
    const auto gathered = bump().accelerator().gathered(incarnation());
    append_bytes(out, job_number_, other_job_, restarts_, gathered.attempt,
                 static_cast<std::uint8_t>(has_sum_ | gathered.begun << 1 | at_last_ << 2));
    bump().accelerator().append_state(out);
  }

  [[nodiscard]] Time when(std::size_t) override { return now_of(job_number_); }
  void receive(const RxView& view, Time now, RecordingSink& out) override {
    if (!is_greeting(view.bytes)) return BumpNode::receive(view, now, out);
    other_job_ = std::max(other_job_, load_le<std::uint32_t>(view.bytes.data()));
  }
  [[nodiscard]] std::vector<std::string> choices() const override {
    std::vector<std::string> choices;
    for (const auto choice : possible()) choices.emplace_back(words(choice));
    return choices;
  }
  void choose(std::size_t which, RecordingSink& out) override {
    switch (possible()[which]) {
      case Choice::send:
        return send(when(0), out);
      case Choice::begin:
        return begin_job(job_number_ + 1, out);
      case Choice::restart:
        return restart(when(0));
    }
  }
  // Of connections that have been replaced since, or to a bump that was started again.
  [[nodiscard]] bool is_past(const Packet& packet) const override {
    if (is_greeting(packet.bytes)) return load_le<std::uint32_t>(packet.bytes.data()) <= other_job_;
    const auto told = wire::netreduce::read_ring_agreement(packet.bytes);
    return told && (told->process != process() || told->attempt < bump().accelerator().gathered(incarnation()).attempt);
  }

  [[nodiscard]] bool finished() const override { return at_last_ && has_sum_; }
  void begin(Time, RecordingSink& out) override {
    if (at_last_) return;
    at_last_ = true;
    begin_job(job_->setup.jobs, out);
  }
  [[nodiscard]] Time next_timeout() const override { return finished() ? never : Time{}; }
  void on_timer(Time now, RecordingSink& out) override {
    if (!finished() && connected()) send(now, out);
  }

 private:
  enum class Choice : std::uint8_t { send, begin, restart };
  [[nodiscard]] static const char* words(Choice choice) {
    switch (choice) {
      case Choice::send:
        return "has the message of its host";
      case Choice::begin:
        return "has a new process at its host";
      case Choice::restart:
        return "is started again";
    }
    return "";
  }
  [[nodiscard]] std::vector<Choice> possible() const {
    std::vector<Choice> choices;
    if (!has_sum_ && connected()) choices.push_back(Choice::send);
    if (job_number_ + 1 < job_->setup.jobs) choices.push_back(Choice::begin);
    if (number_ == 0 && restarts_ < job_->setup.rack_restarts) choices.push_back(Choice::restart);
    return choices;
  }
  [[nodiscard]] bool connected() const { return other_job_ >= job_number_ || wrongly(Wrongly::queue_pairs_not_awaited); }
  void begin_job(std::uint32_t job, RecordingSink& out) {
    job_number_ = job;
    has_sum_ = false;
    store_le(out.datagram(host(1 - number_), sizeof job).data(), job);
    out.flush();
  }
  // A process begins when the former one has been silent for so long that a bump takes new connections.
  [[nodiscard]] static Time now_of(std::uint32_t job) {
    return Time{} + std::chrono::hours(1) + 2 * job * netreduce::Accelerator::restart_after;
  }
  [[nodiscard]] std::uint64_t incarnation() const { return RackBump::incarnation_at(job_->rings[0], number_); }

  void send(Time now, RecordingSink& out) {
    const auto own = static_cast<std::uint8_t>(number_ + 1);
    meet({RackBump::port_of(number_, own), job_->message(number_, job_number_), now}, out);
  }
  void arrive(std::span<const std::byte> ip) override {
    const testing::RingHosts& hosts = *job_->hosts[job_number_];
    wire::roce::Packet packet;
    if (wire::roce::parse(ip, packet) != wire::ParseError::none || !wire::roce::icrc_valid(ip))
      throw Wrong("a host gets a damaged packet");
    const netreduce::Connection connection{packet.ip.source, packet.ip.destination, packet.bth.destination_qp};
    if (connection != hosts.connections[ranks - 1 - number_]) return;  // of a process that is gone
    const wire::netreduce::Seal seal{job_->rings[0].incarnation, job_->rings[0].ring, 0, 0, ranks};
    if (wire::netreduce::read_seal(packet.payload) != wire::netreduce::seal_of(seal))
      throw Wrong("a host gets values that were not summed");
    for (std::size_t at = hosts.skipped(0); at < packet.payload.size(); at += 4) {
      const auto found = std::bit_cast<float>(load_le<std::uint32_t>(packet.payload.data() + at));
      if (found != Job::sum(job_number_)) throw Wrong("a host gets the sum of other messages");
    }
    has_sum_ = true;
  }

  std::uint32_t job_number_ = 0, other_job_ = 0;
  bool has_sum_ = false, at_last_ = false;
};

class RootNode final : public BumpNode {
 public:
  explicit RootNode(JobPointer job) : BumpNode(std::move(job), RackBump::root) {}
  RootNode(const RootNode& other) = default;

  [[nodiscard]] std::unique_ptr<Node> clone() const override { return std::make_unique<RootNode>(*this); }
  void append_state(std::vector<std::byte>& out) const override {
    append_bytes(out, restarts_, bump().learned_racks().counters().lives);
    bump().accelerator().append_state(out);
    bump().learned_racks().append_state(out);
  }
  [[nodiscard]] std::vector<std::string> choices() const override {
    if (restarts_ == job_->setup.root_restarts) return {};
    return {"is started again"};
  }
  void choose(std::size_t, RecordingSink&) override { restart(when(0)); }
  // Of a life that has ended: what is sent in a life is sent after the root has begun it.
  [[nodiscard]] bool is_past(const Packet& packet) const override {
    if (netreduce::LearnedRacks::takes(packet.bytes)) return false;
    wire::roce::Packet roce;
    if (wire::roce::parse(packet.bytes, roce) != wire::ParseError::none) throw std::logic_error("no RoCE packet");
    return !bump().tunnel().carries({roce.ip.source, roce.ip.destination, roce.bth.destination_qp});
  }
};

class RacksSystem final : public System {
 public:
  explicit RacksSystem(const Setup& setup) {
    const auto job = std::make_shared<const Job>(setup);
    for (std::uint32_t rack = 0; rack < ranks; ++rack) nodes.push_back(std::make_unique<RackNode>(job, rack));
    nodes.push_back(std::make_unique<RootNode>(job));
  }

  void inspect(const Packet& packet) override {
    if (packet.from == RackBump::root || packet.to == RackBump::root || RackNode::is_greeting(packet.bytes)) return;
    wire::roce::Packet roce;
    if (wire::roce::parse(std::span(packet.bytes).subspan(RackBump::ip_at), roce) != wire::ParseError::none)
      throw Wrong("what goes from rack to rack cannot be read");
    const std::size_t header = RackBump::ring_of({1, 1}).layout.header_bytes;
    if (roce.payload.size() > header) throw Wrong("values go from rack to rack");
  }
  [[nodiscard]] bool in_network(const Packet&) const override { return true; }
  [[nodiscard]] std::string name(std::size_t node) const override {
    return node == RackBump::root ? "the root" : "the bump of rack " + std::to_string(node);
  }
  [[nodiscard]] std::string words(const Packet& packet) const override {
    if (RackNode::is_greeting(packet.bytes)) return "the other host's queue pair";
    if (packet.from != RackBump::root && packet.to != RackBump::root) return "a header";
    const auto told = wire::netreduce::read_ring_agreement(packet.bytes);
    if (!told) return packet.to == RackBump::root ? "the sum of rack " + std::to_string(packet.from) : "the total";
    static const char* const kinds[] = {"", "ready", "begin", "over", "ask"};
    return std::string(kinds[static_cast<int>(told->kind)]) + " of attempt " + std::to_string(told->attempt) + ", process " +
           std::to_string(told->process) + (packet.to == RackBump::root ? ", from rack " + std::to_string(packet.from) : "");
  }
};

}  // namespace netsum::model::learned_racks
