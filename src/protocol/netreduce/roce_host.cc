#include "protocol/netreduce/roce_host.h"

#include <algorithm>
#include <utility>

#include "wire/ecn.h"
#include "wire/roce.h"

namespace netsum::netreduce {
namespace {

struct alignas(64) CacheLine {
  std::byte bytes[64];
};

class TunnelSink final : public roce::PacketSink {
 public:
  TunnelSink(Sink& sink, const Endpoint& to) : sink_(sink), to_(to) {}
  ~TunnelSink() = default;
  std::span<std::byte> packet(std::size_t bytes) override { return sink_.datagram(to_, bytes); }
  // The memory of a message that is acknowledged may be another's before the sink is flushed. A repeat of the former would
  // then leave damaged, for nobody who needs it.
  Sink::Around around(std::size_t head, std::span<const std::byte> payload, std::size_t tail) override {
    return sink_.around(to_, head, payload, tail);
  }

 private:
  Sink& sink_;
  const Endpoint& to_;
};

}  // namespace

struct RoceHost::Impl {
  explicit Impl(const RoceHostConfig& c)
      : config(c),
        lines((Worker::send_bytes(windows()) + Worker::receive_bytes(windows())) / sizeof(CacheLine)),
        worker(worker_config()),
        sending(sending_config()),
        receiving(receiving_config()) {}

  // Without memory. A message is begun with a part of the result N messages before it, so the last one counts too.
  [[nodiscard]] WorkerConfig windows() const {
    WorkerConfig w = config.worker;
    if (!clocked()) return w;
    w.ahead = w.window + 1;
    w.unacknowledged = config.buffers - w.ahead;
    return w;
  }
  [[nodiscard]] bool clocked() const { return config.buffers > 2 * config.worker.window; }
  // Messages are whole path MTUs, which are whole cache lines.
  [[nodiscard]] std::span<std::byte> send_memory() {
    return std::as_writable_bytes(std::span(lines)).first(Worker::send_bytes(windows()));
  }
  [[nodiscard]] std::span<std::byte> receive_memory() {
    return std::as_writable_bytes(std::span(lines)).last(Worker::receive_bytes(windows()));
  }
  [[nodiscard]] WorkerConfig worker_config() {
    WorkerConfig w = windows();
    w.send_memory = send_memory();
    w.receive_memory = receive_memory();
    return w;
  }
  [[nodiscard]] roce::QueuePairConfig common() const {
    roce::QueuePairConfig q;
    q.local = config.self.address;
    q.selective = config.selective;
    q.congestion_control = config.congestion_control;
    q.flows = config.worker.lanes;
    q.mtu = config.worker.mtu;
    q.initial_timeout = config.initial_timeout;
    q.min_timeout = config.min_timeout;
    q.max_timeout = config.max_timeout;
    return q;
  }
  [[nodiscard]] roce::QueuePairConfig sending_config() const {
    roce::QueuePairConfig q = common();
    q.max_messages = clocked() ? windows().unacknowledged : config.worker.window;
    q.max_packets = q.max_messages * config.worker.message_packets;
    if (clocked()) q.lead = config.worker.window * config.worker.message_packets;
    q.remote = config.successor.address;
    q.local_qp = config.self.send_qp;
    q.remote_qp = config.successor.receive_qp;
    q.send_psn = config.self.send_psn;
    q.source_port = static_cast<std::uint16_t>(0xc000 | (config.self.send_qp & 0x3fff));
    return q;
  }
  [[nodiscard]] roce::QueuePairConfig receiving_config() {
    roce::QueuePairConfig q = common();
    q.max_packets = (clocked() ? windows().ahead : config.worker.window) * config.worker.message_packets;
    q.remote = config.predecessor.address;
    q.local_qp = config.self.receive_qp;
    q.remote_qp = config.predecessor.send_qp;
    q.receive_psn = config.predecessor.send_psn;
    q.memory = receive_memory();
    q.memory_address = config.self.memory_address;
    q.memory_key = config.self.memory_key;
    q.singles_in_packets = true;  // on_packets() takes them at once
    q.source_port = static_cast<std::uint16_t>(0xc000 | (config.self.receive_qp & 0x3fff));
    return q;
  }

