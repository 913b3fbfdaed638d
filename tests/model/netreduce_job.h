// A ring of NetReduce as a system for Search: the real workers over real queue pairs, and the real accelerator.
//
// A queue pair's time-outs may come at any moment. They repeat the oldest packet, and what follows is repeated when that is
// answered: bytes that were sent before, but that a repeat always asks for an answer. So what time-outs send is in the
// network at once, and the hosts' clock stands still. The accelerator's stands still too: it decides how soon a rank may
// begin again.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/nodes.h"
#include "protocol/netreduce/accelerator.h"
#include "protocol/netreduce/worker.h"
#include "protocol/roce/queue_pair.h"
#include "wire/netreduce.h"
#include "wire/roce.h"

namespace netsum::model::netreduce {

using netsum::netreduce::Accelerator;
using netsum::netreduce::Connection;
using netsum::netreduce::KnownConnection;
using netsum::netreduce::Order;
using netsum::netreduce::RingConfig;

// A rule that is left out.
enum class Wrongly : std::uint8_t {
  no,
  half_the_buffers,       // the accelerator's are for N messages, not 2N
  connections_forgotten,  // an accelerator that restarts has no file of connections
  seals_not_checked,      // and hosts take what comes
  requests_acknowledge,   // a host takes a repeat request for an ACK of what is before it
  naks_of_its_own,        // the accelerator itself tells a sender what has not arrived
};

struct RingSetup {
  std::uint32_t ranks = 2, window = 1;
  std::vector<std::uint32_t> messages;  // packets of each; an operation each
  Order order = Order::ring;
  bool learned = false;
  bool restarts = false;  // the accelerator may do so once, at any time
  Wrongly wrongly = Wrongly::no;
  bool selective = false;  // single packets are repeated
  bool devices = false;    // a time-out repeats all that is not acknowledged, as RDMA hardware does
  // Of hosts: messages sent without a result, and not acknowledged; 0: the window.
  std::uint32_t ahead = 0, unacknowledged = 0;
};

inline constexpr std::uint64_t incarnation = 0x1122334455667788;
inline constexpr std::uint32_t ring_number = 3, mtu = 256, key = 9, send_qp = 16, receive_qp = 17;
inline constexpr Time start = Time{} + std::chrono::hours(1);

struct alignas(64) Line {
  std::byte bytes[64];
};
[[nodiscard]] inline std::span<std::byte> bytes_of(std::vector<Line>& lines) {
  return std::as_writable_bytes(std::span(lines));
}

// What all nodes know. Nodes: the ranks, the accelerator.
struct Job {
  explicit Job(const RingSetup& s) : setup(s) {}

  [[nodiscard]] std::uint32_t accelerator() const { return setup.ranks; }
  [[nodiscard]] std::uint32_t longest() const { return *std::max_element(setup.messages.begin(), setup.messages.end()); }
  // Of an operation that is one message of so many packets.
  [[nodiscard]] std::size_t elements(std::size_t message) const { return 1 + std::size_t{setup.messages[message] - 1} * 62; }
  // Each set of ranks has another sum: a part that is missing, foreign or counted twice shows.
  [[nodiscard]] static std::uint32_t value(std::uint32_t rank, std::size_t message, std::size_t element) {
    return static_cast<std::uint32_t>(1 + element % 8 + 8 * message) << (8 * rank);
  }
  [[nodiscard]] std::uint32_t sum(std::size_t message, std::size_t element) const {
    std::uint32_t sum = 0;
    for (std::uint32_t rank = 0; rank < setup.ranks; ++rank) sum += value(rank, message, element);
    return sum;
  }
  [[nodiscard]] Connection connection(std::uint32_t rank) const {
    return {host(rank).address, host((rank + 1) % setup.ranks).address, receive_qp};
  }
  [[nodiscard]] Connection answers(std::uint32_t rank) const {
    return {host((rank + 1) % setup.ranks).address, host(rank).address, send_qp};
  }
  [[nodiscard]] static std::uint32_t first_psn(std::uint32_t rank) { return 1000 * (rank + 1); }
  [[nodiscard]] bool checks_seals() const { return setup.wrongly != Wrongly::seals_not_checked; }
  [[nodiscard]] bool records() const {
    return setup.wrongly != Wrongly::connections_forgotten && setup.wrongly != Wrongly::seals_not_checked;
  }

