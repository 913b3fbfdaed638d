#include "protocols.h"

#include <array>
#include <bit>
#include <charconv>

#include "config.h"

namespace netsum::app {
namespace {

void add_racks(std::vector<LocalDaemons>& daemons, const ProtocolFlags::Levels& levels) {
  daemons.push_back({"switch", "switch", "switch of rack", levels.racks});
  if (levels.rows != 0) daemons.push_back({"", "switch", "switch of row", levels.rows});
}

// Of a protocol whose aggregators are the tops of trees.
[[nodiscard]] std::vector<LocalDaemons> daemons_of_racks(const ProtocolFlags& flags) {
  const ProtocolFlags::Levels levels = flags.levels();
  if (levels.racks == 0) return {{"switch", "switch", "aggregator", flags.aggregators}};
  std::vector<LocalDaemons> daemons{{"spine", "switch", "aggregator", flags.aggregators}};
  add_racks(daemons, levels);
  return daemons;
}

class SwitchMlBench final : public BenchProtocol {
 public:
  [[nodiscard]] std::string_view name() const override { return "switchml"; }

  void check(const ProtocolFlags& flags) const override {
    if (flags.transport == "shm" && (flags.loss > 0 || flags.recovery_seconds > 0)) throw UsageError(of_shared_memory);
    const std::uint32_t packet = flags.packet_elements;
    if (packet > 15360 || packet % (packet <= 1024 ? 64 : 256) != 0) {
      throw UsageError("--packet-elements must be a multiple of 64 up to 1024, or of 256 up to 15360, not " +
                       std::to_string(packet));
    }
    static_cast<void>(flags.nearest_value());  // checks it
    if (flags.private_sums && flags.transport == "shm") throw UsageError("--private and --transport shm exclude each other");
    if (!flags.chip_value()) return;
    if (flags.transport == "shm") throw UsageError("--transport shm requires --profile software");
    if (!flags.multicast.empty()) throw UsageError("--multicast requires --profile software");
  }
  void check_unused(const ProtocolFlags& flags) const override {
    if (flags.chip_value() && flags.protocol != "atp") throw UsageError("--profile requires --protocol switchml or atp");
    if (flags.wire_value() != WireFormat::native) throw UsageError("--wire requires --protocol switchml");
    if (flags.nearest_value()) throw UsageError("--rounding requires --protocol switchml");
    if (flags.transport == "shm") throw UsageError(of_shared_memory);
    if (!flags.multicast.empty()) throw UsageError("--multicast requires --protocol switchml");
  }

  [[nodiscard]] std::vector<LocalDaemons> local_daemons(const ProtocolFlags& flags) const override {
    return daemons_of_racks(flags);
  }
  [[nodiscard]] Protocol settings(const ProtocolFlags& flags) const override {
    return SwitchMl{.wire = flags.wire_value(),
                    .nearest = flags.nearest_value(),
                    .local_checksums = flags.local_checksums,
                    .shared_memory = flags.transport.empty()    ? SharedMemory::automatic
                                     : flags.transport == "shm" ? SharedMemory::required
                                                                : SharedMemory::off,
                    .spin = flags.spin,
                    .switch_address = flags.own_switch()};
  }
  [[nodiscard]] Numbers numbers(const ProtocolFlags& flags) const override {
    if (flags.chip_value() || flags.private_sums) return Numbers::block_fixed_point;
    const WireFormat wire = flags.wire_value();
    const bool sums = flags.dtype_value() == DType::float32 || flags.dtype_value() == DType::bfloat16;
    if (wire == WireFormat::int8 && sums) return Numbers::as_block8;
    if (wire == WireFormat::int4 && sums) return Numbers::as_block4;
    switch (flags.dtype_value()) {
      case DType::float32:
        if (wire == WireFormat::float16) return Numbers::as_float16;
        if (wire == WireFormat::bfloat16) return Numbers::as_bfloat16;
        break;
      case DType::float16:
        if (wire != WireFormat::float32) return Numbers::as_float16;
        break;
      case DType::bfloat16:
        if (wire != WireFormat::float32) return Numbers::as_bfloat16;
        break;
      default:
        break;
    }
    return Numbers::block_fixed_point;
  }

