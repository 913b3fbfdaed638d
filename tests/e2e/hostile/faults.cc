#include "faults.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "wire/switchml.h"

namespace netsum::hostile {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::size_t captured_per_rank = 256;
constexpr std::size_t captured_ranks = 64;

// docs/protocol-switchml.md
constexpr std::uint64_t checksummed = 1 << 4;  // in the type's byte
constexpr std::size_t at_version = 0, at_type = 1, at_sender = 2, at_job_epoch = 8, at_rank_epoch = 16, at_slot = 42,
                      at_elements = 44, at_flags = 47;

}  // namespace

const char* to_string(Fault fault) {
  constexpr const char* names[fault_kinds] = {
      "loss",           "burst",       "duplicate",       "delay",         "late",         "reorder",     "corrupt",
      "truncate",       "garbage",     "reflect",         "misshape",      "replay_old",   "replay_rank", "replay_life",
      "replay_job",     "beat_lost",   "beat_unanswered", "beat_repeated", "beat_delayed", "beat_stale",  "leave_unanswered",
      "leave_repeated", "leave_forged"};
  return names[static_cast<std::size_t>(fault)];
}

void Captures::add(const Owner& owner, std::span<const std::byte> packet, Random& random) {
  auto sample = std::find_if(samples_.begin(), samples_.end(), [&](const Sample& other) {
    return other.owner.epoch == owner.epoch && other.owner.rank == owner.rank && other.owner.lane == owner.lane;
  });
  if (sample == samples_.end()) {
    if (samples_.size() == captured_ranks) samples_.erase(samples_.begin());
    samples_.push_back({owner, {}, 0});
    sample = std::prev(samples_.end());
  }
  // Reservoir: early packets stay as likely as late ones.
  const std::uint64_t place = random.below(++sample->seen);
  if (sample->packets.size() < captured_per_rank) {
    sample->packets.emplace_back(packet.begin(), packet.end());
  } else if (place < captured_per_rank) {
    sample->packets[place].assign(packet.begin(), packet.end());
  }
}

bool Captures::pick(const Owner& owner, Random& random, Capture& out) const {
  if (samples_.empty()) return false;
  const Sample& sample = samples_[random.below(samples_.size())];
  if (sample.owner.epoch == owner.epoch) {
    if (sample.owner.rank == owner.rank && sample.owner.lane != owner.lane) return false;
    out.kind = sample.owner.rank == owner.rank ? Fault::replay_old : Fault::replay_rank;
  } else {
    out.kind = sample.owner.job == owner.job ? Fault::replay_life : Fault::replay_job;
  }
  out.packet = &sample.packets[random.below(sample.packets.size())];
  return true;
}

bool Meddler::happens(Fault fault, double probability) {
  if (!random_.chance(probability * intensity_)) return false;
  if (fault != Fault::reorder) count(fault);  // that one is counted when it is overtaken
  return true;
}

void Meddler::meddle(std::span<const std::byte> packet, Time now, const Owner& owner, Captures& captures,
                     std::vector<Send>& out) {
  if (intensity_ == 0) {
    out.push_back({Bytes(packet.begin(), packet.end()), {}, false, true});
    return;
  }
  if (owner.epoch != 0) captures.add(owner, packet, random_);

  // What happens to the packet itself.
  if (now < burst_ends_) {
    count(Fault::burst);
  } else if (happens(Fault::burst, 0.003)) {
    burst_ends_ = now + random_.between(Duration(microseconds(100)), milliseconds(5));
  } else if (!happens(Fault::loss, 0.03)) {
    Send send{Bytes(packet.begin(), packet.end()), {}, false, true};
    if (happens(Fault::corrupt, 0.01)) send.packet = corrupted(packet);
    if (happens(Fault::truncate, 0.01)) send.packet.resize(random_.below(packet.size()));
    if (happens(Fault::reorder, 0.05)) send.delay = random_.between(Duration(microseconds(100)), milliseconds(3));
    if (happens(Fault::delay, 0.03)) send.delay = random_.between(Duration(milliseconds(1)), milliseconds(50));
    if (happens(Fault::late, 0.003)) send.delay = random_.between(Duration(milliseconds(1000)), milliseconds(3000));
    out.push_back(std::move(send));
  }

  // What comes besides.
  if (happens(Fault::duplicate, 0.05)) {
    const std::uint64_t copies = random_.between(1, 3);
    for (std::uint64_t i = 0; i < copies; ++i) {
      const Duration most = random_.chance(0.1) ? milliseconds(2000) : milliseconds(20);
      out.push_back({Bytes(packet.begin(), packet.end()), random_.between(Duration(0), most)});
    }
  }
  if (happens(Fault::garbage, 0.02)) out.push_back({garbage()});
  if (happens(Fault::reflect, 0.01)) out.push_back({Bytes(packet.begin(), packet.end()), {}, true});
  if (packet.size() >= wire::switchml::chunk_header_bytes && happens(Fault::misshape, 0.02))
    out.push_back({misshapen(packet)});
  if (Captures::Capture capture{}; random_.chance(0.06 * intensity_) && captures.pick(owner, random_, capture)) {
    count(capture.kind);
    out.push_back({*capture.packet});
  }
}