  RingSetup setup;
};
using JobPointer = std::shared_ptr<const Job>;

[[nodiscard]] inline wire::roce::Packet packet_of(std::span<const std::byte> bytes) {
  wire::roce::Packet packet;
  if (wire::roce::parse(bytes, packet) != wire::ParseError::none || !wire::roce::icrc_valid(bytes))
    throw Wrong("a packet that cannot be read is sent");
  return packet;
}

class HostNode final : public Node {
 public:
  HostNode(JobPointer job, std::uint32_t rank)
      : job_(std::move(job)),
        rank_(rank),
        send_memory_(netsum::netreduce::Worker::send_bytes(shape())),
        receive_memory_(netsum::netreduce::Worker::receive_bytes(shape())),
        worker_(config()),
        sending_(pair(true)),
        receiving_(pair(false)) {
    for (std::size_t message = 0; message < job_->setup.messages.size(); ++message) {
      auto& tensor = tensors_.emplace_back();
      for (std::size_t i = 0; i < job_->elements(message); ++i) tensor.push_back(Job::value(rank_, message, i));
    }
    completed_.resize(tensors_.size());
  }
  HostNode(const HostNode& other) = default;

  [[nodiscard]] std::unique_ptr<Node> clone() const override {
    auto copy = std::make_unique<HostNode>(*this);
    copy->worker_.move_memory(copy->send_memory_, copy->receive_memory_);
    copy->receiving_.move_memory(copy->receive_memory_);
    for (std::size_t call = 0; call < tensors_.size(); ++call) copy->worker_.move_tensor(call, copy->tensors_[call].data());
    for (std::uint64_t message = sending_.completed(); message < posted_.size(); ++message) {
      const auto& [offset, bytes] = posted_[message];
      copy->sending_.move_message(message, std::span(copy->send_memory_).subspan(offset, bytes));
    }
    return copy;
  }
  void append_state(std::vector<std::byte>& out) const override {
    append_bytes(out, begun_);
    worker_.append_state(out);
    sending_.append_state(out);
    receiving_.append_state(out);
    // What a message that has not arrived as a whole consists of, so far. Tensors were checked when they changed.
    out.insert(out.end(), receive_memory_.begin(), receive_memory_.end());
  }
  void check() const override {
    const std::string rank = "rank " + std::to_string(rank_);
    if (const auto& failure = worker_.failure()) throw Wrong(rank + " fails: " + to_string(*failure));
    for (const roce::QueuePair* q : {&sending_, &receiving_}) {
      if (q->error() != roce::QueuePairError::none) throw Wrong(rank + " fails: " + roce::to_string(q->error()));
      if (q->counters().foreign + q->counters().refused != 0) throw Wrong(rank + " gets what is not for it");
    }
    for (std::size_t message = 0; message < tensors_.size(); ++message) {
      const bool has = message < worker_.counters().messages_received;
      for (std::size_t i = 0; i < tensors_[message].size(); ++i) {
        const std::uint32_t right = has ? job_->sum(message, i) : Job::value(rank_, message, i);
        if (tensors_[message][i] == right) continue;
        throw Wrong(rank + " receives " + std::to_string(tensors_[message][i]) + " as message " + std::to_string(message) +
                    ", not " + std::to_string(right));
      }
      if (completed_[message] != has) throw Wrong(rank + " completes an operation without its result");
    }
  }