 private:
  static constexpr auto of_shared_memory = "--transport shm requires --protocol switchml, and neither --loss nor --recovery";
};

class AtpBench final : public BenchProtocol {
 public:
  [[nodiscard]] std::string_view name() const override { return "atp"; }
  [[nodiscard]] bool joins_at_servers() const override { return true; }

  void check(const ProtocolFlags& flags) const override {
    if (!flags.switches.empty() && flags.servers.empty()) {
      throw UsageError("--protocol atp requires --ps HOST:PORT: ranks join at their parameter servers");
    }
    if (!flags.spines.empty()) throw UsageError("--spine requires --protocol switchml or netreduce");
    if (flags.private_sums) throw UsageError("--private requires --protocol switchml or netreduce");
    if (flags.packet_elements > 10880) {
      throw UsageError("--packet-elements of ATP is at most 10880, not " + std::to_string(flags.packet_elements));
    }
  }
  void check_unused(const ProtocolFlags& flags) const override {
    if (!flags.servers.empty()) throw UsageError("--ps requires --protocol atp");
    if (flags.scaling != "fixed") throw UsageError("--scaling requires --protocol atp");
  }

  [[nodiscard]] std::vector<LocalDaemons> local_daemons(const ProtocolFlags& flags) const override {
    const ProtocolFlags::Levels levels = flags.levels();
    std::vector<LocalDaemons> daemons{{"ps", "ps", "parameter server", flags.parameter_servers}};
    if (levels.racks == 0) {
      daemons.push_back({"switch", "switch", "aggregator", 1});
    } else {
      add_racks(daemons, levels);
    }
    return daemons;
  }
  [[nodiscard]] Protocol settings(const ProtocolFlags& flags) const override {
    return Atp{.switch_address = flags.own_switch(),
               .congestion_control = flags.congestion_control,
               .local_checksums = flags.local_checksums};
  }
  [[nodiscard]] Numbers numbers(const ProtocolFlags& flags) const override {
    return flags.scaling == "dynamic" ? Numbers::rescaled : Numbers::scaled;
  }
};

class NetReduceBench final : public BenchProtocol {
 public:
  [[nodiscard]] std::string_view name() const override { return "netreduce"; }

  void check(const ProtocolFlags& flags) const override {
    const std::uint32_t packet = flags.packet_elements;
    if (flags.private_sums && flags.dtype_value() != DType::int32) {
      throw UsageError("--private requires --dtype int32 with --protocol netreduce: its aggregators add floats as floats");
    }
    const bool path_mtu = std::has_single_bit(packet) && packet >= 64 && packet <= 1024;
    const bool longer = flags.verbs.empty() && packet % 1024 == 0 && packet <= 15360;
    if (packet != 0 && !path_mtu && !longer) {
      throw UsageError(
          "--packet-elements of NetReduce is 64, 128, 256, 512 or 1024, or without --verbs a multiple of 1024 up to "
          "15360, not " +
          std::to_string(packet));
    }
  }
  void check_unused(const ProtocolFlags& flags) const override {
    if (flags.first_psn_value() || flags.message_packets != 0) {
      throw UsageError("--message-packets and --first-psn require --protocol netreduce");
    }
    if (!flags.verbs.empty()) throw UsageError("--verbs requires --protocol netreduce");
  }

  [[nodiscard]] std::vector<LocalDaemons> local_daemons(const ProtocolFlags& flags) const override {
    return daemons_of_racks(flags);
  }
  [[nodiscard]] Protocol settings(const ProtocolFlags& flags) const override {
    return NetReduce{.switch_address = flags.own_switch(),
                     .message_packets = flags.message_packets,
                     .congestion_control = flags.congestion_control,
                     .verbs = flags.verbs,
                     .verbs_settings = flags.verbs_settings(),
                     .first_psn = flags.first_psn_value()};
  }
  [[nodiscard]] Numbers numbers(const ProtocolFlags& flags) const override {
    return flags.spines.empty() ? Numbers::in_order : Numbers::in_racks;
  }
};

[[nodiscard]] std::optional<std::uint32_t> number_of(const std::string& text, std::uint32_t most) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > most) return std::nullopt;
  return value;
}

const SwitchMlBench switchml;
const AtpBench atp;
const NetReduceBench netreduce;
constexpr std::array<const BenchProtocol*, 3> protocols{&switchml, &atp, &netreduce};

}  // namespace

std::vector<LocalDaemons> BenchProtocol::local_daemons(const ProtocolFlags& flags) const {
  return {{"switch", "switch", "aggregator", flags.aggregators}};
}