  class Posting final : public MessageSink {
   public:
    explicit Posting(Impl& host) : host_(host) {}
    ~Posting() = default;
    bool post(std::span<const std::byte> message, std::uint64_t offset, std::uint32_t immediate) override {
      const Member& to = host_.config.successor;
      return host_.sending.post_write(message, to.memory_address + offset, to.memory_key, immediate);
    }
    [[nodiscard]] std::uint64_t acknowledged() const override { return host_.sending.completed(); }

   private:
    Impl& host_;
  };

  void send(Time now, Sink& sink) {
    Posting posting(*this);
    worker.send(posting);
    TunnelSink tunnel(sink, config.accelerator);
    receiving.send(now, tunnel);  // ACKs first: the predecessor waits for them
    sending.follow(receiving.heard());
    sending.send(now, tunnel);
  }

  void on_packet(const RxView& view, Time now) {
    wire::roce::Packet packet;
    if (view.source != config.accelerator) {
      ++counters.foreign;
      return;
    }
    if (const auto error = wire::roce::parse(view.bytes, packet, wire::roce::max_tunnel_mtu);
        error != wire::ParseError::none) {
      ++counters.malformed[static_cast<std::size_t>(error)];
      return;
    }
    if (!wire::roce::icrc_valid(view.bytes.first(wire::roce::packet_bytes(view.bytes)))) {
      ++counters.dropped_icrc;
      return;
    }
    roce::QueuePair* const to = packet.bth.destination_qp == config.self.send_qp      ? &sending
                                : packet.bth.destination_qp == config.self.receive_qp ? &receiving
                                                                                      : nullptr;
    if (to == nullptr) {
      ++counters.foreign;
      return;
    }
    ++counters.packets;
    if (view.congested) packet.ip.traffic_class = wire::marked(packet.ip.traffic_class);
    to->on_packet(packet, now);
  }

  RoceHostConfig config;
  std::vector<CacheLine> lines;
  Worker worker;
  roce::QueuePair sending, receiving;
  RoceHostCounters counters;
};

RoceHost::RoceHost(const RoceHostConfig& config) : impl_(std::make_unique<Impl>(config)) {}
RoceHost::~RoceHost() = default;
RoceHost::RoceHost(RoceHost&&) noexcept = default;
RoceHost& RoceHost::operator=(RoceHost&&) noexcept = default;

bool RoceHost::submit(const stream::Operation& operation, Time now, Sink& sink) {
  if (!impl_->worker.submit(operation)) return false;
  impl_->send(now, sink);
  return true;
}

void RoceHost::on_packets(std::span<const RxView> packets, Time now, Sink& sink) {
  for (const RxView& view : packets) {
    impl_->on_packet(view, now);
    for (const roce::Received& message : impl_->receiving.take_received()) {
      impl_->worker.on_message(message.offset, message.bytes, message.immediate, message.content);
    }
  }
  impl_->send(now, sink);
}

void RoceHost::on_timer(Time now, Sink& sink) {
  impl_->sending.on_timer(now);
  impl_->receiving.on_timer(now);
  impl_->send(now, sink);
}

Time RoceHost::next_timeout() const {
  return std::min(impl_->sending.next_timeout(), impl_->receiving.next_timeout());
}

const Worker& RoceHost::worker() const {
  return impl_->worker;
}

std::vector<std::uint64_t> RoceHost::take_completed() {
  return impl_->worker.take_completed();
}

bool RoceHost::drained() const {
  return impl_->sending.completed() == impl_->worker.messages_sent();
}

std::string RoceHost::failure() const {
  if (const auto& failure = impl_->worker.failure()) return to_string(*failure);
  for (const roce::QueuePair* pair : {&impl_->sending, &impl_->receiving}) {
    if (pair->error() != roce::QueuePairError::none) {
      return std::string("the connection to the ") + (pair == &impl_->sending ? "successor" : "predecessor") +
             " broke: " + roce::to_string(pair->error());
    }
  }
  return {};
}

const roce::QueuePairCounters& RoceHost::sending() const {
  return impl_->sending.counters();
}

const roce::QueuePairCounters& RoceHost::receiving() const {
  return impl_->receiving.counters();
}

const RoceHostCounters& RoceHost::counters() const {
  return impl_->counters;
}

}  // namespace netsum::netreduce
