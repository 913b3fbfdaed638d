#include "protocol/netreduce/worker.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "kernels/kernels.h"
#include "stream/tensor.h"

namespace netsum::netreduce {
namespace {

using stream::Collective;
using stream::Operation;
using wire::netreduce::InaHeader;
using wire::netreduce::seal_bytes;

constexpr std::size_t first_header_bytes = 40;  // of netsum_layout: the offsets of values are computed from it

// The transmitted values: an all-reduce's elements, a broadcast's bytes as whole words, none for a barrier.
struct Values {
  DType dtype = DType::int32;
  std::uint64_t count = 0;
  explicit Values(const Operation& operation) {
    if (operation.collective == Collective::all_reduce) {
      dtype = operation.dtype;
      count = operation.elements;
    } else if (operation.collective == Collective::broadcast) {
      count = (operation.elements + 3) / 4;
    }
  }
};

[[nodiscard]] std::uint32_t unacknowledged_of(const WorkerConfig& config) {
  return config.unacknowledged != 0 ? config.unacknowledged : config.window;
}

[[nodiscard]] bool is_average(const Operation& operation) {
  return operation.op == ReduceOp::avg && operation.collective == Collective::all_reduce;
}

// Messages of one operation that belong to this lane: message j to lane (j + operation) mod lanes, so that successive small
// operations use different ones.
struct Share {
  std::uint64_t first = 0, count = 0;  // of messages
  Share(std::uint64_t messages, std::uint64_t operation, std::uint32_t lane, std::uint32_t lanes)
      : first((lane + lanes - static_cast<std::uint32_t>(operation % lanes)) % lanes),
        count(first < messages ? (messages - 1 - first) / lanes + 1 : 0) {}
};

}  // namespace

struct Worker::Impl {
  struct UnderWay {
    Operation operation;
    Values values;
    Share share;
  };
  // A position in the stream of messages: the next message of an operation.
  struct Cursor {
    std::uint64_t message = 0;    // number in the ring's stream
    std::uint64_t operation = 0;  // counted from the beginning; index into under_way plus `ended`
    std::uint64_t index = 0;      // of the operation's messages on this lane
  };
  // A message's part of the tensor.
  struct Extent {
    std::uint64_t number = 0;  // of the operation's messages
    std::uint64_t offset = 0;  // values
    std::size_t bytes = 0;     // of values
  };

  explicit Impl(const WorkerConfig& c)
      : config(c),
        ahead(c.ahead != 0 ? c.ahead : c.window),
        unacknowledged(unacknowledged_of(c)),
        whole(message_bytes(c)),
        capacity(c.mtu - first_header_bytes + std::size_t{c.message_packets - 1} * (c.mtu - seal_bytes)) {
    NETSUM_CHECK(wire::netreduce::netsum_layout.header_bytes == first_header_bytes);
    if (config.pads) pads.emplace(*config.pads, config.rank);
    if (pads) unmasked.resize(config.mtu);
    NETSUM_CHECK(config.send_memory.size() >= send_bytes(c) && config.receive_memory.size() >= receive_bytes(c));
  }

  // A message's offset in the receiver's memory.
  [[nodiscard]] std::uint64_t place_of(std::uint64_t message) const {
    return message % (std::uint64_t{2} * config.window) * whole;
  }
  [[nodiscard]] Extent extent_of(const UnderWay& u, std::uint64_t index) const {
    const std::size_t width = bytes_of(u.values.dtype);
    const std::uint64_t most = capacity / width;
    Extent extent;
    extent.number = u.share.first + index * config.lanes;
    extent.offset = extent.number * most;
    extent.bytes =
        static_cast<std::size_t>(std::min(most, u.values.count - std::min(u.values.count, extent.offset))) * width;
    return extent;
  }
  [[nodiscard]] std::uint32_t packets_of(std::size_t value_bytes) const {
    const std::size_t first = config.mtu - first_header_bytes, more = config.mtu - seal_bytes;
    return value_bytes <= first ? 1 : 1 + static_cast<std::uint32_t>((value_bytes - first + more - 1) / more);
  }
  [[nodiscard]] std::size_t bytes_of_message(std::size_t value_bytes) const {
    return first_header_bytes + value_bytes + (packets_of(value_bytes) - 1) * seal_bytes;
  }
  // Calls what(packet, offset in the message, offset in the values, bytes of values) for each packet.
  template <class What>
  void for_each_packet(std::size_t value_bytes, const What& what) const {
    std::size_t done = 0;
    for (std::uint32_t packet = 0; packet < packets_of(value_bytes); ++packet) {
      const std::size_t skip = packet == 0 ? first_header_bytes : seal_bytes;
      const std::size_t bytes = std::min(config.mtu - skip, value_bytes - done);
      what(packet, std::size_t{packet} * config.mtu, skip, done, bytes);
      done += bytes;
    }
  }
  [[nodiscard]] std::uint32_t signature_of(const UnderWay& u, const Extent& extent) const {
    const std::uint32_t call = stream::signature_of(u.operation, static_cast<std::uint32_t>(capacity));
    std::byte place[16];
    store_le(place, u.operation.number);
    store_le(place + 8, extent.number);
    return crc32c(place, call);
  }