Bytes Meddler::corrupted(std::span<const std::byte> packet) {
  Bytes bytes(packet.begin(), packet.end());
  if (random_.chance(0.5)) {
    for (std::uint64_t i = random_.between(1, 3); i > 0; --i) {
      bytes[random_.below(bytes.size())] ^= std::byte{1} << random_.below(8);
    }
  } else {
    const std::size_t begin = random_.below(bytes.size());
    const std::size_t end = std::min(bytes.size(), begin + random_.between(1, 64));
    for (std::size_t i = begin; i < end; ++i) bytes[i] = static_cast<std::byte>(random_.next());
  }
  return bytes;
}

Bytes Meddler::garbage() {
  Bytes bytes(random_.below(random_.chance(0.1) ? 9000 : 200));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_.next());
  if (bytes.size() < wire::switchml::common_bytes || random_.chance(0.3)) return bytes;
  bytes[at_version] = std::byte{wire::switchml::version};
  bytes[at_type] = static_cast<std::byte>(random_.between(1, wire::switchml::last_type) | checksummed);
  store_le(bytes.data() + at_sender, std::uint16_t{0});
  if (random_.chance(0.5)) wire::switchml::seal(bytes);
  return bytes;
}

// Never a packet that its receiver would have to believe: a rank that lies about its own chunk can spoil its own job.
Bytes Meddler::misshapen(std::span<const std::byte> packet) {
  Bytes bytes(packet.begin(), packet.end());
  std::byte* const p = bytes.data();
  const auto flip = [&](std::size_t at, std::uint64_t bits) { p[at] ^= static_cast<std::byte>(bits); };
  // Type 5 has other fields where packets about a chunk have the last two cases'.
  const bool chunk = std::to_integer<int>(p[at_type] & std::byte{wire::switchml::type_bits}) <=
                     static_cast<int>(wire::switchml::Type::exponent_result);
  switch (random_.below(chunk ? 9 : 7)) {
    case 0:
      p[at_version] = static_cast<std::byte>(random_.between(3, 255));
      break;
    case 1:
      // One of the free ones, or 0.
      p[at_type] = static_cast<std::byte>((random_.between(wire::switchml::last_type + 1, 16) & wire::switchml::type_bits) |
                                          checksummed);
      break;
    case 2:
      p[at_type] |= static_cast<std::byte>(random_.between(2, 15) << 4);
      break;
    case 3:
      flip(at_job_epoch + random_.below(8), random_.between(1, 255));
      break;
    case 4:
      flip(at_rank_epoch + random_.below(4), random_.between(1, 255));
      break;
    case 5:
      if (way_ == Way::up) {
        store_le(p + at_sender, static_cast<std::uint16_t>(random_.between(0x100, 0xffff)));
      } else {  // "unknown job", but not to this life of the rank
        bytes.resize(wire::switchml::common_bytes);
        p[at_type] = static_cast<std::byte>(static_cast<std::uint64_t>(wire::switchml::Type::unknown_job) | checksummed);
      }
      break;
    case 6:
      bytes.resize(random_.between(wire::switchml::common_bytes + 1, bytes.size() - 1));
      break;
    case 7:
      store_le(p + at_slot, static_cast<std::uint16_t>(random_.between(0x8000, 0xffff)));
      break;
    default:
      if (random_.chance(0.5)) {
        store_le(p + at_elements, static_cast<std::uint16_t>(load_le<std::uint16_t>(p + at_elements) + 1));
      } else {
        flip(at_flags, 0x80);
      }
      break;
  }
  wire::switchml::seal(bytes);
  return bytes;
}

}  // namespace netsum::hostile
