// A bump in the wire in this process, and ranks that join there and name queue pairs: no hardware, and no packet.
#include "daemon/bump_daemon.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <stop_token>
#include <string>

#include "control/client.h"
#include "netsum/error.h"
#include "session/registry.h"
#include "wire/netreduce.h"

namespace netsum::daemon {
namespace {

class BumpDaemonTest : public testing::Test {
 protected:
  BumpDaemonTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "netsum-bump-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    for (const char* const number : {"0", "1"}) {
      options_.ports.push_back("qemu:" + folder_ + "/wire" + number + "," + folder_ + "/guest" + number);
    }
    options_.state = folder_ + "/state";
    options_.listen = "127.0.0.1:0";
    daemon_ = std::make_unique<BumpDaemon>(options_);
  }
  ~BumpDaemonTest() override {
    daemon_.reset();
    std::filesystem::remove_all(folder_);
  }

  [[nodiscard]] static session::JoinRequest request(const std::string& job, std::uint32_t rank, std::uint32_t receive_qp) {
    session::JoinRequest r;
    r.protocol_version = wire::netreduce::version;
    r.protocol = "netreduce";
    r.job = job;
    r.rank = rank;
    r.world_size = 2;
    r.packet_elements = 256;
    r.slots_fixed = 4;
    r.message_packets = 16;
    netreduce::Member member;
    member.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1};  // of both: two NICs would have two
    member.send_qp = receive_qp + 100;
    member.receive_qp = receive_qp;
    r.members.push_back(member);
    r.endpoints.push_back({member.address, 4791, 0});
    return r;
  }

  // What became of both ranks.
  [[nodiscard]] std::vector<std::string> join(const session::JoinRequest& one, const session::JoinRequest& two) {
    std::vector<std::future<std::string>> ranks;
    for (const session::JoinRequest& each : {one, two}) {
      ranks.push_back(std::async(std::launch::async, [this, each] {
        try {
          control::Client client(control::ClientOptions{daemon_->address(), "", ""});
          const session::Admission admission =
              client.join(each, session::netreduce_rules(), std::chrono::seconds(20), std::stop_token());
          EXPECT_EQ(2U, admission.members.size());
          client.leave(admission.job_epoch, each.rank, admission.rank_epoch, std::chrono::seconds(5));
          return std::string("joined");
        } catch (const Error& error) {
          return std::string(error.what());
        }
      }));
    }
    std::vector<std::string> outcomes;
    for (auto& rank : ranks) outcomes.push_back(rank.get());
    return outcomes;
  }

  [[nodiscard]] std::string state() const {
    std::ifstream file(options_.state);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string folder_;
  BumpOptions options_;
  std::unique_ptr<BumpDaemon> daemon_;
};

TEST_F(BumpDaemonTest, RanksThatJoinNameTheirRingAndItIsWrittenDown) {
  EXPECT_EQ((std::vector<std::string>{"joined", "joined"}), join(request("a", 0, 7), request("a", 1, 8)));
  EXPECT_NE(state().find("10.0.0.1 10.0.0.1 7\n"), std::string::npos) << state();
  EXPECT_NE(state().find("10.0.0.1 10.0.0.1 8\n"), std::string::npos) << state();
}

TEST_F(BumpDaemonTest, QueuePairsThatTwoRanksNameAreNoRingAndNoHarm) {
  const std::vector<std::string> outcomes = join(request("a", 0, 7), request("a", 1, 7));
  EXPECT_NE((std::vector<std::string>{"joined", "joined"}), outcomes);
  EXPECT_EQ(state().find("10.0.0.1 10.0.0.1 7\n"), std::string::npos) << state();
  EXPECT_EQ((std::vector<std::string>{"joined", "joined"}), join(request("b", 0, 7), request("b", 1, 8)));
}

}  // namespace
}  // namespace netsum::daemon
