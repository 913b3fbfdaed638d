// The file of a bump's connections: what is appended is there after a crash at any byte, and it does not grow for ever.
#include "daemon/connection_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "netsum/error.h"

namespace netsum::daemon {
namespace {

using netreduce::KnownConnection;

KnownConnection connection(std::uint32_t number, std::optional<std::uint32_t> first_psn = {}) {
  return {{*parse_address("10.0.0.1"), *parse_address("fd88::2"), number}, first_psn};
}

class ConnectionFileTest : public testing::Test {
 protected:
  ConnectionFileTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "netsum-state-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    path_ = folder_ + "/state";
  }
  ~ConnectionFileTest() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string content() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  [[nodiscard]] std::vector<KnownConnection> read() const { return parse_connections(content(), path_); }

  [[nodiscard]] std::ptrdiff_t lines() const {
    const std::string all = content();
    return std::count(all.begin(), all.end(), '\n');
  }

  std::string folder_, path_;
};

TEST_F(ConnectionFileTest, MakesItsFolder) {
  const std::string path = folder_ + "/a/b/rings";
  const ConnectionFile file(path);
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST_F(ConnectionFileTest, HasWhatWasCommittedAndStaysShort) {
  {
    ConnectionFile file(path_);
    for (std::uint32_t number = 0; number < 10'000; ++number) {
      file.learned(connection(number, number + 1));
      if (number >= 3) file.forgotten(connection(number - 3).connection);
      if (number % 50 == 0) file.commit();
      ASSERT_LT(std::filesystem::file_size(path_), 100'000U);
    }
    file.commit();
    file.learned(connection(77));  // not committed
  }
  EXPECT_EQ((std::vector{connection(9997, 9998), connection(9998, 9999), connection(9999, 10'000)}), read());
  ConnectionFile again(path_);
  EXPECT_EQ(read(), again.known());
  EXPECT_EQ(3, lines() - 1);
}

TEST_F(ConnectionFileTest, IsOneProcessesAtATime) {
  {
    const ConnectionFile file(path_);
    try {
      const ConnectionFile second(path_);
      FAIL() << "two have it";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("another process uses '" + path_ + "'"), std::string::npos) << error.what();
    }
  }
  const ConnectionFile next(path_);
}

TEST_F(ConnectionFileTest, IsReadWhereverACrashCutIt) {
  {
    ConnectionFile file(path_);
    file.learned(connection(1, 5));
    file.learned(connection(2));
    file.forgotten(connection(1).connection);
    file.learned(connection(1, 6));
    file.commit();
  }
  const std::string whole = content();
  for (std::size_t bytes = 0; bytes <= whole.size(); ++bytes) {
    const auto known = parse_connections(std::string_view(whole).substr(0, bytes), "it");
    ASSERT_LE(known.size(), 2U);
    if (bytes == whole.size()) {
      EXPECT_EQ((std::vector{connection(1, 6), connection(2)}), known);
    }
  }
  std::filesystem::resize_file(path_, whole.size() - 4);
  ConnectionFile again(path_);
  again.learned(connection(3));
  again.commit();
  EXPECT_EQ((std::vector{connection(2), connection(3)}), read());
}

TEST_F(ConnectionFileTest, SaysWhatIsWrong) {
  EXPECT_EQ((std::vector{connection(17)}), parse_connections("# of a former version\n10.0.0.1 fd88::2 17\n", "it"));
  for (const char* const line :
       {"nonsense", "10.0.0.1 10.0.0.2", "10.0.0.1 10.0.0.2 16777216", "10.0.0.1 10.0.0.2 1 16777216",
        "10.0.0.1 10.0.0.2 1 2 3", "10.0.0.1 somebody 1", "- 10.0.0.1"}) {
    try {
      static_cast<void>(parse_connections("\n" + std::string(line) + "\n", "it"));
      ADD_FAILURE() << line;
    } catch (const Error& error) {
      EXPECT_EQ(ErrorCode::bad_argument, error.code());
      EXPECT_NE(std::string(error.what()).find("it (--state), line 2"), std::string::npos) << error.what();
    }
  }
}

// A disk that is full for a while loses nothing.
TEST_F(ConnectionFileTest, TriesAgain) {
  ConnectionFile file(path_);
  file.learned(connection(1));
  file.commit();
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);  // what the file cannot replace
  for (std::uint32_t number = 2; number < 2000; ++number) {
    file.learned(connection(number));
    file.forgotten(connection(number).connection);
  }
  file.learned(connection(5));
  EXPECT_THROW(file.commit(), std::runtime_error);
  EXPECT_THROW(file.commit(), std::runtime_error);
  std::filesystem::remove(path_);
  file.commit();
  EXPECT_EQ((std::vector{connection(1), connection(5)}), read());
}

}  // namespace
}  // namespace netsum::daemon
