// A bump's learned connections: they wait for the disk, and for a broken one not for ever.
#include "daemon/learned_connections.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace netsum::daemon {
namespace {

using netreduce::Connection;
using netreduce::ConnectionChange;
using netreduce::KnownConnection;
using std::chrono::seconds;

Connection of_pair(std::uint32_t number) {
  return {*parse_address("10.0.0.1"), *parse_address("10.0.0.2"), number};
}

ConnectionChange change_of(ConnectionChange::Kind kind, std::uint32_t number) {
  return {kind, {of_pair(number), 100 + number}, 1, 0};
}
ConnectionChange learned(std::uint32_t number) {
  return change_of(ConnectionChange::Kind::learned, number);
}

class LearnedConnectionsTest : public testing::Test {
 protected:
  LearnedConnectionsTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "netsum-learned-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    path_ = folder_ + "/state";
  }
  ~LearnedConnectionsTest() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] LearnedConnections open(const std::string& path) {
    return {path, [this](const std::string& line) { said_.push_back(line); }};
  }

  std::string folder_, path_;
  std::vector<std::string> said_;
  const Time start_{};
};

TEST_F(LearnedConnectionsTest, WaitUntilTheyAreCommittedAndOutliveTheProcess) {
  {
    LearnedConnections connections = open(path_);
    EXPECT_TRUE(connections.known().empty());
    connections.note(learned(1));
    connections.note(change_of(ConnectionChange::Kind::restarted, 2));
    EXPECT_EQ((std::vector{of_pair(1), of_pair(2)}), connections.commit(start_));
    EXPECT_TRUE(connections.commit(start_).empty());
    connections.note(change_of(ConnectionChange::Kind::forgotten, 1));
    EXPECT_TRUE(connections.commit(start_).empty());  // nothing waits for what is forgotten
  }
  EXPECT_EQ((std::vector{KnownConnection{of_pair(2), 102}}), open(path_).known());
  EXPECT_TRUE(said_.empty());
}

TEST_F(LearnedConnectionsTest, HaveThoseThatRanksNameButNotThoseBetweenBumps) {
  netreduce::RingConfig ring;
  ring.lines.resize(2);
  ring.lines[0].connection = of_pair(1);
  ring.lines[1].connection = of_pair(2);
  ring.lines[1].way = netreduce::Way::child;
  LearnedConnections connections = open(path_);
  connections.add(ring);
  EXPECT_TRUE(connections.commit(start_).empty());  // their ranks wait for the call, and no sum does
  EXPECT_EQ((std::vector{KnownConnection{of_pair(1), {}}}), connections.known());
}

TEST_F(LearnedConnectionsTest, WaitForNothingWithoutAFile) {
  LearnedConnections connections = open("");
  connections.note(learned(1));
  connections.add(netreduce::RingConfig());
  EXPECT_TRUE(connections.commit(start_).empty());
  EXPECT_TRUE(connections.known().empty());
}

TEST_F(LearnedConnectionsTest, GoOnWithABrokenDiskAndSaySoOnceAMinute) {
  LearnedConnections connections = open(path_);
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);  // what the file cannot replace once it is rewritten
  for (std::uint32_t number = 10; number < 2000; ++number) {
    connections.note(learned(number));
    connections.note(change_of(ConnectionChange::Kind::forgotten, number));
  }
  EXPECT_EQ(1990U, connections.commit(start_).size());
  connections.note(learned(1));
  EXPECT_EQ((std::vector{of_pair(1)}), connections.commit(start_ + seconds(59)));
  ASSERT_EQ(1U, said_.size());
  EXPECT_NE(std::string::npos, said_[0].find("do not restart this bump before the hosts are restarted")) << said_[0];
  static_cast<void>(connections.commit(start_ + seconds(60)));
  EXPECT_EQ(2U, said_.size());
  std::filesystem::remove(path_);
  static_cast<void>(connections.commit(start_ + seconds(600)));
  EXPECT_EQ(2U, said_.size());
}

}  // namespace
}  // namespace netsum::daemon
