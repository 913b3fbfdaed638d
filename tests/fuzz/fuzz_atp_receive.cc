// Forged packets with right checksums, from the right addresses or a stranger's, at ATP's switches, parameter server and a
// worker in the middle of their work. None touches memory that it should not; each counts every packet once; a stranger
// changes nothing and gets nothing but short answers; what is sent can be read and goes to registered addresses.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "fuzz/atp_harness.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function
using wire::atp::Type;

const Endpoint stranger = fuzz::endpoint_of(77);
constexpr std::size_t flags_byte = 2, type_byte = 1;
constexpr std::byte floats_flag{64}, integers_flag{128};

template <class Object>
std::vector<std::byte> state_of(const Object& object) {
  std::vector<std::byte> state;
  object.append_state(state);
  return state;
}

struct World {
  World(const fuzz::AtpSettings& settings, bool of_integers) : job(settings), integers(of_integers), tensor(40) {
    stream::Operation operation;
    operation.dtype = integers ? DType::int32 : DType::float32;
    operation.elements = tensor.size();
    operation.data = tensor.data();
    for (std::uint32_t rank = 0; rank < fuzz::atp_ranks; ++rank) {
      fuzz::RecordingSink out(fuzz::atp_rank(rank), sent);
      fuzz::check(job.workers[rank].submit(operation, now, out), "the first operation is taken");
      out.flush();
    }
  }

  // Whether values are integers is the same wherever signatures are: what ranks disagree about shows in those.
  void agree(std::vector<std::byte>& packet) const {
    if (packet.size() <= flags_byte || packet[type_byte] != static_cast<std::byte>(Type::gradient)) return;
    std::byte& flags = packet[flags_byte];
    if (integers) {
      flags = (flags | integers_flag) & ~floats_flag;
    } else {
      flags &= ~integers_flag;
    }
    if (packet.size() >= wire::atp::common_bytes) wire::atp::seal(packet);
  }

  template <class Object, class Receive>
  void at(Object& object, const Endpoint& self, std::span<const std::byte> packet, const Endpoint& source, Receive receive) {
    ++packets[self];
    const auto state = source == stranger ? state_of(object) : std::vector<std::byte>{};
    fuzz::RecordingSink out(self, sent);
    const std::size_t first = sent.size();
    const RxView view{packet, source};
    receive(view, out);
    out.flush();
    if (source == stranger) {
      fuzz::check(state_of(object) == state, "a stranger changes nothing");
      std::size_t answered = 0;
      for (std::size_t i = first; i < sent.size(); ++i) answered += sent[i].bytes.size();
      fuzz::check(answered <= packet.size(), "a stranger receives no more than it sends");
    }
    for (std::size_t i = first; i < sent.size(); ++i) check_sent(sent[i], source);
  }

  static void check_sent(const fuzz::Datagram& datagram, const Endpoint& source) {
    using wire::ParseError;
    wire::atp::Common common;
    fuzz::check(wire::atp::parse_common(datagram.bytes, common) == ParseError::none, "what is sent can be read");
    auto error = ParseError::none;
    if (common.type == Type::gradient) {
      wire::atp::GradientPacket gradient;
      error = wire::atp::parse_gradient(datagram.bytes, common, gradient);
    } else if (common.type == Type::waiting) {
      wire::atp::WaitingPacket waiting;
      error = wire::atp::parse_waiting(datagram.bytes, common, waiting);
    } else if (common.type == Type::mismatch) {
      wire::atp::MismatchPacket mismatch;
      error = wire::atp::parse_mismatch(datagram.bytes, common, mismatch);
    } else if (common.type != Type::unknown_job) {
      wire::atp::ParameterPacket parameter;
      error = wire::atp::parse_parameter(datagram.bytes, common, parameter);
    }
    fuzz::check(error == ParseError::none, "what is sent can be read to its end");
    static const std::set<Endpoint> registered{fuzz::atp_rank(0),   fuzz::atp_rank(1),   fuzz::atp_rank(2),
                                               fuzz::atp_switch(0), fuzz::atp_switch(1), fuzz::atp_server};
    fuzz::check(common.type == Type::unknown_job ? datagram.to == source : registered.contains(datagram.to),
                "packets go to registered addresses");
  }