  void receive(const RxView& view, Time now, RecordingSink& out) override {
    if (!job_->checks_seals() && begun_ == 0) return;  // or it would refuse what it has not asked for
    const wire::roce::Packet packet = packet_of(view.bytes);
    if (job_->setup.wrongly == Wrongly::requests_acknowledge) acknowledge_before(packet, now);
    (packet.bth.destination_qp == send_qp ? sending_ : receiving_).on_packet(packet, now);
    for (const roce::Received& message : receiving_.take_received()) {
      if (!job_->checks_seals()) seal(message);
      worker_.on_message(message.offset, message.bytes, message.immediate);
    }
    send(now, out);
  }
  [[nodiscard]] Time when(std::size_t) override { return start; }
  [[nodiscard]] std::vector<std::string> choices() const override {
    return begun_ ? std::vector<std::string>{} : std::vector<std::string>{"issues its operations"};
  }
  void choose(std::size_t, RecordingSink& out) override { begin(start, out); }
  void time_outs(RecordingSink& out) const override {
    if (next_timeout() == never) return;
    const std::unique_ptr<Node> node = clone();
    auto& copy = static_cast<HostNode&>(*node);
    const std::size_t before = out.sent().size();
    for (int i = 0; i < 3; ++i) copy.on_timer(copy.next_timeout(), out);
    if (out.sent().size() == before) throw Wrong("a host waits and never asks again");
  }

  [[nodiscard]] bool finished() const override {
    return begun_ && worker_.idle() && sending_.completed() == worker_.messages_sent();
  }
  void begin(Time now, RecordingSink& out) override {
    if (begun_) return;
    begun_ = 1;
    for (std::size_t call = 0; call < tensors_.size(); ++call) {
      stream::Operation operation;
      operation.number = call;
      operation.dtype = DType::int32;
      operation.elements = tensors_[call].size();
      operation.data = tensors_[call].data();
      if (!worker_.submit(operation)) throw Wrong("an operation was not taken");
    }
    send(now, out);
  }
  [[nodiscard]] Time next_timeout() const override { return std::min(sending_.next_timeout(), receiving_.next_timeout()); }
  void on_timer(Time now, RecordingSink& out) override {
    sending_.on_timer(now);
    receiving_.on_timer(now);
    if (job_->setup.devices) go_back(now);
    send(now, out);
  }

 private:
  class Out final : public roce::PacketSink {
   public:
    Out(Sink& sink, const Endpoint& to) : sink_(sink), to_(to) {}
    ~Out() = default;
    std::span<std::byte> packet(std::size_t bytes) override { return sink_.datagram(to_, bytes); }

   private:
    Sink& sink_;
    Endpoint to_;
  };
  class Posting final : public netsum::netreduce::MessageSink {
   public:
    explicit Posting(HostNode& node) : node_(node) {}
    ~Posting() = default;
    bool post(std::span<const std::byte> message, std::uint64_t offset, std::uint32_t immediate) override {
      if (!node_.sending_.post_write(message, offset, key, immediate)) return false;
      node_.posted_.emplace_back(message.data() - node_.send_memory_.data(), message.size());
      return true;
    }
    [[nodiscard]] std::uint64_t acknowledged() const override { return node_.sending_.completed(); }

   private:
    HostNode& node_;
  };

