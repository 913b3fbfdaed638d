// Jobs at a P4 switch, which is a record of what it was told: what is put into its tables, and what is read from it.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dataplane/bmv2/plane.h"
#include "netsum/error.h"
#include "protocol/switchml/chip_rule.h"

namespace netsum::dataplane::bmv2 {
namespace {

// A switch that answers, as long as it is not `silent`.
class RecordedTarget final : public Target {
 public:
  struct Entry {
    std::string table;
    std::vector<Bytes> key, data;
    std::string action;
  };
  std::map<std::int32_t, Entry> entries;
  std::map<std::string, std::vector<std::uint64_t>> registers{
      {"netsum_gate", std::vector<std::uint64_t>(register_entries)},
      {"netsum_done", std::vector<std::uint64_t>(register_entries)},
      {"netsum_opened", std::vector<std::uint64_t>(register_entries)}};
  std::map<std::pair<std::string, std::uint32_t>, Count> counts;
  std::map<std::int32_t, std::vector<Replica>> groups;
  bool silent = false;
  std::optional<int> silent_after;  // so many calls

  void reset() override {
    check();
    entries.clear();
    groups.clear();
    last_ = 0;
  }
  std::int32_t add_entry(const std::string& table, const std::vector<Bytes>& key, const std::string& action,
                         const std::vector<Bytes>& data) override {
    entries[++last_] = {table, key, data, action};
    check();
    return last_;
  }
  void delete_entry(const std::string&, std::int32_t entry) override {
    check();
    entries.erase(entry);
  }
  std::uint64_t entries_of(const std::string& name) override {
    check();
    return table(name).size();
  }
  Count count(const std::string& counter, std::uint32_t index) override {
    check();
    return counts[{counter, index}];
  }
  void clear_count(const std::string& counter, std::uint32_t index) override {
    check();
    counts.erase({counter, index});
  }
  std::vector<std::uint64_t> read_registers(const std::string& name) override {
    check();
    return registers.at(name);
  }
  void fill_registers(const std::string& name, std::uint32_t begin, std::uint32_t end, std::uint64_t value) override {
    check();
    std::fill(registers.at(name).begin() + begin, registers.at(name).begin() + end, value);
  }
  void limit_meter(const std::string&, double, std::uint32_t) override {}
  Group make_group(std::uint16_t, const std::vector<Replica>& replicas) override {
    check();
    groups[++last_] = replicas;
    return {last_, {}};
  }
  void destroy_group(const Group& group) override {
    check();
    groups.erase(group.handle);
  }
  std::vector<std::uint32_t> ports() override { return {0, 1, 2}; }
  void deepen_queues(std::uint32_t) override {}

  [[nodiscard]] std::vector<Entry> table(const std::string& name) const {
    std::vector<Entry> found;
    for (const auto& [handle, entry] : entries) {
      if (entry.table == name) found.push_back(entry);
    }
    return found;
  }

 private:
  void check() {
    if (silent_after && --*silent_after < 0) silent = true;
    if (silent) throw Error(ErrorCode::unreachable, "it is silent");
  }
  std::int32_t last_ = 0;
};

Endpoint endpoint_of(std::uint8_t last, std::uint16_t port) {
  Endpoint endpoint;
  endpoint.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 90, 0, last};
  endpoint.port = port;
  return endpoint;
}
std::string text(std::initializer_list<int> bytes) {
  std::string made;
  for (const int byte : bytes) made.push_back(static_cast<char>(byte));
  return made;
}

class Bmv2Plane : public ::testing::Test {
 protected:
  // Member i has the address fe:00:00:00:00:0i, at port i.
  Bmv2Plane() {
    auto made = std::make_unique<RecordedTarget>();
    target = made.get();
    target->registers["netsum_learned"].assign(65536, 0);
    for (std::uint64_t member = 0; member < 8; ++member) {
      target->registers["netsum_learned"][700 + member] = member << 48 | (0xfe0000000000 + member);
    }
    shared = std::make_shared<Switch>(std::move(made), std::vector{lane});
    plane = std::make_unique<Plane>(shared, lane, true, [](const Endpoint& to) {
      transport::NextHop hop;
      hop.own = {2, 0, 0, 0, 0, 0xaa};
      hop.neighbour = {0xfe, 0, 0, 0, 0, static_cast<std::uint8_t>(to.address[15] - 10)};
      return hop;
    });
  }

