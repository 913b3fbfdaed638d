#include "environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string_view>
#include <utility>
#include <variant>

namespace netsum::bindings {
namespace {

Error bad(const std::string& text) {
  return {ErrorCode::bad_argument, text};
}

std::string text_of(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

template <class T, std::size_t n>
T named(const std::string& name, const std::array<std::pair<const char*, T>, n>& values) {
  std::vector<std::string> names;
  for (const auto& [text, value] : values) names.emplace_back(text);
  const std::string chosen = choice(name, names.front(), names);
  return std::find_if(values.begin(), values.end(), [&](const auto& each) { return chosen == each.first; })->second;
}

std::string_view trimmed(std::string_view text) {
  constexpr const char* blanks = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

bool is_address(std::string_view address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  const std::string_view port = address.substr(colon + 1);
  unsigned value = 0;
  const auto result = std::from_chars(port.data(), port.data() + port.size(), value);
  return result.ec == std::errc() && result.ptr == port.data() + port.size() && value > 0 && value < 65536;
}

std::vector<std::string> addresses(const std::string& name) {
  std::vector<std::string> found;
  const std::string text = text_of(name);
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view address = trimmed(std::string_view(text).substr(begin, end - begin));
    if (!address.empty()) {
      if (!is_address(address)) throw bad(name + ": '" + std::string(address) + "' is not HOST:PORT");
      found.emplace_back(address);
    }
    begin = end + 1;
  }
  return found;
}

// Settings that not all protocols have.
void check_owner(const Environment& environment, bool given, const std::string& name,
                 const std::vector<std::string>& owners) {
  if (!given || std::find(owners.begin(), owners.end(), environment.protocol) != owners.end()) return;
  std::string text;
  for (const std::string& owner : owners) text += (text.empty() ? "" : " or ") + owner;
  throw bad(name + " goes with NETSUM_PROTOCOL=" + text);
}

void read_verbs(Environment& environment) {
  environment.verbs = text_of("NETSUM_VERBS");
  check_owner(environment, !environment.verbs.empty(), "NETSUM_VERBS", {"netreduce"});
  if (!environment.verbs.empty() && (!environment.spines.empty() || environment.switches.empty())) {
    throw bad("NETSUM_VERBS requires NETSUM_SWITCH with the addresses of bumps in the wire, and excludes NETSUM_SPINE");
  }
  VerbsSettings& settings = environment.verbs_settings;
  const auto read = [&](const char* what, std::uint64_t lowest, std::uint64_t highest, auto& into) {
    const std::string name = std::string("NETSUM_VERBS_") + what;
    if (text_of(name).empty()) return;
    if (environment.verbs.empty()) throw bad(name + " requires NETSUM_VERBS");
    into = static_cast<std::uint8_t>(whole_number(name, 0, lowest, highest));
  };
  read("PORT", 1, 255, settings.port);
  read("GID_INDEX", 0, 255, settings.gid_index);
  read("ACK_TIMEOUT", 1, 31, settings.ack_timeout);
  read("RETRIES", 0, 7, settings.retries);
  read("TRAFFIC_CLASS", 0, 255, settings.traffic_class);
  read("SERVICE_LEVEL", 0, 7, settings.service_level);
}

void read_aggregators(Environment& environment) {
  environment.switches = addresses("NETSUM_SWITCH");
  environment.servers = addresses("NETSUM_PS");
  environment.spines = addresses("NETSUM_SPINE");
  if (environment.protocol == "atp" && environment.servers.empty() && environment.mode != Mode::off) {
    throw bad("NETSUM_PROTOCOL=atp needs NETSUM_PS=HOST:PORT[,...]: the ranks join at their parameter servers");
  }
  check_owner(environment, !environment.servers.empty(), "NETSUM_PS", {"atp"});
  check_owner(environment, !environment.spines.empty(), "NETSUM_SPINE", {"switchml", "netreduce"});
  if (!environment.above().empty() && environment.switches.size() > 1) {
    throw bad(std::string("NETSUM_SWITCH: with ") + (environment.servers.empty() ? "NETSUM_SPINE" : "NETSUM_PS") +
              " it is the one switch that this rank is at");
  }
}

void read_secrets(Environment& environment) {
  environment.tls_ca = text_of("NETSUM_TLS_CA");
  if (!environment.tls_ca.empty() && access(environment.tls_ca.c_str(), R_OK) != 0) {
    throw bad("NETSUM_TLS_CA: cannot read " + environment.tls_ca);
  }
  environment.packet_security = named(
      "NETSUM_PACKET_SECURITY", std::array{std::pair{"none", PacketSecurity::none}, std::pair{"tag", PacketSecurity::tag},
                                           std::pair{"encrypt", PacketSecurity::encrypt}});
  environment.require_keys = choice("NETSUM_REQUIRE_KEYS", "0", {"0", "1"}) == "1";
  const std::string path = text_of("NETSUM_TOKEN_FILE");
  if (path.empty()) return;
  std::ifstream file(path);
  if (!file || !std::getline(file, environment.token)) throw bad("NETSUM_TOKEN_FILE: cannot read " + path);
  environment.token = trimmed(environment.token);
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ",") + part;
  return text;
}

}  // namespace

std::string choice(const std::string& name, const std::string& by_default, const std::vector<std::string>& choices) {
  const std::string text = text_of(name);
  if (text.empty()) return by_default;
  if (std::find(choices.begin(), choices.end(), text) != choices.end()) return text;
  std::string all;
  for (const std::string& each : choices) all += (all.empty() ? "" : ", ") + each;
  throw bad(name + "='" + text + "': must be one of " + all);
}

double number(const std::string& name, double by_default, double lowest, double highest) {
  const std::string text = text_of(name);
  if (text.empty()) return by_default;
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) {
    throw bad(name + "='" + text + "': must be a number");
  }
  if (value >= lowest && value <= highest) return value;
  char limits[80];
  std::snprintf(limits, sizeof limits, ": must be between %g and %g", lowest, highest);
  throw bad(name + "=" + text + limits);
}