  void receive(const Endpoint& to, std::span<const std::byte> packet, const Endpoint& source, bool congested) {
    for (std::uint32_t i = 0; i < fuzz::atp_switches; ++i) {
      if (to != fuzz::atp_switch(i)) continue;
      at(job.switches[i], to, packet, source, [&](const RxView& view, Sink& out) {
        job.switches[i].on_packets({&view, 1}, congested, now, out);
      });
      job.check_switch(i, packets[to], 0);
    }
    if (to == fuzz::atp_server) {
      at(job.server, to, packet, source, [&](const RxView& view, Sink& out) {
        job.server.on_packets({&view, 1}, congested, now, out);
      });
      job.check_server(packets[to]);
      for (const auto& stalled : job.server.stalled(fuzz::job_epoch, 99)) {
        fuzz::check(stalled.missing.minus(atp::Ranks::first(fuzz::atp_ranks)).empty(), "the missing are of the job");
      }
    }
    for (std::uint32_t rank = 0; rank < fuzz::atp_ranks; ++rank) {
      if (to != fuzz::atp_rank(rank)) continue;
      at(job.workers[rank], to, packet, source, [&](const RxView& view, Sink& out) {
        job.workers[rank].on_packets({&view, 1}, now, out);
      });
      job.check_worker(rank, packets[to]);
    }
  }

  void fire() {
    for (std::uint32_t rank = 0; rank < fuzz::atp_ranks; ++rank) {
      if (job.workers[rank].next_timeout() > now) continue;
      fuzz::RecordingSink out(fuzz::atp_rank(rank), sent);
      job.workers[rank].on_timer(now, out);
      out.flush();
    }
  }

  fuzz::AtpJob job;
  bool integers;
  std::vector<float> tensor;
  Time now{std::chrono::seconds(1)};
  std::vector<fuzz::Datagram> sent;
  std::map<Endpoint, std::uint64_t> packets;
};

// To and from a place of the job.
struct Way {
  Endpoint from, to;
};
const Way ways[] = {
    {fuzz::atp_rank(0), fuzz::atp_switch(0)}, {fuzz::atp_rank(1), fuzz::atp_switch(0)},
    {fuzz::atp_rank(2), fuzz::atp_switch(1)}, {fuzz::atp_switch(0), fuzz::atp_switch(1)},
    {fuzz::atp_switch(1), fuzz::atp_server},  {fuzz::atp_rank(1), fuzz::atp_server},
    {fuzz::atp_server, fuzz::atp_switch(1)},  {fuzz::atp_switch(1), fuzz::atp_switch(0)},
    {fuzz::atp_switch(0), fuzz::atp_rank(0)}, {fuzz::atp_server, fuzz::atp_rank(0)},
    {fuzz::atp_switch(1), fuzz::atp_rank(2)},
};

std::vector<std::byte> forge(FuzzedDataProvider& input, std::uint32_t signature) {
  wire::atp::Common c;
  c.type = static_cast<Type>(input.ConsumeIntegralInRange<int>(0, 8));
  const std::uint16_t flags = input.ConsumeBool() ? input.ConsumeIntegral<std::uint16_t>() : 0;
  c.resend = (flags & 1) != 0;
  c.ecn = (flags & 2) != 0;
  c.collision = (flags & 4) != 0;
  c.overflow = (flags & 8) != 0;
  c.wide = (flags & 16) != 0;
  c.direct = (flags & 32) != 0;
  c.floats = (flags & 64) != 0;
  c.average = (flags & 128) != 0;
  c.unchecked = input.ConsumeBool() && (c.type == Type::gradient || c.type == Type::parameter);
  c.exponent = static_cast<std::uint8_t>(flags >> 8);
  c.job_epoch = input.ConsumeIntegralInRange<int>(0, 15) == 0 ? 1 : fuzz::job_epoch;
  c.sequence = input.ConsumeIntegralInRange<std::uint64_t>(0, 12);
  if (input.ConsumeIntegralInRange<int>(0, 31) == 0) c.sequence = input.ConsumeIntegral<std::uint64_t>();
  c.rank_epoch = input.PickValueInArray<std::uint32_t>({1000, 1001, 1002, fuzz::atp_folded_epochs, fuzz::atp_folded_epochs});
  c.signature = signature ^ (input.ConsumeIntegralInRange<int>(0, 7) == 0 ? 1 : 0);
  c.index = input.ConsumeIntegralInRange<std::uint32_t>(0, 5);
  c.elements = input.PickValueInArray<std::uint16_t>({0, 4, 4, 4, 3, 5});
  std::vector<std::byte> packet;
  std::size_t header = wire::atp::parameter_header_bytes;
  switch (c.type) {
    case Type::gradient: {
      const auto path = fuzz::atp_topology().path(input.ConsumeIntegralInRange<std::uint32_t>(0, fuzz::atp_ranks - 1));
      auto fan_in = path.fan_in();
      wire::atp::Directions::Words words = {path.word(0), path.word(1), path.word(2), path.word(3)};
      const auto next_level = input.ConsumeIntegralInRange<std::uint8_t>(0, 3);
      if (input.ConsumeBool()) {
        const auto level = input.ConsumeIntegralInRange<std::size_t>(0, 3);
        words[level] = input.ConsumeIntegralInRange<std::uint32_t>(0, 7);
        if (input.ConsumeIntegralInRange<int>(0, 7) == 0) {
          fan_in[level] = input.ConsumeIntegralInRange<std::uint16_t>(0, wire::atp::max_fan_in);
        }
      }
      const wire::atp::Directions directions(next_level, fan_in, words);
      header = wire::atp::header_bytes(directions);
      packet.resize(wire::atp::gradient_bytes(c, directions));
      wire::atp::write_gradient_header(packet, c, directions);
      break;
    }
    case Type::waiting:
      packet.resize(wire::atp::waiting_bytes(atp::Ranks::first(2)));
      wire::atp::write_waiting(packet, {c, atp::Ranks::first(2)});
      break;
    case Type::mismatch:
      packet.resize(wire::atp::mismatch_bytes);
      wire::atp::write_mismatch(packet, {c, 1, 2, 0, 1});
      break;
    case Type::unknown_job:
      packet.resize(wire::atp::common_bytes);
      wire::atp::write_unknown_job(packet, c);
      break;
    default:
      packet.resize(wire::atp::parameter_bytes(c));
      wire::atp::write_parameter_header(packet, c, input.ConsumeIntegralInRange<std::uint32_t>(0, 9));
      break;
  }
  if (c.elements != 0 && packet.size() > header) {
    const auto bytes =
        input.ConsumeBytes<std::uint8_t>(input.ConsumeIntegralInRange<std::size_t>(0, packet.size() - header));
    std::transform(bytes.begin(), bytes.end(), packet.begin() + static_cast<std::ptrdiff_t>(header),
                   [](auto b) { return std::byte{b}; });
  }
  return packet;
}