  // The operation of the cursor's message; null if there is none yet. Skips operations without a message on this lane.
  [[nodiscard]] UnderWay* at(Cursor& cursor) {
    while (cursor.operation - ended < under_way.size()) {
      UnderWay& u = under_way[cursor.operation - ended];
      if (cursor.index < u.share.count) return &u;
      ++cursor.operation;
      cursor.index = 0;
    }
    return nullptr;
  }

  // A packet's pad begins at a multiple of 64 KiB, which no packet exceeds, and a message's at one of 2^12 packets.
  static seal::PadPlace pad_place(const UnderWay& u, const Extent& extent, std::uint32_t packet) {
    static_assert(wire::netreduce::max_message_packets <= 1U << 12);
    return {u.operation.number, extent.number << 24 | std::uint64_t{packet} << 12};
  }
  // Values as all ranks give them, or one alone; others have none.
  void mask(const UnderWay& u, std::span<std::byte> values, seal::PadPlace place) const {
    NETSUM_CHECK(u.values.dtype == DType::int32);
    if (u.operation.collective == Collective::all_reduce) {
      pads->mask_term(values, 4, place);
    } else if (stream::contributes(u.operation, config.rank)) {
      pads->mask_only(values, 4, place);
    }
  }

  // A copy, as the result overwrites the tensor before the successor has acknowledged the message: always, if nothing is
  // lost (docs/protocol-netreduce.md, "Copies").
  std::span<const std::byte> write_message(const UnderWay& u, const Extent& extent) {
    const std::span<std::byte> message =
        config.send_memory.subspan((to_send.message % unacknowledged) * whole, bytes_of_message(extent.bytes));
    const auto* const values = static_cast<const std::byte*>(u.operation.data) + extent.offset * bytes_of(u.values.dtype);
    // A broadcast's last word may be partly outside of the tensor; ranks that contribute nothing send zeros.
    std::size_t given = stream::contributes(u.operation, config.rank) ? extent.bytes : 0;
    if (u.operation.collective == Collective::broadcast && given > 0) {
      given = std::min<std::size_t>(given, u.operation.elements - extent.offset * 4);
    }
    for_each_packet(extent.bytes,
                    [&](std::uint32_t packet, std::size_t at, std::size_t skip, std::size_t done, std::size_t bytes) {
                      std::byte* const to = message.data() + at;
                      if (packet == 0) {
                        InaHeader header;
                        header.ring = config.ring;
                        header.rank = config.rank;
                        header.message = to_send.message;
                        header.packets = packets_of(extent.bytes);
                        header.signature = signature_of(u, extent);
                        header.dtype = u.values.dtype;
                        header.average = !pads && is_average(u.operation);
                        wire::netreduce::write_header(wire::netreduce::netsum_layout, message, header);
                      } else {
                        store_le(to, std::uint64_t{0});  // filled by the accelerator
                      }
                      const std::size_t copied = std::min(bytes, given - std::min(given, done));
                      if (copied > 0) std::memcpy(to + skip, values + done, copied);
                      std::fill_n(to + skip + copied, bytes - copied, std::byte{0});
                      if (pads) mask(u, {to + skip, bytes}, pad_place(u, extent, packet));
                    });
    return message;
  }

