#include "transport/addresses/attachments.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace netsum::transport {
namespace {

TEST(Attachments, SaysAChangeOnce) {
  std::vector<std::string> said;
  Attachments all([&](const std::string& line) { said.push_back(line); });
  for (int again = 0; again < 2; ++again) all.attached("eth1", "XDP in the driver");
  for (int again = 0; again < 2; ++again) all.detached("eth1", "it was removed");
  all.attached("eth0", "AF_XDP, zero copy");
  EXPECT_EQ((std::vector<std::string>{"interface eth1: XDP in the driver", "warning: interface eth1: it was removed",
                                      "interface eth0: AF_XDP, zero copy"}),
            said);
  const std::vector<Attachment> now = all.all();
  ASSERT_EQ(2U, now.size());
  EXPECT_EQ("eth0", now[0].interface);
  EXPECT_TRUE(now[0].attached);
  EXPECT_FALSE(now[1].attached);
  EXPECT_EQ("it was removed", now[1].state);
}

TEST(Attachments, NeedsNoLog) {
  Attachments all({});
  all.attached("eth0", "XDP in the driver");
  EXPECT_EQ(1U, all.all().size());
}

}  // namespace
}  // namespace netsum::transport