  [[nodiscard]] netsum::netreduce::WorkerConfig shape() const {
    netsum::netreduce::WorkerConfig c;
    c.incarnation = incarnation;
    c.ring = ring_number;
    c.rank = rank_;
    c.world_size = job_->setup.ranks;
    c.window = job_->setup.window;
    c.message_packets = job_->longest();
    c.mtu = mtu;
    c.ahead = job_->setup.ahead;
    c.unacknowledged = job_->setup.unacknowledged;
    return c;
  }
  [[nodiscard]] netsum::netreduce::WorkerConfig config() {
    netsum::netreduce::WorkerConfig c = shape();
    c.send_memory = send_memory_;
    c.receive_memory = receive_memory_;
    return c;
  }
  [[nodiscard]] roce::QueuePairConfig pair(bool sends) {
    const std::uint32_t ranks = job_->setup.ranks;
    const std::uint32_t to = (rank_ + 1) % ranks, from = (rank_ + ranks - 1) % ranks;
    roce::QueuePairConfig q;
    q.local = host(rank_).address;
    q.remote = host(sends ? to : from).address;
    q.local_qp = sends ? send_qp : receive_qp;
    q.remote_qp = sends ? receive_qp : send_qp;
    q.send_psn = Job::first_psn(rank_);
    q.receive_psn = Job::first_psn(from);
    q.mtu = mtu;
    q.selective = job_->setup.selective;
    q.max_messages = 4 * job_->setup.window;  // more than the window: that is what keeps it
    q.max_packets = q.max_messages * job_->longest();
    if (!sends) q.memory = receive_memory_;
    q.memory_key = key;
    return q;
  }
  void send(Time now, RecordingSink& out) {
    Posting posting(*this);
    worker_.send(posting);
    Out to(out, host(job_->accelerator()));
    receiving_.send(now, to);
    sending_.send(now, to);
    for (const std::uint64_t call : worker_.take_completed()) {
      if (completed_[call]) throw Wrong("an operation completes twice on rank " + std::to_string(rank_));
      completed_[call] = true;
    }
  }
  // A queue pair repeats the oldest packet, which a device's time-out only begins with.
  void go_back(Time now) {
    RecordingSink repeats;
    Out to(repeats, host(job_->accelerator()));
    sending_.send(now, to);
    if (repeats.sent().empty()) return;
    wire::roce::Packet nak;
    wire::roce::set_addresses(nak, host((rank_ + 1) % job_->setup.ranks).address, host(rank_).address);
    nak.bth.opcode = wire::roce::Opcode::rc_acknowledge;
    nak.bth.destination_qp = send_qp;
    nak.bth.psn = packet_of(repeats.sent().front().bytes).bth.psn;
    nak.aeth.syndrome = wire::roce::Aeth::nak_sequence;
    sending_.on_packet(nak, now);
  }
  void acknowledge_before(wire::roce::Packet packet, Time now) {
    if (!packet.aeth.asks_for_repeats()) return;
    packet.bth.psn = (packet.bth.psn - 1) & wire::roce::psn_mask;
    packet.aeth = {};
    sending_.on_packet(packet, now);
  }
  // As a host that does not look at them.
  void seal(const roce::Received& message) {
    const std::uint64_t number = worker_.counters().messages_received;
    for (std::uint32_t packet = 0; packet * std::size_t{mtu} < message.bytes; ++packet) {
      wire::netreduce::write_seal(std::span(receive_memory_).subspan(message.offset + packet * std::size_t{mtu}),
                                  {incarnation, ring_number, number, packet, job_->setup.ranks});
    }
  }

  JobPointer job_;
  std::uint32_t rank_;
  std::vector<std::byte> send_memory_, receive_memory_;
  netsum::netreduce::Worker worker_;
  roce::QueuePair sending_, receiving_;
  std::uint8_t begun_ = 0;
  std::vector<std::vector<std::uint32_t>> tensors_;
  std::vector<bool> completed_;
  std::vector<std::pair<std::size_t, std::size_t>> posted_;  // where in the memory, and how long
};

class AcceleratorNode final : public Node {
 public:
  explicit AcceleratorNode(JobPointer job)
      : job_(std::move(job)),
        restarts_left_(job_->setup.restarts ? 1 : 0),
        memory_((Accelerator::memory_bytes(config()) + sizeof(Line) - 1) / sizeof(Line)) {
    add();
  }
  AcceleratorNode(const AcceleratorNode& other) = default;

  [[nodiscard]] std::unique_ptr<Node> clone() const override {
    auto copy = std::make_unique<AcceleratorNode>(*this);
    if (copy->has_ring()) copy->accelerator_.move_memory(incarnation, bytes_of(copy->memory_));
    return copy;
  }
  void append_state(std::vector<std::byte>& out) const override {
    append_bytes(out, restarts_left_, recorded_, arrived_);
    accelerator_.append_state(out);
  }
  void check() const override {
    accelerator_.check();
    const auto* const c = accelerator_.ring_counters(incarnation);
    if (c == nullptr || job_->setup.wrongly != Wrongly::no) return;
    if (c->dropped_early + c->dropped_misplaced + c->dropped_mismatch + c->dropped_header + c->dropped_shape +
            c->dropped_icrc !=
        0)
      throw Wrong("the accelerator meets a packet that no correct host sends");
  }