  // The window also covers acknowledgements, which the paper does not say: a rank that begins message m + ahead +
  // unacknowledged, and so may reuse the aggregators of m, has a result of m + unacknowledged. So all ranks have sent that,
  // and none will send m again. An endpoint that repeats single packets could repeat m for ever; devices that go back would
  // repeat later messages too, and be answered there.
  void send(MessageSink& sink) {
    while (!failure && to_send.message < std::min(to_receive.message + ahead, sink.acknowledged() + unacknowledged)) {
      UnderWay* const u = at(to_send);
      if (u == nullptr) return;
      const Extent extent = extent_of(*u, to_send.index);
      const auto message = write_message(*u, extent);
      if (!sink.post(message, place_of(to_send.message), static_cast<std::uint32_t>(to_send.message))) return;
      ++to_send.message;
      ++to_send.index;
      ++counters.messages_sent;
    }
  }

  void fail(WorkerFailure::Kind kind, const UnderWay* u, std::uint32_t packet) {
    if (!failure) failure = {kind, u != nullptr ? u->operation.number : 0, to_receive.message, packet};
  }

  // Checks every packet's seal before the values are used: only elements that are sums of all ranks' for this message are
  // delivered.
  [[nodiscard]] bool sealed(const UnderWay& u, const Extent& extent, std::span<const std::byte> message) {
    bool all = true;
    for_each_packet(extent.bytes, [&](std::uint32_t packet, std::size_t at, std::size_t, std::size_t, std::size_t) {
      if (!all) return;
      const std::uint64_t found = wire::netreduce::read_seal(message.subspan(at));
      const std::uint64_t expected =
          wire::netreduce::seal_of({config.incarnation, config.ring, to_receive.message, packet, config.world_size});
      if (found == expected) return;
      all = false;
      fail(found == 0 ? WorkerFailure::Kind::unsealed : WorkerFailure::Kind::wrong_seal, &u, packet);
    });
    return all;
  }

  void on_message(std::uint64_t offset, std::uint32_t bytes, std::uint32_t immediate, std::span<const std::byte> content) {
    if (failure) return;
    UnderWay* const u = at(to_receive);
    const std::uint64_t place = place_of(to_receive.message);
    // The sender cannot have the result of a message that this rank has not sent, nor be more than a window ahead.
    const bool expected = u != nullptr && to_receive.message < to_send.message &&
                          immediate == static_cast<std::uint32_t>(to_receive.message) && offset == place;
    if (!expected) return fail(WorkerFailure::Kind::unexpected, u, 0);
    const Extent extent = extent_of(*u, to_receive.index);
    if (bytes != bytes_of_message(extent.bytes)) return fail(WorkerFailure::Kind::unexpected, u, 0);
    const std::span<const std::byte> message = content.empty() ? config.receive_memory.subspan(offset, bytes) : content;
    if (!sealed(*u, extent, message)) return;
    if (extent.bytes > 0) {
      std::byte* const values =
          static_cast<std::byte*>(stream::result_of(u->operation)) + extent.offset * bytes_of(u->values.dtype);
      std::size_t wanted = extent.bytes;
      if (u->operation.collective == Collective::broadcast) {
        wanted = std::min<std::size_t>(wanted, u->operation.elements - extent.offset * 4);
      }
      for_each_packet(extent.bytes,
                      [&](std::uint32_t packet, std::size_t at, std::size_t skip, std::size_t done, std::size_t count) {
                        const std::size_t copied = std::min(count, wanted - std::min(wanted, done));
                        const std::byte* from = message.data() + at + skip;
                        if (pads) from = unmask(*u, {from, count}, pad_place(*u, extent, packet));
                        if (copied > 0) std::memcpy(values + done, from, copied);
                      });
    }
    ++to_receive.message;
    ++to_receive.index;
    ++counters.messages_received;
    end_operations();
  }

  // A packet's sum, as an accelerator without pads would have made it.
  [[nodiscard]] const std::byte* unmask(const UnderWay& u, std::span<const std::byte> sum, seal::PadPlace place) {
    pads->unmask(unmasked.data(), sum, 4, place);
    if (is_average(u.operation)) kernels::divide(DType::int32, unmasked.data(), sum.size() / 4, config.world_size);
    return unmasked.data();
  }

  void end_operations() {
    while (!under_way.empty() && to_receive.operation == ended && to_receive.index == under_way.front().share.count) {
      completed.push_back(under_way.front().operation.number);
      under_way.pop_front();
      ++ended;
      ++to_receive.operation;
      to_receive.index = 0;
      if (to_send.operation < ended) to_send = {to_send.message, ended, 0};
    }
  }