  static switchml::SwitchJobConfig job(std::uint64_t epoch, std::uint32_t members, std::uint32_t elements,
                                       std::uint32_t slots) {
    switchml::SwitchJobConfig config;
    config.epoch = epoch;
    config.packet_elements = elements;
    config.slots = slots;
    for (std::uint32_t member = 0; member < members; ++member) {
      config.members.push_back({.endpoint = endpoint_of(static_cast<std::uint8_t>(10 + member), 4000)});
    }
    return config;
  }
  std::string refusal(const switchml::SwitchJobConfig& config) {
    try {
      static_cast<void>(plane->make_job(config));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  const Endpoint lane = endpoint_of(1, 7170);
  RecordedTarget* target = nullptr;
  std::shared_ptr<Switch> shared;
  std::unique_ptr<Plane> plane;
};

TEST_F(Bmv2Plane, PutsAJobIntoTheTables) {
  ASSERT_TRUE(plane->add_job(plane->make_job(job(0x0102030405060708, 3, 256, 16))));
  const auto members = target->table("netsum_members");
  ASSERT_EQ(3U, members.size());
  EXPECT_EQ("netsum_is_member", members[1].action);
  EXPECT_EQ((std::vector<std::string>{text({8, 7, 6, 5, 4, 3, 2, 1}), text({1}), text({1}), text({10, 90, 0, 11}),
                                      text({0x0f, 0xa0}), text({10, 90, 0, 1}), text({0x1c, 0x02})}),
            members[1].key);
  EXPECT_EQ((std::vector<std::string>{text({0, 0}), text({0, 2}), text({0, 0, 0, 2}), text({0x80, 0, 0, 7}),
                                      text({0, 0, 0, 0}), text({0, 0, 0, 32}), text({0, 16}), text({0x04, 0x38}), text({3}),
                                      text({0, 1}), text({0, 2})}),
            members[1].data);
  const auto receivers = target->table("netsum_receivers");
  ASSERT_EQ(3U, receivers.size());
  EXPECT_EQ((std::vector<std::string>{text({0, 0}), text({0, 3})}), receivers[2].key);
  EXPECT_EQ((std::vector<std::string>{text({0xfe, 0, 0, 0, 0, 2}), text({2, 0, 0, 0, 0, 0xaa}), text({10, 90, 0, 12}),
                                      text({10, 90, 0, 1}), text({0x0f, 0xa0}), text({0x1c, 0x02})}),
            receivers[2].data);
  ASSERT_EQ(2U, target->groups.size());  // of all ports, and the job's
  const auto& group = target->groups.rbegin()->second;
  ASSERT_EQ(3U, group.size());
  EXPECT_EQ(3U, group[2].number);
  EXPECT_EQ(std::vector<std::uint32_t>{2}, group[2].ports);
  EXPECT_EQ(128,
            std::count(target->registers["netsum_gate"].begin(), target->registers["netsum_gate"].end(), chip_accepted));
}

TEST_F(Bmv2Plane, TakesItOutAgain) {
  ASSERT_TRUE(plane->add_job(plane->make_job(job(1, 3, 256, 1000))));
  ASSERT_TRUE(plane->add_job(plane->make_job(job(2, 2, 64, 50))));
  EXPECT_EQ(text({0, 0, 0x1f, 0x40}), target->table("netsum_members").back().data[4]);  // entries behind the first job's
  EXPECT_NE(std::string::npos, refusal(job(3, 2, 256, 30)).find("--slots"));
  EXPECT_NE(nullptr, plane->remove_job(1));
  EXPECT_EQ(5U, target->table("netsum_members").size());  // nobody waits for the switch
  shared->look();
  EXPECT_EQ(2U, target->table("netsum_members").size());
  EXPECT_EQ(2U, target->table("netsum_receivers").size());
  EXPECT_EQ(2U, target->groups.size());
  EXPECT_EQ("", refusal(job(3, 2, 256, 30)));
  EXPECT_EQ(nullptr, plane->remove_job(1));
}

TEST_F(Bmv2Plane, ReadsWhatItCounted) {
  ASSERT_TRUE(plane->add_job(plane->make_job(job(1, 3, 64, 4))));
  target->counts[{"netsum_arrived", 0}] = {100, 100 * (42 + 304)};
  target->counts[{"netsum_outcomes", 0}] = {60, 0};
  target->counts[{"netsum_outcomes", 1}] = {30, 0};
  target->counts[{"netsum_outcomes", 7}] = {30, 0};
  target->counts[{"netsum_outcomes", 8}] = {4, 0};
  target->counts[{"netsum_strangers", 0}] = {5, 0};
  EXPECT_EQ(0U, plane->job_counters(1)->packets);  // nobody has looked
  shared->look();
  const auto counters = *plane->job_counters(1);
  EXPECT_EQ(100U, counters.packets);
  EXPECT_EQ(30400U, counters.bytes);
  EXPECT_EQ(90U, counters.contributions);
  EXPECT_EQ(30U, counters.chunks);
  EXPECT_EQ(94U, counters.results_sent);
  EXPECT_EQ(5U, plane->counters().unknown_job);
  target->silent = true;
  shared->look();
  EXPECT_EQ(90U, plane->job_counters(1)->contributions);  // as it was read last
  EXPECT_FALSE(plane->job_counters(2).has_value());
}

TEST_F(Bmv2Plane, SaysWhomAChunkWaitsFor) {
  ASSERT_TRUE(plane->add_job(plane->make_job(job(1, 3, 256, 2))));
  // Slot 1, version 0: its last 64 elements have been given by members 0 and 2; the first ones by all.
  target->registers["netsum_gate"][2] = 1ULL << 32 | chip_accepted | 7;
  target->registers["netsum_gate"][3 * 4 + 2] = 1ULL << 32 | chip_accepted | 5;
  target->registers["netsum_opened"][2] = 77ULL << 32 | 12;
  shared->look();
  const auto stalled = plane->stalled(1, 10);
  ASSERT_EQ(1U, stalled.size());
  EXPECT_EQ(77U, stalled[0].operation);
  EXPECT_EQ(12U, stalled[0].chunk);
  EXPECT_EQ(1U, stalled[0].slot);
  EXPECT_FALSE(stalled[0].missing.contains(0));
  EXPECT_TRUE(stalled[0].missing.contains(1));
  EXPECT_EQ(1U, plane->slots_in_use(1));
  target->silent = true;
  shared->look();
  EXPECT_TRUE(plane->stalled(1, 10).empty());
  EXPECT_EQ(0U, plane->slots_in_use(1));
}

TEST_F(Bmv2Plane, RefusesWhatItCannotServe) {
  EXPECT_NE(std::string::npos, refusal(job(1, 9, 64, 1)).find("has not learned its Ethernet address"));
  auto leaf = job(1, 2, 64, 1);
  leaf.tree.emplace();
  leaf.tree->parent = lane;
  EXPECT_NE(std::string::npos, refusal(leaf).find("root of a tree"));
  EXPECT_NE(std::string::npos, refusal(job(1, 2, 256, 2000)).find("--slots"));
  target->silent = true;
  EXPECT_NE(std::string::npos, refusal(job(1, 2, 64, 1)).find("silent"));
  target->silent = false;
  shared->look();
  EXPECT_EQ(1U, target->groups.size());
  EXPECT_TRUE(target->table("netsum_receivers").empty());
  EXPECT_EQ("", refusal(job(1, 2, 256, 1024)));  // what was refused holds nothing
}

TEST_F(Bmv2Plane, SetsASwitchUpThatHasBegunAnew) {
  ASSERT_TRUE(plane->add_job(plane->make_job(job(1, 3, 64, 4))));
  target->entries.clear();
  target->groups.clear();
  shared->look();
  EXPECT_EQ(1U, target->table("netsum_lanes").size());
  EXPECT_EQ(1U, target->groups.size());  // of all ports
  EXPECT_TRUE(target->table("netsum_members").empty());
  ASSERT_TRUE(plane->add_job(plane->make_job(job(2, 2, 64, 4))));
  EXPECT_NE(nullptr, plane->remove_job(1));  // what it had may be another job's now
  shared->look();
  EXPECT_EQ(2U, target->table("netsum_members").size());
  EXPECT_EQ(2U, target->groups.size());
}

// The switch may have done what it did not answer.
TEST_F(Bmv2Plane, GivesNoJobTheNumberOfADoubtfulOne) {
  target->silent_after = 38;
  EXPECT_NE(std::string::npos, refusal(job(1, 3, 64, 4)).find("silent"));
  EXPECT_EQ(2U, target->table("netsum_receivers").size());
  target->silent_after.reset();
  target->silent = false;
  ASSERT_TRUE(plane->add_job(plane->make_job(job(2, 3, 64, 4))));
  ASSERT_EQ(4U, target->table("netsum_receivers").size());  // one is that of which nobody knows
  EXPECT_EQ(text({0, 0}), target->table("netsum_receivers")[0].key[0]);
  EXPECT_EQ(text({0, 1}), target->table("netsum_receivers")[1].key[0]);
  EXPECT_EQ(text({0, 0, 0, 0}), target->table("netsum_members")[0].data[4]);  // the entries are free again
}

}  // namespace
}  // namespace netsum::dataplane::bmv2