std::uint64_t whole_number(const std::string& name, std::uint64_t by_default, std::uint64_t lowest, std::uint64_t highest) {
  const std::string text = text_of(name);
  if (text.empty()) return by_default;
  std::uint64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ptr != text.data() + text.size()) throw bad(name + "='" + text + "': must be a number");
  if (result.ec == std::errc() && value >= lowest && value <= highest) return value;
  throw bad(name + "=" + text + ": must be between " + std::to_string(lowest) + " and " + std::to_string(highest));
}

Environment from_environment() {
  Environment environment;
  environment.mode = named("NETSUM_MODE", std::array{std::pair{"probe", Mode::probe}, std::pair{"off", Mode::off},
                                                     std::pair{"force", Mode::force}});
  environment.log = named("NETSUM_LOG", std::array{std::pair{"info", LogLevel::info}, std::pair{"off", LogLevel::off},
                                                   std::pair{"debug", LogLevel::debug}});
  environment.protocol = choice("NETSUM_PROTOCOL", environment.protocol, {"switchml", "atp", "netreduce"});
  read_aggregators(environment);
  environment.job = text_of("NETSUM_JOB");
  environment.threads = static_cast<std::uint32_t>(whole_number("NETSUM_THREADS", 1, 1, 64));
  environment.slots = static_cast<std::uint32_t>(whole_number("NETSUM_SLOTS", 0, 0, 1 << 20));
  environment.packet_elements = static_cast<std::uint32_t>(whole_number("NETSUM_PACKET_ELEMENTS", 0, 0, 15360));
  environment.wire = named(
      "NETSUM_WIRE", std::array{std::pair{"native", WireFormat::native}, std::pair{"float32", WireFormat::float32},
                                std::pair{"float16", WireFormat::float16}, std::pair{"bfloat16", WireFormat::bfloat16}});
  check_owner(environment, environment.wire != WireFormat::native, std::string("NETSUM_WIRE=") + to_string(environment.wire),
              {"switchml"});
  environment.shared_memory = named(
      "NETSUM_SHARED_MEMORY", std::array{std::pair{"auto", SharedMemory::automatic}, std::pair{"off", SharedMemory::off},
                                         std::pair{"required", SharedMemory::required}});
  check_owner(environment, environment.shared_memory == SharedMemory::required, "NETSUM_SHARED_MEMORY=required",
              {"switchml"});
  environment.recovery =
      std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(number("NETSUM_RECOVERY", 0, 0, 86400) * 1000)));
  if (environment.recovery.count() > 0 && environment.wants_shards()) {
    throw bad("NETSUM_RECOVERY requires NETSUM_SWITCH or NETSUM_PS: a shard ends with its rank and cannot be restarted");
  }
  if (environment.recovery.count() > 0 && environment.shared_memory == SharedMemory::required) {
    throw bad("NETSUM_RECOVERY and NETSUM_SHARED_MEMORY=required exclude each other");
  }
  read_verbs(environment);
  environment.address = text_of("NETSUM_ADDRESS");
  environment.connect_deadline =
      std::chrono::milliseconds(static_cast<std::int64_t>(number("NETSUM_CONNECT_SECONDS", 30, 0.1, 3600) * 1000));
  read_secrets(environment);
  return environment;
}

std::vector<std::pair<std::string, std::string>> Environment::shared() const {
  constexpr const char* modes[] = {"off", "probe", "force"};
  std::vector<std::pair<std::string, std::string>> values = {{"NETSUM_MODE", modes[static_cast<int>(mode)]},
                                                             {"NETSUM_PROTOCOL", protocol},
                                                             {"NETSUM_PS", joined(servers)},
                                                             {"NETSUM_SPINE", joined(spines)},
                                                             {"NETSUM_JOB", job},
                                                             {"NETSUM_THREADS", std::to_string(threads)},
                                                             {"NETSUM_SLOTS", std::to_string(slots)},
                                                             {"NETSUM_PACKET_ELEMENTS", std::to_string(packet_elements)},
                                                             {"NETSUM_WIRE", to_string(wire)},
                                                             {"NETSUM_RECOVERY", std::to_string(recovery.count()) + " ms"},
                                                             {"NETSUM_VERBS", verbs.empty() ? "none" : "some"}};
  // In a tree each rank names the switch of its own rack.
  if (above().empty()) values.emplace_back("NETSUM_SWITCH", joined(switches));
  return values;
}

Options Environment::options() const {
  Options options;
  options.protocol = protocol_named(protocol);
  const std::string own_switch = above().empty() || switches.empty() ? "" : switches.front();
  if (auto* const switchml = std::get_if<SwitchMl>(&options.protocol)) {
    switchml->switch_address = own_switch;
    switchml->wire = wire;
    switchml->shared_memory = shared_memory;
  } else if (auto* const atp = std::get_if<Atp>(&options.protocol)) {
    atp->switch_address = own_switch;
  } else {
    auto& netreduce = std::get<NetReduce>(options.protocol);
    netreduce.switch_address = own_switch;
    netreduce.verbs = verbs;
    netreduce.verbs_settings = verbs_settings;
  }
  options.aggregators = above().empty() ? switches : above();
  options.threads = threads;
  options.slots = slots;
  options.packet_elements = packet_elements;
  options.recovery = recovery;
  options.token = token;
  options.tls_ca = tls_ca;
  options.packet_security = packet_security;
  options.require_keys = require_keys;
  options.connect_deadline = connect_deadline;
  return options;
}

}  // namespace netsum::bindings
