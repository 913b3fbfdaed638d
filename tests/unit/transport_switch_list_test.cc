// Names of switches, as people and DNS write them.
#include "transport/addresses/switch_list.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "netsum/error.h"
#include "transport/addresses/service_records.h"

namespace netsum::transport {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Texts = std::vector<std::string>;

// An answer, byte by byte.
class Answer {
 public:
  Answer(std::uint16_t questions, std::uint16_t answers) {
    for (const std::uint16_t each :
         {std::uint16_t{0x1234}, std::uint16_t{0x8180}, questions, answers, std::uint16_t{0}, std::uint16_t{0}})
      number(each);
  }

  Answer& number(std::uint16_t value) {
    bytes.push_back(static_cast<std::uint8_t>(value >> 8));
    bytes.push_back(static_cast<std::uint8_t>(value & 0xff));
    return *this;
  }
  Answer& name(const Texts& labels) {
    for (const std::string& label : labels) {
      bytes.push_back(static_cast<std::uint8_t>(label.size()));
      bytes.insert(bytes.end(), label.begin(), label.end());
    }
    bytes.push_back(0);
    return *this;
  }
  Answer& question() { return name({"_netsum", "_tcp", "example", "org"}).number(33).number(1); }
  Answer& service(std::uint16_t priority, std::uint16_t weight, std::uint16_t port, const Texts& host) {
    const std::size_t length = 6 + 1 + [&] {
      std::size_t sum = 0;
      for (const std::string& label : host) sum += label.size() + 1;
      return sum;
    }();
    number(0xc00c).number(33).number(1).number(0).number(60).number(static_cast<std::uint16_t>(length));
    return number(priority).number(weight).number(port).name(host);
  }

  Bytes bytes;
};

Texts hosts(const Bytes& answer) {
  Texts found;
  const auto records = service_records(answer);
  EXPECT_TRUE(records.has_value());
  for (const ServiceRecord& record : records.value_or(std::vector<ServiceRecord>{})) {
    found.push_back(record.host + ":" + std::to_string(record.port));
  }
  return found;
}

Error error_of(const std::string& text) {
  try {
    static_cast<void>(switch_list(text));
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::internal, "no error"};
}

class File {
 public:
  explicit File(const std::string& text) : path_(::testing::TempDir() + "switches." + std::to_string(::getpid())) {
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~File() { std::remove(path_.c_str()); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(ServiceRecords, ComeInOneOrder) {
  Answer answer(1, 4);
  answer.question().service(20, 0, 7170, {"c", "example", "org"}).service(10, 1, 7170, {"b", "example", "org"});
  answer.service(10, 5, 7170, {"z", "example", "org"}).service(10, 1, 7170, {"a", "example", "org"});
  EXPECT_EQ(hosts(answer.bytes),
            (Texts{"z.example.org:7170", "a.example.org:7170", "b.example.org:7170", "c.example.org:7170"}));
}

TEST(ServiceRecords, MayPointToEarlierNames) {
  Answer answer(1, 1);
  answer.question().number(0xc00c).number(33).number(1).number(0).number(60).number(6 + 2 + 2);
  answer.number(1).number(2).number(7170);
  answer.bytes.insert(answer.bytes.end(), {1, 'a', 0xc0, 12 + 8 + 5});  // a.example.org: behind _netsum and _tcp
  EXPECT_EQ(hosts(answer.bytes), (Texts{"a.example.org:7170"}));
}

TEST(ServiceRecords, StandBesideOthers) {
  Answer answer(1, 3);
  answer.question();
  answer.number(0xc00c).number(5).number(1).number(0).number(60).number(2).number(0xc00c);  // an alias
  answer.service(0, 0, 0, {}).service(1, 1, 9, {"a"});                                      // "." is no service
  EXPECT_EQ(hosts(answer.bytes), (Texts{"a:9"}));
}

TEST(ServiceRecords, ThatAreCutShortAreMalformed) {
  Answer answer(1, 2);
  answer.question().service(1, 1, 9, {"a", "b"}).service(1, 1, 10, {"c"});
  ASSERT_TRUE(service_records(answer.bytes).has_value());
  for (std::size_t length = 0; length < answer.bytes.size(); ++length) {
    EXPECT_FALSE(service_records(std::span(answer.bytes).first(length)).has_value()) << length;
  }
}

TEST(ServiceRecords, WithNamesThatNeverEndAreMalformed) {
  Answer to_itself(0, 1);
  to_itself.number(0xc00c);
  EXPECT_FALSE(service_records(to_itself.bytes).has_value());
  Answer in_a_ring(0, 1);
  in_a_ring.number(0xc00e).number(0xc00c);
  EXPECT_FALSE(service_records(in_a_ring.bytes).has_value());
  Answer ahead(0, 1);
  ahead.number(0xc010).number(0).number(0);
  EXPECT_FALSE(service_records(ahead.bytes).has_value());
}

TEST(ServiceRecords, WithStrangeHostsAreMalformed) {
  for (const char* label : {"a b", "a:1", "a,b", "a/b", "\x80"}) {
    Answer answer(1, 1);
    answer.question().service(1, 1, 9, {label});
    EXPECT_FALSE(service_records(answer.bytes).has_value()) << label;
  }
  Answer longer(1, 1);  // the record's length says less than its name has
  longer.question().service(1, 1, 9, {"abcd"});
  --longer.bytes[12 + 30 + 11];
  EXPECT_FALSE(service_records(longer.bytes).has_value());
}

TEST(SwitchList, KeepsAddresses) {
  EXPECT_EQ(switch_list(""), Texts{});
  EXPECT_EQ(switch_list("a:1,[fe80::1]:2"), (Texts{"a:1", "[fe80::1]:2"}));
  EXPECT_EQ(one_switch("a:1"), "a:1");
  EXPECT_EQ(one_switch(""), "");
}

TEST(SwitchList, ReadsAFile) {
  const File file("# the spines\n10.0.0.1:7170\n\n  [fe80::1]:7171 # second\r\n10.0.0.3:7170");
  EXPECT_EQ(switch_list("@" + file.path()), (Texts{"10.0.0.1:7170", "[fe80::1]:7171", "10.0.0.3:7170"}));
  EXPECT_EQ(switch_list("a:1,@" + file.path() + ",b:1").size(), 5u);
  try {
    static_cast<void>(one_switch("@" + file.path()));
    FAIL() << "three are not one";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("names 3 switches"), std::string::npos) << error.what();
  }
}

TEST(SwitchList, SaysWhatIsWrongWithAFile) {
  const File wrong("10.0.0.1:7170\n10.0.0.2\n");
  EXPECT_NE(std::string(error_of("@" + wrong.path()).what()).find(":2: '10.0.0.2' is not HOST:PORT"), std::string::npos);
  const File empty("# nothing\n");
  EXPECT_NE(std::string(error_of("@" + empty.path()).what()).find("contains no address"), std::string::npos);
  const File large(std::string((1 << 20) + 1, '#'));
  EXPECT_NE(std::string(error_of("@" + large.path()).what()).find("larger than 1 MiB"), std::string::npos);
  EXPECT_EQ(error_of("@/nowhere").code(), ErrorCode::bad_argument);
}

TEST(SwitchList, RefusesWhatIsNoService) {
  for (const std::string name : {"", "_netsum._tcp.example.org:7170", "a b", "a/b"}) {
    EXPECT_EQ(error_of("srv:" + name).code(), ErrorCode::bad_argument) << name;
  }
}

}  // namespace
}  // namespace netsum::transport
