// The NETSUM_* variables as every binding reads them.
#include "bindings/settings/settings.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "bindings/settings/reach.h"

namespace netsum::settings {
namespace {

using Variables = std::map<std::string, std::string>;

Settings read_of(const Variables& variables) {
  return read([&](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? "" : found->second;
  });
}

// The error of variables that cannot be used.
std::string complaint(const Variables& variables) {
  try {
    static_cast<void>(read_of(variables));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_argument);
    return error.what();
  }
  return "";
}

TEST(Settings, AreTheLibrarysDefaults) {
  const Settings settings = read_of({});
  const Options by_default;
  EXPECT_EQ(settings.mode, Mode::probe);
  EXPECT_EQ(settings.log, LogLevel::info);
  EXPECT_TRUE(std::holds_alternative<SwitchMl>(settings.options.protocol));
  EXPECT_EQ(settings.options.threads, by_default.threads);
  EXPECT_EQ(settings.options.slots, by_default.slots);
  EXPECT_EQ(settings.options.connect_deadline, by_default.connect_deadline);
  EXPECT_EQ(settings.options.recovery, by_default.recovery);
  EXPECT_TRUE(settings.options.aggregators.empty());
}

TEST(Settings, AreReadWhole) {
  const Settings settings = read_of({{"NETSUM_MODE", "force"},
                                     {"NETSUM_LOG", "debug"},
                                     {"NETSUM_SWITCH", "10.0.0.1:7170, [fe80::1]:7171,"},
                                     {"NETSUM_JOB", "night"},
                                     {"NETSUM_THREADS", "64"},
                                     {"NETSUM_SLOTS", "128"},
                                     {"NETSUM_PACKET_ELEMENTS", "15360"},
                                     {"NETSUM_WIRE", "bfloat16"},
                                     {"NETSUM_SHARED_MEMORY", "off"},
                                     {"NETSUM_RECOVERY", "2.5"},
                                     {"NETSUM_CONNECT_SECONDS", "0.25"},
                                     {"NETSUM_OPERATION_SECONDS", "90"},
                                     {"NETSUM_PACKET_SECURITY", "encrypt"},
                                     {"NETSUM_REQUIRE_KEYS", "1"},
                                     {"NETSUM_DATA_PATH", "dpdk"},
                                     {"NETSUM_DPDK_ARGS", "-a 0000:03:00.0"},
                                     {"NETSUM_DPDK_ADDRESS", "10.9.0.2/16"},
                                     {"NETSUM_ADDRESS", "10.0.0.2"}});
  EXPECT_EQ(settings.mode, Mode::force);
  EXPECT_EQ(settings.log, LogLevel::debug);
  EXPECT_EQ(settings.job, "night");
  EXPECT_EQ(settings.address, "10.0.0.2");
  const Options& options = settings.options;
  EXPECT_EQ(options.aggregators, (std::vector<std::string>{"10.0.0.1:7170", "[fe80::1]:7171"}));
  EXPECT_EQ(options.threads, 64U);
  EXPECT_EQ(options.slots, 128U);
  EXPECT_EQ(options.packet_elements, 15360U);
  EXPECT_EQ(options.recovery.count(), 2500);
  EXPECT_EQ(options.connect_deadline.count(), 250);
  EXPECT_EQ(options.operation_deadline.count(), 90'000);
  EXPECT_EQ(options.packet_security, PacketSecurity::encrypt);
  EXPECT_TRUE(options.require_keys);
  EXPECT_EQ(options.data_path, DataPath::dpdk);
  EXPECT_EQ(options.dpdk.args, "-a 0000:03:00.0");
  EXPECT_EQ(options.dpdk.address, "10.9.0.2/16");
  const auto& protocol = std::get<SwitchMl>(options.protocol);
  EXPECT_EQ(protocol.wire, WireFormat::bfloat16);
  EXPECT_EQ(protocol.shared_memory, SharedMemory::off);
  EXPECT_EQ(protocol.switch_address, "");
}

TEST(Settings, RoundToNearestInBlocksAlone) {
  const auto nearest = [](const char* wire, const char* how) {
    return std::get<SwitchMl>(read_of({{"NETSUM_WIRE", wire}, {"NETSUM_ROUNDING", how}}).options.protocol).nearest;
  };
  EXPECT_TRUE(nearest("int4", "nearest") && nearest("int8", "nearest") && !nearest("int8", "chance"));
  EXPECT_NE(std::string::npos, complaint({{"NETSUM_ROUNDING", "nearest"}}).find("requires NETSUM_WIRE=int8 or int4"));
}

TEST(Settings, OfPrivateSumsGoTogether) {
  EXPECT_FALSE(read_of({{"NETSUM_PRIVATE", "0"}}).options.private_sums);
  EXPECT_EQ("", read_of({{"NETSUM_PRIVATE", "1"}}).options.private_sums.value().key) << "the binding may draw one";
  EXPECT_EQ(-3, read_of({{"NETSUM_PRIVATE", "1"}, {"NETSUM_FIXED_SCALE", "-3"}}).options.private_sums.value().fixed_scale);
  for (const char* const name : {"NETSUM_JOB_KEY_FILE", "NETSUM_FIXED_SCALE"}) {
    const std::string value = name == std::string("NETSUM_FIXED_SCALE") ? "4" : "/proc/self/cmdline";
    EXPECT_NE(std::string::npos, complaint({{name, value}}).find("requires NETSUM_PRIVATE=1")) << name;
  }
}

TEST(Settings, ThatAreSilentLeaveABindingsOwn) {
  Settings own;
  own.options.operation_deadline = std::chrono::seconds(7);
  const auto lookup = [](const std::string& name) { return name == "NETSUM_THREADS" ? "2" : ""; };
  const Settings settings = read(lookup, own);
  EXPECT_EQ(settings.options.operation_deadline, std::chrono::seconds(7));
  EXPECT_EQ(settings.options.threads, 2U);
}

TEST(Settings, PlaceRanksBelowServersAndSpines) {
  const Settings atp =
      read_of({{"NETSUM_PROTOCOL", "atp"}, {"NETSUM_SWITCH", "10.0.0.1:1"}, {"NETSUM_PS", "10.0.0.2:2,10.0.0.3:3"}});
  EXPECT_EQ(atp.options.aggregators, (std::vector<std::string>{"10.0.0.2:2", "10.0.0.3:3"}));
  EXPECT_EQ(std::get<Atp>(atp.options.protocol).switch_address, "10.0.0.1:1");
  const Settings tree = read_of({{"NETSUM_SWITCH", "10.0.0.1:1"}, {"NETSUM_SPINE", "10.0.0.2:2"}});
  EXPECT_EQ(tree.options.aggregators, (std::vector<std::string>{"10.0.0.2:2"}));
  EXPECT_EQ(std::get<SwitchMl>(tree.options.protocol).switch_address, "10.0.0.1:1");
  const Settings ring = read_of({{"NETSUM_PROTOCOL", "netreduce"},
                                 {"NETSUM_SWITCH", "10.0.0.1:1"},
                                 {"NETSUM_VERBS", "mlx5_0"},
                                 {"NETSUM_VERBS_PORT", "2"},
                                 {"NETSUM_VERBS_GID_INDEX", "0"}});
  const auto& netreduce = std::get<NetReduce>(ring.options.protocol);
  EXPECT_EQ(netreduce.verbs, "mlx5_0");
  EXPECT_EQ(netreduce.verbs_settings.port, 2);
  EXPECT_EQ(netreduce.verbs_settings.gid_index, 0);
}

TEST(Settings, ThatCannotBeUsedAreNamed) {
  const Variables ring = {{"NETSUM_PROTOCOL", "netreduce"}, {"NETSUM_SWITCH", "10.0.0.1:1"}, {"NETSUM_VERBS", "mlx5_0"}};
  const auto with = [](Variables base, const std::string& name, const std::string& value) {
    base[name] = value;
    return base;
  };
  const std::vector<std::pair<Variables, std::string>> cases = {
      {{{"NETSUM_MODE", "maybe"}}, "NETSUM_MODE='maybe': must be one of off, probe, force"},
      {{{"NETSUM_THREADS", "0"}}, "NETSUM_THREADS=0: must be between 1 and 64"},
      {{{"NETSUM_THREADS", "-1"}}, "NETSUM_THREADS=-1: must be between 1 and 64"},
      {{{"NETSUM_THREADS", "99999999999999999999"}}, "must be between 1 and 64"},
      {{{"NETSUM_THREADS", "2x"}}, "NETSUM_THREADS='2x': must be a number"},
      {{{"NETSUM_THREADS", "two"}}, "NETSUM_THREADS='two': must be a number"},
      {{{"NETSUM_CONNECT_SECONDS", "0"}}, "NETSUM_CONNECT_SECONDS=0: must be between 0.1 and 3600"},
      {{{"NETSUM_CONNECT_SECONDS", "nan"}}, "NETSUM_CONNECT_SECONDS=nan: must be between 0.1 and 3600"},
      {{{"NETSUM_SWITCH", "host"}}, "NETSUM_SWITCH: 'host' is not HOST:PORT"},
      {{{"NETSUM_SWITCH", "host:0"}}, "NETSUM_SWITCH: 'host:0' is not HOST:PORT"},
      {{{"NETSUM_PS", "10.0.0.1:1"}}, "NETSUM_PS requires NETSUM_PROTOCOL=atp"},
      {{{"NETSUM_PROTOCOL", "atp"}}, "NETSUM_PROTOCOL=atp needs NETSUM_PS"},
      {{{"NETSUM_PROTOCOL", "atp"}, {"NETSUM_PS", "a:1"}, {"NETSUM_SPINE", "a:1"}},
       "NETSUM_SPINE requires NETSUM_PROTOCOL=switchml or netreduce"},
      {{{"NETSUM_SWITCH", "a:1,b:1"}, {"NETSUM_SPINE", "c:1"}},
       "NETSUM_SWITCH: with NETSUM_SPINE it must name exactly one switch"},
      {with(ring, "NETSUM_WIRE", "float16"), "NETSUM_WIRE=float16 requires NETSUM_PROTOCOL=switchml"},
      {with(ring, "NETSUM_SHARED_MEMORY", "required"), "NETSUM_SHARED_MEMORY=required requires NETSUM_PROTOCOL=switchml"},
      {{{"NETSUM_VERBS", "mlx5_0"}}, "NETSUM_VERBS requires NETSUM_PROTOCOL=netreduce"},
      {with(ring, "NETSUM_SWITCH", ""), "NETSUM_VERBS requires NETSUM_SWITCH"},
      {with(ring, "NETSUM_SPINE", "10.0.0.2:1"), "excludes NETSUM_SPINE"},
      {with(ring, "NETSUM_VERBS_RETRIES", "8"), "NETSUM_VERBS_RETRIES=8: must be between 0 and 7"},
      {{{"NETSUM_VERBS_PORT", "2"}}, "NETSUM_VERBS_PORT requires NETSUM_VERBS"},
      {{{"NETSUM_PACKET_SECURITY", "both"}}, "must be one of none, tag, encrypt"},
      {{{"NETSUM_DATA_PATH", "rdma"}}, "NETSUM_DATA_PATH='rdma': must be one of sockets, xdp, dpdk"},
      {{{"NETSUM_DATA_PATH", "dpdk"}}, "NETSUM_DATA_PATH=dpdk requires NETSUM_DPDK_ADDRESS"},
      {{{"NETSUM_REQUIRE_KEYS", "maybe"}}, "NETSUM_REQUIRE_KEYS='maybe': must be one of 0, 1"},
      {{{"NETSUM_RECOVERY", "5"}}, "NETSUM_RECOVERY requires NETSUM_SWITCH or NETSUM_PS"},
      {{{"NETSUM_RECOVERY", "5"}, {"NETSUM_SWITCH", "a:1"}, {"NETSUM_SHARED_MEMORY", "required"}}, "exclude each other"},
      {{{"NETSUM_TOKEN_FILE", "/nowhere"}}, "NETSUM_TOKEN_FILE: cannot read /nowhere"},
      {{{"NETSUM_TLS_CA", "/nowhere"}}, "NETSUM_TLS_CA: cannot read /nowhere"},
      {{{"NETSUM_TLS_CERT", "/nowhere"}}, "NETSUM_TLS_CERT: cannot read /nowhere"},
      {{{"NETSUM_TLS_KEY", "/dev/null"}}, "NETSUM_TLS_CERT and NETSUM_TLS_KEY go together"},
      {{{"NETSUM_TLS_CERT", "/dev/null"}, {"NETSUM_TLS_KEY", "/dev/null"}}, "requires NETSUM_TLS_CA"},
      {{{"NETSUM_TLS_CERT", "/dev/null"},
        {"NETSUM_TLS_KEY", "/dev/null"},
        {"NETSUM_TLS_CA", "/dev/null"},
        {"NETSUM_SWITCH", "a:1"}},
       "NETSUM_TLS_CERT is the certificate of shards"},
  };
  for (const auto& [variables, words] : cases) {
    EXPECT_NE(complaint(variables).find(words), std::string::npos) << words << "\n" << complaint(variables);
  }
  EXPECT_EQ(complaint({{"NETSUM_PROTOCOL", "atp"}, {"NETSUM_MODE", "off"}}), "");
}

TEST(Settings, OfARankAloneAreNotCompared) {
  const auto common = [](const Variables& variables) { return common_to_all_ranks(read_of(variables)); };
  EXPECT_NE(common({{"NETSUM_SWITCH", "a:1"}}), common({{"NETSUM_SWITCH", "b:1"}}));
  EXPECT_EQ(common({{"NETSUM_SWITCH", "a:1"}, {"NETSUM_SPINE", "c:1"}}),
            common({{"NETSUM_SWITCH", "b:1"}, {"NETSUM_SPINE", "c:1"}}));
  EXPECT_NE(common({{"NETSUM_SPINE", "c:1"}}), common({{"NETSUM_SPINE", "d:1"}}));
  EXPECT_NE(common({{"NETSUM_WIRE", "float16"}}), common({}));
  EXPECT_NE(common({{"NETSUM_RECOVERY", "1.5"}, {"NETSUM_SWITCH", "a:1"}}),
            common({{"NETSUM_RECOVERY", "1"}, {"NETSUM_SWITCH", "a:1"}}));
}

TEST(Settings, KeepWhatIsLookedUp) {
  const Settings settings = read_of({{"NETSUM_SWITCH", "srv:_netsum._tcp.example.org, @/etc/netsum/switches,a:1"}});
  EXPECT_EQ(settings.options.aggregators,
            (std::vector<std::string>{"srv:_netsum._tcp.example.org", "@/etc/netsum/switches", "a:1"}));
}

TEST(Reach, LooksUpFirst) {
  const std::string words = unreachable(read_of({{"NETSUM_SWITCH", "@/nowhere"}}), std::chrono::seconds(5));
  EXPECT_EQ(words, "cannot read the list of switches /nowhere: No such file or directory");
}

TEST(Reach, NamesTheAggregatorThatDoesNotAnswer) {
  const std::string words = unreachable(read_of({{"NETSUM_SWITCH", "127.0.0.1:1"}}), std::chrono::seconds(5));
  EXPECT_NE(words.find("127.0.0.1:1: "), std::string::npos) << words;
  EXPECT_NE(words.find("refused"), std::string::npos) << words;
  EXPECT_EQ(unreachable(read_of({}), std::chrono::seconds(5)), "");
}

}  // namespace
}  // namespace netsum::settings
