#include "transport/service_records.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <tuple>

namespace netsum::transport {
namespace {

constexpr std::uint16_t type_srv = 33, class_internet = 1;
constexpr std::size_t header_bytes = 12, longest_name = 255;

class Reader {
 public:
  explicit Reader(std::span<const std::uint8_t> all) : all_(all) {}

  [[nodiscard]] bool good() const { return good_; }
  [[nodiscard]] std::size_t at() const { return at_; }

  void skip(std::size_t bytes) {
    if (bytes > all_.size() - at_) good_ = false;
    if (good_) at_ += bytes;
  }

  std::uint16_t number() {
    const std::size_t begin = at_;
    skip(2);
    return good_ ? static_cast<std::uint16_t>(all_[begin] << 8 | all_[begin + 1]) : std::uint16_t{0};
  }

  // A name, with dots between its labels (RFC 1035 §4.1.4). A pointer leads to an earlier place than the last one did, so
  // that there is an end.
  std::string name() {
    std::string text;
    std::size_t from = at_, before = at_;
    bool jumped = false;
    while (good_) {
      if (from >= all_.size()) return fail();
      const std::size_t length = all_[from];
      if ((length & 0xc0) == 0xc0) {
        if (from + 1 >= all_.size()) return fail();
        const std::size_t to = (length & 0x3f) << 8 | all_[from + 1];
        if (!jumped) at_ = from + 2;
        jumped = true;
        if (to >= before) return fail();
        before = from = to;
        continue;
      }
      if (length > 63 || length > all_.size() - from - 1) return fail();
      if (length == 0) {
        if (!jumped) at_ = from + 1;
        return text;
      }
      if (!text.empty()) text += '.';
      for (std::size_t i = from + 1; i <= from + length; ++i) {
        if (!may_be_in_a_name(static_cast<char>(all_[i]))) return fail();
        text += static_cast<char>(all_[i]);
      }
      if (text.size() > longest_name) return fail();
      from += length + 1;
    }
    return {};
  }

 private:
  static bool may_be_in_a_name(char c) {
    constexpr std::string_view others = "-_";
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || others.find(c) != others.npos;
  }

  std::string fail() {
    good_ = false;
    return {};
  }

  std::span<const std::uint8_t> all_;
  std::size_t at_ = 0;
  bool good_ = true;
};

}  // namespace

std::optional<std::vector<ServiceRecord>> service_records(std::span<const std::uint8_t> answer) {
  if (answer.size() < header_bytes) return std::nullopt;
  Reader reader(answer);
  reader.skip(4);
  const std::uint16_t questions = reader.number(), answers = reader.number();
  reader.skip(4);
  for (std::uint16_t i = 0; i < questions && reader.good(); ++i) {
    (void)reader.name();
    reader.skip(4);
  }
  std::vector<ServiceRecord> records;
  for (std::uint16_t i = 0; i < answers && reader.good(); ++i) {
    (void)reader.name();
    const std::uint16_t type = reader.number(), of_class = reader.number();
    reader.skip(4);  // how long it may be kept
    const std::size_t length = reader.number(), begin = reader.at();
    if (type == type_srv && of_class == class_internet) {
      ServiceRecord record;
      record.priority = reader.number();
      record.weight = reader.number();
      record.port = reader.number();
      record.host = reader.name();
      if (!reader.good() || reader.at() - begin != length) return std::nullopt;
      if (!record.host.empty() && record.port != 0)
        records.push_back(std::move(record));  // "." says that there is no service
    } else {
      reader.skip(length);
    }
  }
  if (!reader.good()) return std::nullopt;
  std::sort(records.begin(), records.end(), [](const ServiceRecord& a, const ServiceRecord& b) {
    return std::tie(a.priority, b.weight, a.host, a.port) < std::tie(b.priority, a.weight, b.host, b.port);
  });
  return records;
}

}  // namespace netsum::transport