const BenchProtocol& bench_protocol(const std::string& name, const std::string& names) {
  for (const BenchProtocol* each : protocols) {
    if (each->name() == name) return *each;
  }
  throw UsageError("--protocol is " + names + ", not '" + name + "'");
}

void check_flags(const BenchProtocol& chosen, const ProtocolFlags& flags) {
  for (const BenchProtocol* each : protocols) {
    if (each != &chosen) each->check_unused(flags);
  }
  chosen.check(flags);
}

ProtocolFlags::Roots ProtocolFlags::roots() const {
  if (!servers.empty()) return {"ps", servers};
  if (!spines.empty()) return {"spine", spines};
  return {"switch", switches};
}

std::string ProtocolFlags::own_switch() const {
  return servers.empty() && spines.empty() ? "" : switches;
}

ProtocolFlags::Levels ProtocolFlags::levels() const {
  const std::size_t comma = racks.find(',');
  const auto lower = number_of(racks.substr(0, comma), 64);
  const auto upper = comma == std::string::npos ? 0 : number_of(racks.substr(comma + 1), 64);
  if (!lower || !upper || (comma != std::string::npos && (*upper == 0 || *upper > *lower))) {
    throw UsageError("--racks is R, up to 64, or R,R2 with no more switches in the level above, not '" + racks + "'");
  }
  return {*lower, *upper};
}

DType ProtocolFlags::dtype_value() const {
  for (const DType each : dtypes) {
    if (dtype == to_string(each)) return each;
  }
  throw UsageError("--dtype must be float32, float16, bfloat16, float64, int8, uint8, int16, int32, int64 or bool, not '" +
                   dtype + "'");
}

WireFormat ProtocolFlags::wire_value() const {
  for (const WireFormat each : wire_formats) {
    if (wire == to_string(each)) return each;
  }
  throw UsageError("--wire is native, float32, float16, bfloat16, int8 or int4, not '" + wire + "'");
}

bool ProtocolFlags::nearest_value() const {
  if (rounding != "chance" && rounding != "nearest")
    throw UsageError("--rounding must be chance or nearest, not '" + rounding + "'");
  if (rounding == "nearest" && !rounds_blocks(wire_value()))
    throw UsageError("--rounding nearest requires --wire int8 or int4");
  return rounding == "nearest";
}

bool is_chip(const std::string& profile) {
  if (profile != "software" && profile != "chip")
    throw UsageError("--profile must be software or chip, not '" + profile + "'");
  return profile == "chip";
}

bool ProtocolFlags::chip_value() const {
  return is_chip(profile);
}

std::optional<std::uint32_t> ProtocolFlags::first_psn_value() const {
  if (first_psn == "random") return std::nullopt;
  const auto value = number_of(first_psn, 0xffffff);
  if (!value) throw UsageError("--first-psn must be 'random' or below 2^24, not '" + first_psn + "'");
  return value;
}

std::optional<int> ProtocolFlags::fixed_scale_value() const {
  if (fixed_scale == "none") return std::nullopt;
  int value = 0;
  const auto [end, error] = std::from_chars(fixed_scale.data(), fixed_scale.data() + fixed_scale.size(), value);
  if (error != std::errc() || end != fixed_scale.data() + fixed_scale.size()) {
    throw UsageError("--fixed-scale is a power of two by its exponent, such as 4 for 16, or none, not '" + fixed_scale +
                     "'");
  }
  if (!private_sums) throw UsageError("--fixed-scale requires --private");
  return value;
}

VerbsSettings ProtocolFlags::verbs_settings() const {
  const auto byte = [](std::uint32_t value) { return static_cast<std::uint8_t>(value); };
  VerbsSettings settings;
  settings.port = byte(verbs_port);
  settings.ack_timeout = byte(verbs_ack_timeout);
  settings.retries = byte(verbs_retries);
  settings.traffic_class = byte(verbs_traffic_class);
  settings.service_level = byte(verbs_service_level);
  if (verbs_gid_index == "first") return settings;
  const auto index = number_of(verbs_gid_index, UINT8_MAX);
  if (!index) throw UsageError("--verbs-gid-index is first or a number up to 255, not '" + verbs_gid_index + "'");
  settings.gid_index = byte(*index);
  return settings;
}

}  // namespace netsum::app