  void receive(const RxView& view, Time now, RecordingSink& out) override {
    const wire::roce::Packet packet = packet_of(view.bytes);
    const Endpoint to = host(packet.ip.destination[15]);
    if (job_->setup.wrongly == Wrongly::naks_of_its_own) nak(packet, out);
    if (accelerator_.on_packet(packet, view.bytes, 0, to, now, out) == Accelerator::Verdict::taken) return;
    const auto passed = out.datagram(to, view.bytes.size());
    std::copy(view.bytes.begin(), view.bytes.end(), passed.begin());
  }
  [[nodiscard]] Time when(std::size_t) override { return start; }
  [[nodiscard]] std::vector<std::string> choices() const override {
    std::vector<std::string> choices;
    for (const std::uint32_t rank : unrecorded())
      choices.push_back("records the connection of rank " + std::to_string(rank));
    if (restarts_left_ != 0) choices.emplace_back("restarts");
    return choices;
  }
  void choose(std::size_t which, RecordingSink& out) override {
    const std::vector<std::uint32_t> waiting = unrecorded();
    if (which < waiting.size()) return record(waiting[which], out);
    --restarts_left_;
    accelerator_ = Accelerator();
    std::fill(memory_.begin(), memory_.end(), Line{});
    // A registered ring's incarnation is never used again.
    if (job_->setup.learned) add();
    if (!job_->records()) return;
    for (std::uint32_t rank = 0; rank < job_->setup.ranks; ++rank) {
      if (!job_->setup.learned || (recorded_ >> rank & 1) != 0) {
        accelerator_.know({job_->connection(rank), Job::first_psn(rank)}, start);
      }
    }
  }
  void begin(Time, RecordingSink& out) override {
    for (const std::uint32_t rank : unrecorded()) record(rank, out);
  }

 private:
  [[nodiscard]] RingConfig config() const {
    const RingSetup& s = job_->setup;
    RingConfig c;
    c.incarnation = incarnation;
    c.ring = ring_number;
    c.members = s.ranks;
    c.window = s.wrongly == Wrongly::half_the_buffers ? s.window / 2 : s.window;
    c.message_packets = job_->longest();
    c.mtu = mtu;
    c.order = s.order;
    for (std::uint32_t rank = 0; !s.learned && rank < s.ranks; ++rank) {
      netsum::netreduce::Line& line = c.lines.emplace_back();
      line.connection = job_->connection(rank);
      line.ranks.insert(rank);
      line.answers = job_->answers(rank);
      if (s.selective) line.repair = netsum::netreduce::Repair{host(rank), Job::first_psn(rank), *line.answers};
    }
    c.selective = s.selective;
    return c;
  }
  void add() {
    if (job_->setup.learned) {
      netsum::netreduce::LearningConfig learning;
      for (std::uint32_t rank = 0; rank < job_->setup.ranks; ++rank) learning.hosts.push_back(host(rank).address);
      learning.record = true;
      accelerator_.learn(std::move(learning));
    }
    if (!accelerator_.add_ring(config(), bytes_of(memory_))) throw std::logic_error("add_ring");
  }
  [[nodiscard]] bool has_ring() const { return accelerator_.ring_counters(incarnation) != nullptr; }

  // Learned, and not in the file.
  [[nodiscard]] std::vector<std::uint32_t> unrecorded() const {
    std::vector<std::uint32_t> ranks;
    for (std::uint32_t rank = 0; job_->setup.learned && rank < job_->setup.ranks; ++rank) {
      if ((recorded_ >> rank & 1) == 0 && accelerator_.bound(incarnation).contains(rank)) ranks.push_back(rank);
    }
    return ranks;
  }
  void record(std::uint32_t rank, RecordingSink& out) {
    recorded_ = static_cast<std::uint8_t>(recorded_ | 1U << rank);
    accelerator_.recorded(job_->connection(rank), out);
  }

