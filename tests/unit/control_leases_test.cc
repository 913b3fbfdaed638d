// Jobs of other aggregators at a switch, and what the log says of callers.
#include "control/leases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "control/journal.h"

namespace netsum::control {
namespace {

using std::chrono::seconds;

session::RegistryConfig config() {
  session::RegistryConfig config;
  config.memory_bytes = 1000;
  config.quotas["small"].memory_bytes = 100;
  config.random = [] { return 1U; };
  return config;
}

class LeasesTest : public ::testing::Test {
 protected:
  std::string charge(const std::string& tenant, std::uint64_t epoch, std::uint64_t shared, std::uint64_t own) {
    charged_.clear();
    const auto failure = leases_.charge(tenant, epoch, {shared, own}, charged_);
    return failure ? failure->words : "";
  }
  [[nodiscard]] std::uint64_t used() const { return registry_.memory().used(); }

  session::Registry registry_{config()};
  Leases leases_{registry_};
  Leases::Charged charged_;
};

TEST_F(LeasesTest, WhatJobsShareIsChargedOnceAndToNobody) {
  EXPECT_EQ("", charge("small", 1, 500, 60));
  leases_.hold("small", 1, Time(seconds(3)));
  EXPECT_EQ(560U, used());
  EXPECT_EQ("", charge("small", 2, 500, 40)) << "a quota holds no shared memory";
  EXPECT_EQ(600U, used());
  EXPECT_EQ("", charge("small", 1, 500, 60)) << "installed again";
  EXPECT_EQ(600U, used());
  leases_.end(1);
  EXPECT_EQ(540U, used());
}

TEST_F(LeasesTest, WhatJobsShareMayGrow) {
  EXPECT_EQ("", charge("small", 1, 500, 60));
  EXPECT_EQ("", charge("small", 2, 700, 40)) << "a job of more lanes has more pools made";
  EXPECT_EQ(800U, used());
  leases_.give_back(charged_);
  EXPECT_EQ(560U, used()) << "those of the jobs before stay";
  EXPECT_NE("", charge("small", 3, 1'000'000, 40));
  EXPECT_EQ(560U, used());
}

TEST_F(LeasesTest, WhatIsRefusedIsNotCharged) {
  EXPECT_NE("", charge("small", 1, 500, 101));
  EXPECT_EQ(0U, used()) << "the shared memory was given back";
  EXPECT_EQ("", charge("small", 1, 500, 100));
  leases_.give_back(charged_);
  EXPECT_EQ(0U, used()) << "it could not be installed";
}

TEST_F(LeasesTest, AJobIsOfOneTenantUntilItsEnd) {
  leases_.hold("one", 1, Time(seconds(3)));
  EXPECT_NE(std::string::npos, charge("two", 1, 0, 1).find("another tenant"));
  EXPECT_TRUE(leases_.is_of("one", 1));
  EXPECT_FALSE(leases_.is_of("two", 1));
  EXPECT_EQ(Time(seconds(3)), leases_.next());
  EXPECT_TRUE(leases_.expired(Time(seconds(2))).empty());
  EXPECT_EQ(std::vector<std::uint64_t>{1}, leases_.expired(Time(seconds(3))));
  leases_.end(1);
  EXPECT_EQ(never, leases_.next());
  EXPECT_EQ("", charge("two", 1, 0, 1));
}

TEST_F(LeasesTest, ADrainEndsNoJobThatIsHere) {
  leases_.hold("one", 1, Time(seconds(3)));
  registry_.set_draining(true, Time());
  EXPECT_EQ("", charge("one", 1, 0, 1));
  EXPECT_NE(std::string::npos, charge("one", 2, 0, 1).find("drain"));
}

class JournalTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::ptrdiff_t count(const std::string& words) const {
    return std::count_if(lines_.begin(), lines_.end(),
                         [&](const std::string& line) { return line.find(words) != std::string::npos; });
  }
  std::vector<std::string> lines_;
  Journal journal_{[this](const std::string& line) { lines_.push_back(line); }};
};

TEST_F(JournalTest, NoTenantPushesOthersOutOfTheLog) {
  for (int i = 0; i < 1000; ++i) journal_.log_of("loud", "loud");
  journal_.log_of("quiet", "quiet");
  for (int i = 0; i < 1000; ++i) journal_.log_of("", "trusted");
  EXPECT_GE(count("loud"), 100);
  EXPECT_LE(count("loud"), 300) << "100 in 10 s";
  EXPECT_EQ(1, count("quiet"));
  EXPECT_EQ(1000, count("trusted")) << "of a daemon without tenants";
}

TEST_F(JournalTest, StrangersCannotFloodIt) {
  for (int i = 0; i < 1000; ++i) journal_.wrong_token("192.0.2.1", "showed a wrong token");
  EXPECT_LE(count("wrong token"), 60) << "20 in 10 s";
  EXPECT_EQ(1000U, journal_.wrong_tokens());
  lines_.clear();
  Journal other([this](const std::string& line) { lines_.push_back(line); });
  for (int i = 0; i < 1000; ++i) other.connection("192.0.2.1", "it sends too slowly");
  other.connection("192.0.2.2", "it sends too slowly");
  EXPECT_EQ(1, count("192.0.2.1")) << "one line a minute";
  EXPECT_EQ(1, count("192.0.2.2"));
}

}  // namespace
}  // namespace netsum::control