  WorkerConfig config;
  const std::uint32_t ahead, unacknowledged;
  const std::size_t whole;     // bytes of a whole message
  const std::size_t capacity;  // of values in a whole message
  std::optional<seal::Pads> pads;
  std::vector<std::byte> unmasked;  // a packet's values
  std::deque<UnderWay> under_way;
  std::uint64_t ended = 0;  // operations
  Cursor to_send, to_receive;
  std::vector<std::uint64_t> completed;
  std::optional<WorkerFailure> failure;
  WorkerCounters counters;
};

std::string to_string(const WorkerFailure& failure) {
  const std::string place = "packet " + std::to_string(failure.packet) + " of message " + std::to_string(failure.message);
  switch (failure.kind) {
    case WorkerFailure::Kind::unsealed:
      return place + " arrived unsummed";
    case WorkerFailure::Kind::wrong_seal:
      return place + " arrived with the sum of another packet";
    case WorkerFailure::Kind::unexpected:
      break;
  }
  return "message " + std::to_string(failure.message) + " does not belong to this ring";
}

std::size_t Worker::message_bytes(const WorkerConfig& config) {
  return std::size_t{config.message_packets} * config.mtu;
}

std::size_t Worker::send_bytes(const WorkerConfig& config) {
  return unacknowledged_of(config) * message_bytes(config);
}

std::size_t Worker::receive_bytes(const WorkerConfig& config) {
  return 2 * config.window * message_bytes(config);
}

Worker::Worker(const WorkerConfig& config) : impl_(std::make_unique<Impl>(config)) {}
Worker::~Worker() = default;
Worker::Worker(Worker&&) noexcept = default;
Worker& Worker::operator=(Worker&&) noexcept = default;
Worker::Worker(const Worker& other) : impl_(std::make_unique<Impl>(*other.impl_)) {}

void Worker::move_memory(std::span<std::byte> send_memory, std::span<std::byte> receive_memory) {
  WorkerConfig& config = impl_->config;
  NETSUM_CHECK(send_memory.size() == config.send_memory.size() && receive_memory.size() == config.receive_memory.size());
  config.send_memory = send_memory;
  config.receive_memory = receive_memory;
}

void Worker::move_tensor(std::uint64_t operation, void* data) {
  for (Impl::UnderWay& u : impl_->under_way) {
    if (u.operation.number == operation) u.operation.data = data;
  }
}

void Worker::append_state(std::vector<std::byte>& out) const {
  const Impl& w = *impl_;
  append_bytes(out, w.ended, w.under_way.size());
  for (const Impl::UnderWay& u : w.under_way) append_bytes(out, u.operation.number);
  for (const Impl::Cursor& cursor : {w.to_send, w.to_receive}) {
    append_bytes(out, cursor.message, cursor.operation, cursor.index);
  }
  append_bytes(out, w.completed.size(), w.failure.has_value());
  for (const std::uint64_t number : w.completed) append_bytes(out, number);
  if (w.failure) append_bytes(out, w.failure->kind, w.failure->operation, w.failure->message, w.failure->packet);
}

bool Worker::submit(const Operation& operation) {
  Impl& w = *impl_;
  if (w.under_way.size() >= w.config.operations) return false;
  const Values values(operation);
  const std::uint64_t most = w.capacity / bytes_of(values.dtype);
  const std::uint64_t messages = std::max<std::uint64_t>(1, (values.count + most - 1) / most);
  w.under_way.push_back({operation, values, Share(messages, operation.number, w.config.lane, w.config.lanes)});
  w.end_operations();
  return true;
}

void Worker::send(MessageSink& sink) {
  impl_->send(sink);
}

void Worker::on_message(std::uint64_t offset, std::uint32_t bytes, std::uint32_t immediate,
                        std::span<const std::byte> content) {
  impl_->on_message(offset, bytes, immediate, content);
}

std::vector<std::uint64_t> Worker::take_completed() {
  return std::exchange(impl_->completed, {});
}

bool Worker::idle() const {
  return impl_->under_way.empty();
}

const std::optional<WorkerFailure>& Worker::failure() const {
  return impl_->failure;
}

std::optional<WorkerStall> Worker::oldest_stall() const {
  const Impl& w = *impl_;
  if (w.under_way.empty()) return std::nullopt;
  const Impl::UnderWay& u = w.under_way.front();
  return WorkerStall{u.operation.number, static_cast<std::uint32_t>(w.extent_of(u, w.to_receive.index).number)};
}

const WorkerCounters& Worker::counters() const {
  return impl_->counters;
}

}  // namespace netsum::netreduce