  // The first packet of the sender's that has not arrived, if a later one has.
  void nak(const wire::roce::Packet& packet, RecordingSink& out) {
    if (!wire::roce::shape_of(packet.bth.opcode).request) return;
    const std::uint8_t rank = packet.ip.source[15];
    std::uint32_t& arrived = arrived_[rank];
    arrived |= 1U << (packet.bth.psn - Job::first_psn(rank));
    const auto missing = static_cast<std::uint32_t>(std::countr_one(arrived));
    if (arrived >> missing == 0) return;
    wire::roce::Packet answer;
    wire::roce::set_addresses(answer, packet.ip.destination, packet.ip.source);
    answer.bth.opcode = wire::roce::Opcode::rc_acknowledge;
    answer.bth.destination_qp = send_qp;
    answer.bth.psn = Job::first_psn(rank) + missing;
    answer.aeth.syndrome = wire::roce::Aeth::nak_sequence;
    wire::roce::write(out.datagram(host(rank), wire::roce::packet_bytes(answer)), answer);
  }

  JobPointer job_;
  std::uint8_t restarts_left_;
  std::uint8_t recorded_ = 0;               // ranks whose connection is in the file
  std::array<std::uint32_t, 4> arrived_{};  // packets of each rank, for naks_of_its_own
  std::vector<Line> memory_;
  Accelerator accelerator_;
};

class RingSystem final : public System {
 public:
  explicit RingSystem(const RingSetup& setup) : job_(std::make_shared<const Job>(setup)) {
    for (std::uint32_t rank = 0; rank < setup.ranks; ++rank) nodes.push_back(std::make_unique<HostNode>(job_, rank));
    nodes.push_back(std::make_unique<AcceleratorNode>(job_));
  }

  // No rank's values reach another unsummed. A connection that is not in the file yet has delivered nothing: what passes
  // there after a restart comes behind a gap, and the hosts' own checks show whether it is taken.
  void inspect(const Packet& packet) override {
    const wire::roce::Packet roce = packet_of(packet.bytes);
    if (packet.from != job_->accelerator() || !wire::roce::shape_of(roce.bth.opcode).request) return;
    if (job_->setup.learned) return;
    if (job_->setup.wrongly != Wrongly::no) return;  // until a rank has a wrong result, or fails
    if (wire::netreduce::read_seal(roce.payload) == 0)
      throw Wrong("values pass without having been summed: " + words(packet));
  }
  [[nodiscard]] bool in_network(const Packet&) const override { return true; }
  [[nodiscard]] std::string name(std::size_t node) const override {
    return node == job_->accelerator() ? "the accelerator" : "rank " + std::to_string(node);
  }
  [[nodiscard]] std::string words(const Packet& packet) const override {
    const wire::roce::Packet roce = packet_of(packet.bytes);
    const std::uint32_t source = roce.ip.source[15], destination = roce.ip.destination[15];
    if (roce.aeth.asks_for_repeats()) {
      return "the request for " + std::to_string(roce.aeth.msn) + " packets from " +
             std::to_string(roce.bth.psn - Job::first_psn(destination)) + " of rank " + std::to_string(destination) + " on";
    }
    if (!wire::roce::shape_of(roce.bth.opcode).request) {
      return std::string(roce.aeth.syndrome == 0 ? "the acknowledgement" : "the NAK") + " of packet " +
             std::to_string(roce.bth.psn - Job::first_psn(destination)) + " of rank " + std::to_string(destination);
    }
    const bool sum = wire::netreduce::read_seal(roce.payload) != 0;
    return std::string(sum ? "the sum in" : "the values of") + " packet " +
           std::to_string(roce.bth.psn - Job::first_psn(source)) + " of rank " + std::to_string(source);
  }

 private:
  JobPointer job_;
};

}  // namespace netsum::model::netreduce
