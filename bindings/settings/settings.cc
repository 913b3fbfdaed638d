#include "bindings/settings/settings.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <iterator>
#include <variant>

#include "bindings/settings/reader.h"
#include "netsum/error.h"
#include "wire/atp.h"
#include "wire/netreduce.h"
#include "wire/switchml.h"

namespace netsum::settings {
namespace {

constexpr std::array modes = {Choice{"off", Mode::off}, Choice{"probe", Mode::probe}, Choice{"force", Mode::force}};
constexpr std::array log_levels = {Choice{"off", LogLevel::off}, Choice{"info", LogLevel::info},
                                   Choice{"debug", LogLevel::debug}};
constexpr std::array memories = {Choice{"auto", SharedMemory::automatic}, Choice{"off", SharedMemory::off},
                                 Choice{"required", SharedMemory::required}};
constexpr std::array yes_or_no = {Choice{"0", false}, Choice{"1", true}};

template <class Value>
constexpr Choice<Value> named(Value value) {
  return {netsum::to_string(value), value};
}
constexpr std::array formats = {named(WireFormat::native),   named(WireFormat::float32), named(WireFormat::float16),
                                named(WireFormat::bfloat16), named(WireFormat::int8),    named(WireFormat::int4)};
constexpr std::array roundings = {Choice{"chance", false}, Choice{"nearest", true}};
constexpr std::array securities = {named(PacketSecurity::none), named(PacketSecurity::tag), named(PacketSecurity::encrypt)};

constexpr std::array data_paths = {named(DataPath::sockets), named(DataPath::xdp), named(DataPath::dpdk)};

constexpr std::array protocols = {Choice{"switchml", 0}, Choice{"atp", 1}, Choice{"netreduce", 2}};

// Of the protocol that a communicator would run.
std::string name_of(const Protocol& protocol) {
  return protocols[protocol.index()].name;
}

// A setting that not all protocols have.
void check_owner(const Protocol& protocol, const std::string& setting, bool given, const std::vector<std::string>& owners) {
  if (given && std::find(owners.begin(), owners.end(), name_of(protocol)) == owners.end()) {
    throw Reader::bad(setting + " requires NETSUM_PROTOCOL=" + joined(owners, " or "));
  }
}

void read_verbs(const Reader& reader, const Settings& settings, bool has_spines, Protocol& protocol) {
  const std::string device = reader.text("NETSUM_VERBS");
  check_owner(protocol, "NETSUM_VERBS", !device.empty(), {"netreduce"});
  if (!device.empty() && (has_spines || settings.switches.empty())) {
    throw Reader::bad(
        "NETSUM_VERBS requires NETSUM_SWITCH with the addresses of bumps in the wire, and excludes NETSUM_SPINE");
  }
  VerbsSettings verbs;
  std::uint8_t gid_index = 0;
  const auto one = [&](const char* name, std::uint8_t& value, std::uint8_t least, std::uint8_t most) {
    const std::string variable = std::string("NETSUM_VERBS_") + name;
    if (!reader.number(variable, value, least, most)) return false;
    if (device.empty()) throw Reader::bad(variable + " requires NETSUM_VERBS");
    return true;
  };
  one("PORT", verbs.port, 1, 255);
  if (one("GID_INDEX", gid_index, 0, 255)) verbs.gid_index = gid_index;
  one("ACK_TIMEOUT", verbs.ack_timeout, 1, 31);
  one("RETRIES", verbs.retries, 0, 7);
  one("TRAFFIC_CLASS", verbs.traffic_class, 0, 255);
  one("SERVICE_LEVEL", verbs.service_level, 0, 7);
  if (auto* const netreduce = std::get_if<NetReduce>(&protocol)) {
    netreduce->verbs = device;
    netreduce->verbs_settings = verbs;
  }
}

std::string read_secret(const Reader& reader, const std::string& variable) {
  const std::string name = reader.text(variable);
  if (name.empty()) return {};
  std::ifstream file(name);
  const std::string secret{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw Reader::bad(variable + ": cannot read " + name);
  return stripped(secret);
}

void read_tls(const Reader& reader, Settings& settings) {
  const auto file = [&](const char* name) {
    std::string path = reader.text(name);
    if (!path.empty() && ::access(path.c_str(), R_OK) != 0) throw Reader::bad(std::string(name) + ": cannot read " + path);
    return path;
  };
  settings.options.tls_ca = file("NETSUM_TLS_CA");
  settings.tls_cert = file("NETSUM_TLS_CERT");
  settings.tls_key = file("NETSUM_TLS_KEY");
  if (settings.tls_cert.empty() != settings.tls_key.empty()) {
    throw Reader::bad("NETSUM_TLS_CERT and NETSUM_TLS_KEY go together");
  }
  if (settings.tls_cert.empty()) return;
  if (settings.options.tls_ca.empty())
    throw Reader::bad("NETSUM_TLS_CERT requires NETSUM_TLS_CA, with which ranks verify the shards");
  if (!settings.options.aggregators.empty()) {
    throw Reader::bad(
        "NETSUM_TLS_CERT is the certificate of shards: unset it where NETSUM_SWITCH or NETSUM_PS is set, because those "
        "daemons have their own");
  }
}

// What a protocol alone has. Returns whether there are spines.
bool read_protocol(const Reader& reader, Settings& settings) {
  Protocol& protocol = settings.options.protocol;
  protocol = protocol_named(protocols[static_cast<std::size_t>(reader.one_of("NETSUM_PROTOCOL", protocols, 0))].name);
  settings.switches = reader.addresses("NETSUM_SWITCH");
  const std::vector<std::string> servers = reader.addresses("NETSUM_PS"), spines = reader.addresses("NETSUM_SPINE");
  if (std::holds_alternative<Atp>(protocol) && servers.empty() && settings.mode != Mode::off) {
    throw Reader::bad("NETSUM_PROTOCOL=atp needs NETSUM_PS=HOST:PORT[,...]: the ranks join at their parameter servers");
  }
  check_owner(protocol, "NETSUM_PS", !servers.empty(), {"atp"});
  check_owner(protocol, "NETSUM_SPINE", !spines.empty(), {"switchml", "netreduce"});
  settings.above = servers.empty() ? spines : servers;
  if (!settings.above.empty() && settings.switches.size() > 1) {
    throw Reader::bad(std::string("NETSUM_SWITCH: with ") + (servers.empty() ? "NETSUM_SPINE" : "NETSUM_PS") +
                      " it must name exactly one switch, the one of this rank");
  }
  settings.options.aggregators = settings.above.empty() ? settings.switches : settings.above;
  if (!settings.above.empty() && !settings.switches.empty()) {
    std::visit([&](auto& own) { own.switch_address = settings.switches.front(); }, protocol);
  }
  return !spines.empty();
}

}  // namespace

const char* to_string(Mode mode) {
  return name_of(modes, mode);
}
const char* to_string(LogLevel level) {
  return name_of(log_levels, level);
}

Settings read(const Lookup& lookup, Settings settings) {
  const Reader reader(lookup);
  Options& options = settings.options;
  settings.mode = reader.one_of("NETSUM_MODE", modes, settings.mode);
  settings.log = reader.one_of("NETSUM_LOG", log_levels, settings.log);
  const bool has_spines = read_protocol(reader, settings);
  settings.job = reader.text("NETSUM_JOB");
  reader.number("NETSUM_THREADS", options.threads, 1U, 64U);
  options.pin_threads = reader.one_of("NETSUM_PIN", yes_or_no, false);
  reader.number("NETSUM_SLOTS", options.slots, 0U, 1U << 20);
  reader.number("NETSUM_PACKET_ELEMENTS", options.packet_elements, 0U, 15360U);
  const WireFormat wire = reader.one_of("NETSUM_WIRE", formats, WireFormat::native);
  check_owner(options.protocol, std::string("NETSUM_WIRE=") + netsum::to_string(wire), wire != WireFormat::native,
              {"switchml"});
  const bool nearest = reader.one_of("NETSUM_ROUNDING", roundings, false);
  if (nearest && !rounds_blocks(wire)) throw Reader::bad("NETSUM_ROUNDING=nearest requires NETSUM_WIRE=int8 or int4");
  const SharedMemory memory = reader.one_of("NETSUM_SHARED_MEMORY", memories, SharedMemory::automatic);
  check_owner(options.protocol, "NETSUM_SHARED_MEMORY=required", memory == SharedMemory::required, {"switchml"});
  if (auto* const switchml = std::get_if<SwitchMl>(&options.protocol)) {
    switchml->wire = wire;
    switchml->nearest = nearest;
    switchml->shared_memory = memory;
  }
  reader.seconds("NETSUM_RECOVERY", options.recovery, 0, 86400);
  if (options.recovery.count() > 0 && options.aggregators.empty()) {
    throw Reader::bad(
        "NETSUM_RECOVERY requires NETSUM_SWITCH or NETSUM_PS: a shard ends with its rank and cannot be restarted");
  }
  options.standbys = reader.addresses("NETSUM_STANDBY");
  if (!options.standbys.empty() && options.recovery.count() == 0)
    throw Reader::bad(
        "NETSUM_STANDBY requires NETSUM_RECOVERY: set NETSUM_RECOVERY to the seconds that ranks may take to join again");
  reader.number("NETSUM_SURVIVORS", options.survivors, 0U, max_world_size);
  if (options.survivors > 0 && options.recovery.count() == 0)
    throw Reader::bad(
        "NETSUM_SURVIVORS requires NETSUM_RECOVERY: set NETSUM_RECOVERY to the seconds that a job with too few ranks waits "
        "for more");
  reader.seconds("NETSUM_STRAGGLER_SECONDS", options.straggler_deadline, 0, 3600);
  if (options.straggler_deadline.count() > 0 && options.survivors == 0)
    throw Reader::bad(
        "NETSUM_STRAGGLER_SECONDS requires NETSUM_SURVIVORS: set NETSUM_SURVIVORS to the fewest ranks that a sum needs");
  if (options.recovery.count() > 0 && memory == SharedMemory::required) {
    throw Reader::bad("NETSUM_RECOVERY and NETSUM_SHARED_MEMORY=required exclude each other");
  }
  read_verbs(reader, settings, has_spines, options.protocol);
  settings.address = reader.text("NETSUM_ADDRESS");
  reader.seconds("NETSUM_CONNECT_SECONDS", options.connect_deadline, 0.1, 3600);
  reader.seconds("NETSUM_HEARTBEAT_SECONDS", options.heartbeat_timeout, 1, 3600);
  reader.seconds("NETSUM_SURVIVOR_SECONDS", options.survivor_timeout, 0.1, 3600);
  reader.seconds("NETSUM_OPERATION_SECONDS", options.operation_deadline, 0.1, 86400);
  read_tls(reader, settings);
  options.packet_security = reader.one_of("NETSUM_PACKET_SECURITY", securities, PacketSecurity::none);
  options.data_path = reader.one_of("NETSUM_DATA_PATH", data_paths, DataPath::sockets);
  options.dpdk = {reader.text("NETSUM_DPDK_ARGS"), reader.text("NETSUM_DPDK_ADDRESS")};
  if (options.data_path == DataPath::dpdk && options.dpdk.address.empty()) {
    throw Reader::bad("NETSUM_DATA_PATH=dpdk requires NETSUM_DPDK_ADDRESS=ADDRESS/BITS, for example 10.0.0.1/24");
  }
  options.require_keys = reader.one_of("NETSUM_REQUIRE_KEYS", yes_or_no, false);
  options.token = read_secret(reader, "NETSUM_TOKEN_FILE");
  std::string job_key = read_secret(reader, "NETSUM_JOB_KEY_FILE");
  if (reader.one_of("NETSUM_PRIVATE", yes_or_no, false)) {
    options.private_sums = PrivateSums{std::move(job_key), {}};
    if (int scale = 0; reader.number("NETSUM_FIXED_SCALE", scale, -126, 128)) options.private_sums->fixed_scale = scale;
  } else if (!job_key.empty()) {
    throw Reader::bad("NETSUM_JOB_KEY_FILE requires NETSUM_PRIVATE=1");
  } else if (!reader.text("NETSUM_FIXED_SCALE").empty()) {
    throw Reader::bad("NETSUM_FIXED_SCALE requires NETSUM_PRIVATE=1");
  }
  return settings;
}

std::uint32_t most_ranks(const Protocol& protocol) {
  if (std::holds_alternative<Atp>(protocol)) return wire::atp::max_workers;
  if (std::holds_alternative<NetReduce>(protocol)) return wire::netreduce::max_workers;
  return wire::switchml::max_workers;
}

std::vector<std::pair<std::string, std::string>> common_to_all_ranks(const Settings& settings) {
  const Options& options = settings.options;
  const auto* const switchml = std::get_if<SwitchMl>(&options.protocol);
  const auto* const netreduce = std::get_if<NetReduce>(&options.protocol);
  const bool atp = std::holds_alternative<Atp>(options.protocol);
  const std::string above = joined(settings.above, ",");
  return {
      {"NETSUM_MODE", to_string(settings.mode)},
      {"NETSUM_PROTOCOL", name_of(options.protocol)},
      // Below others each rank names the switch of its own rack.
      {"NETSUM_SWITCH", settings.above.empty() ? joined(settings.switches, ",") : ""},
      {"NETSUM_PS", atp ? above : ""},
      {"NETSUM_SPINE", atp ? "" : above},
      {"NETSUM_JOB", settings.job},
      {"NETSUM_THREADS", std::to_string(options.threads)},
      {"NETSUM_SLOTS", std::to_string(options.slots)},
      {"NETSUM_PACKET_ELEMENTS", std::to_string(options.packet_elements)},
      {"NETSUM_WIRE", switchml == nullptr ? "" : netsum::to_string(switchml->wire)},
      {"NETSUM_PRIVATE", options.private_sums ? "1" : "0"},
      {"NETSUM_FIXED_SCALE", options.private_sums && options.private_sums->fixed_scale
                                 ? std::to_string(*options.private_sums->fixed_scale)
                                 : "no"},
      {"NETSUM_STANDBY", joined(options.standbys, ",")},
      {"NETSUM_SURVIVORS", std::to_string(options.survivors)},
      {"NETSUM_STRAGGLER_SECONDS", std::to_string(options.straggler_deadline.count()) + " ms"},
      {"NETSUM_RECOVERY", std::to_string(options.recovery.count()) + " ms"},
      {"NETSUM_TLS_CERT", settings.tls_cert.empty() ? "no" : "yes"},
      {"NETSUM_VERBS", netreduce == nullptr || netreduce->verbs.empty() ? "no" : "yes"},
  };
}

}  // namespace netsum::settings
