// Which CPUs are near an interface: over a made-up /sys of two nodes, with the devices' CPUs in several ranges.
#include "transport/system/numa.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace netsum::transport {
namespace {

using Cpus = std::vector<std::uint32_t>;
const Ranges no_list;

class Numa : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "numa-XXXXXX";
    ASSERT_NE(nullptr, ::mkdtemp(name.data()));
    sys_ = name;
    say("devices/system/node/online", "0-1");
    say("devices/system/node/node0/cpulist", "0-3,8-11");
    say("devices/system/node/node1/cpulist", "4-7,12");
    say("class/net/far/device/numa_node", "1");
    std::filesystem::create_directories(sys_ / "class/net/lo");
  }
  void TearDown() override { std::filesystem::remove_all(sys_); }

  void say(const std::string& file, const std::string& line) const {
    std::filesystem::create_directories((sys_ / file).parent_path());
    std::ofstream(sys_ / file) << line << "\n";
  }
  [[nodiscard]] std::optional<std::uint32_t> node(const std::string& interface) const { return node_of(interface, sys_); }
  [[nodiscard]] Cpus near(const Cpus& cpus, const std::string& interface) const {
    return near_first(cpus, node(interface), sys_);
  }

  std::filesystem::path sys_;
};

TEST_F(Numa, TheCpusOfAnInterfacesNodeComeFirst) {
  say("class/net/here/device/numa_node", "0");
  EXPECT_EQ((Cpus{4, 5, 12, 0, 3, 8}), near({0, 3, 4, 5, 8, 12}, "far"));
  EXPECT_EQ((Cpus{0, 3, 8, 4, 5, 12}), near({0, 3, 4, 5, 8, 12}, "here"));
  EXPECT_EQ((Cpus{12, 7, 9, 1}), near({9, 12, 7, 1}, "far")) << "else in the order they had";
  EXPECT_EQ((Cpus{0, 13}), near({0, 13}, "far")) << "of the node none is allowed";
}

TEST_F(Numa, WhatIsUnknownChangesNothing) {
  const Cpus cpus = {3, 5, 0};
  say("class/net/unsaid/device/numa_node", "-1");
  say("class/net/garbage/device/numa_node", "one");
  say("class/net/large/device/numa_node", "4096");
  say("class/net/no_list/device/numa_node", "2");  // node2 has no cpulist
  for (const char* const interface : {"lo", "absent", "", "..", "../net/far", "unsaid", "garbage", "large", "no_list"}) {
    EXPECT_EQ(cpus, near(cpus, interface)) << interface;
  }
  EXPECT_EQ(std::nullopt, node("large"));
  say("devices/system/node/node1/cpulist", "4-7,twelve");
  EXPECT_EQ(cpus, near(cpus, "far"));
}

TEST_F(Numa, AHostOfOneNodeHasNone) {
  EXPECT_EQ(1U, node("far"));
  say("devices/system/node/online", "0,2");
  EXPECT_EQ(1U, node("far"));
  for (const char* const online : {"0", "", "nodes"}) {
    say("devices/system/node/online", online);
    EXPECT_EQ(std::nullopt, node("far")) << online;
  }
}

TEST_F(Numa, AVirtioCardsNodeIsThatOfItsBusDevice) {
  say("devices/pci/numa_node", "1");
  std::filesystem::create_directories(sys_ / "devices/pci/virtio0");
  std::filesystem::create_directories(sys_ / "class/net/virtio");
  std::filesystem::create_directory_symlink(sys_ / "devices/pci/virtio0", sys_ / "class/net/virtio/device");
  EXPECT_EQ(1U, node("virtio"));
}

TEST_F(Numa, AVlanOrBondIsWhereAllDevicesBelowItAre) {
  std::filesystem::create_directories(sys_ / "class/net/vlan/lower_far");
  EXPECT_EQ(1U, node("vlan"));
  std::filesystem::create_directories(sys_ / "class/net/above/lower_vlan");
  EXPECT_EQ(1U, node("above"));
  say("class/net/here/device/numa_node", "0");
  for (const char* const other : {"here", "lo"}) {
    const std::string bond = std::string("bond_") + other;
    std::filesystem::create_directories(sys_ / "class/net" / bond / "lower_far");
    std::filesystem::create_directories(sys_ / "class/net" / bond / (std::string("lower_") + other));
    EXPECT_EQ(std::nullopt, node(bond));
  }
}

TEST(Ranges, AreThoseOfAListOrNone) {
  EXPECT_EQ((Ranges{{0, 3}, {8, 8}, {10, 11}}), parse_ranges("0-3,8,10-11"));
  EXPECT_EQ((Ranges{{7, 7}}), parse_ranges("7"));
  for (const char* const list :
       {"", ",", "0,", ",0", "-1", "3-", "3-1", "0-3;8", "0 - 3", "0-3 ", "4294967296", "0x1", "a"}) {
    EXPECT_EQ(no_list, parse_ranges(list)) << list;
  }
}

int policy() {
  int mode = -1;
  return ::syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0) == 0 ? mode : -1;
}

TEST(MemoryOf, IsTheThreadsPolicyUntilItsEnd) {
  const int before = policy();
  if (before < 0 || ::syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0) != 0) GTEST_SKIP() << "the kernel refuses";
  {
    const MemoryOf none(std::nullopt);
    EXPECT_EQ(MPOL_DEFAULT, policy());
    const MemoryOf absent(most_nodes - 1);
    EXPECT_EQ(MPOL_DEFAULT, policy()) << "a host of so many nodes?";
    const MemoryOf first(0);
    EXPECT_EQ(MPOL_PREFERRED, policy());
    {
      const MemoryOf again(0);
      EXPECT_EQ(MPOL_PREFERRED, policy());
    }
    EXPECT_EQ(MPOL_PREFERRED, policy());
  }
  EXPECT_EQ(MPOL_DEFAULT, policy());
}

}  // namespace
}  // namespace netsum::transport