void alter(FuzzedDataProvider& input, std::vector<std::byte>& packet) {
  for (int changes = input.ConsumeIntegralInRange<int>(0, 3); changes > 0; --changes) {
    packet[input.ConsumeIntegralInRange<std::size_t>(0, packet.size() - 1)] =
        std::byte{input.ConsumeIntegral<std::uint8_t>()};
  }
  if (input.ConsumeIntegralInRange<int>(0, 15) == 0) {
    packet.resize(input.ConsumeIntegralInRange<std::size_t>(wire::atp::common_bytes, packet.size() + 64));
  }
  wire::atp::seal(packet);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  fuzz::AtpSettings settings;
  settings.window = input.ConsumeIntegralInRange<std::uint32_t>(1, 12);
  const auto numbers = input.ConsumeIntegralInRange<std::uint8_t>(0, 7);
  settings.saturating = (numbers & 1) != 0;
  settings.scaling = (numbers & 2) != 0 ? atp::Scaling::dynamic : atp::Scaling::fixed;
  settings.chip = (numbers & 4) != 0;
  World world(settings, input.ConsumeBool());
  std::vector<fuzz::Datagram> genuine = std::exchange(world.sent, {});
  wire::atp::Common first;
  fuzz::check(wire::atp::parse_common(genuine.front().bytes, first) == wire::ParseError::none, "a worker's packet is one");

  while (input.remaining_bytes() > 0) {
    world.now += std::chrono::microseconds(input.ConsumeIntegral<std::uint16_t>());
    // Half of the time some that were really sent go first, so that the forgery meets what is in use.
    if (input.ConsumeBool()) {
      for (int count = input.ConsumeIntegralInRange<int>(1, 8); count > 0 && !genuine.empty(); --count) {
        const std::size_t index = input.ConsumeIntegral<std::uint8_t>() % genuine.size();
        const fuzz::Datagram one = genuine[index];
        genuine.erase(genuine.begin() + static_cast<std::ptrdiff_t>(index));
        world.receive(one.to, one.bytes, one.from, false);
      }
    }
    Way way = input.PickValueInArray(ways);
    std::vector<std::byte> packet;
    if (!genuine.empty() && input.ConsumeBool()) {
      const fuzz::Datagram& one = genuine[input.ConsumeIntegral<std::uint8_t>() % genuine.size()];
      way = {one.from, one.to};
      packet = one.bytes;
    } else {
      packet = forge(input, first.signature);
    }
    alter(input, packet);
    world.agree(packet);
    const bool strange = input.ConsumeIntegralInRange<int>(0, 7) == 0;
    world.receive(way.to, packet, strange ? stranger : way.from, input.ConsumeBool());
    if (input.ConsumeIntegralInRange<int>(0, 3) == 0) world.fire();
    genuine.insert(genuine.end(), world.sent.begin(), world.sent.end());
    world.sent.clear();
    if (genuine.size() > 200) genuine.erase(genuine.begin(), genuine.end() - 200);
    std::erase_if(genuine, [](const auto& one) { return one.to == stranger; });
  }
  return 0;
}
