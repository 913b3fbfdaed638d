// Reads a table of a TOML file that people write: each error names the file, the line and the key, and keys that nobody
// asked for are errors.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/quantity.h"
#include "config.h"

namespace netsum::app {

class TableReader {
 public:
  // `path`: the table's place, "job[0].", for messages. The table outlives the reader.
  TableReader(const TomlTable& table, std::string file, std::string path)
      : table_(table), file_(std::move(file)), path_(std::move(path)) {}

  [[nodiscard]] bool has(const std::string& key) const { return table_.get(key) != nullptr; }
  [[nodiscard]] UsageError error(const std::string& key, const std::string& what) const;
  // For a key that must be there: names a mistyped one in its place.
  [[nodiscard]] UsageError missing(const std::string& key, const std::string& hint = "") const;

  [[nodiscard]] std::string text(const std::string& key, const std::string& otherwise);
  [[nodiscard]] std::string text(const std::string& key);  // must be there
  [[nodiscard]] bool flag(const std::string& key, bool otherwise);
  [[nodiscard]] std::uint64_t number(const std::string& key, std::uint64_t otherwise, std::uint64_t least,
                                     std::uint64_t most);
  [[nodiscard]] double real(const std::string& key, double otherwise, double least, double most);
  [[nodiscard]] Duration duration(const std::string& key, Duration otherwise);  // "100us"
  [[nodiscard]] std::uint64_t bytes(const std::string& key, std::uint64_t otherwise);
  [[nodiscard]] std::uint64_t rate(const std::string& key, std::uint64_t otherwise);
  // A list of strings, or one of them alone.
  [[nodiscard]] std::vector<std::string> texts(const std::string& key);
  [[nodiscard]] std::vector<std::uint64_t> numbers(const std::string& key, std::uint64_t least, std::uint64_t most);
  // Pairs of times, as a list of lists.
  [[nodiscard]] std::vector<std::pair<Duration, Duration>> spans(const std::string& key);
  // One of the names; its index.
  [[nodiscard]] std::size_t choice(const std::string& key, const std::vector<std::string>& names, std::size_t otherwise);

  [[nodiscard]] std::optional<TableReader> table(const std::string& key);
  [[nodiscard]] std::vector<TableReader> tables(const std::string& key);  // a list of tables; empty if there is none
  [[nodiscard]] std::vector<std::string> keys() const;

  // Throws if the table has a key that was not asked for.
  void end() const;

 private:
  [[nodiscard]] const TomlValue* get(const std::string& key);
  [[nodiscard]] UsageError unknown(const std::string& key) const;
  template <class Parse>
  [[nodiscard]] auto parsed(const std::string& key, const Parse& parse, decltype(parse("")) otherwise);

  const TomlTable& table_;
  const std::string file_, path_;
  std::set<std::string> known_;
};

}  // namespace netsum::app
