// TOML, as settings and files of people have it. toml.cc alone knows the library, whose words reach nobody.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace netsum::app {

struct TomlValue;
using TomlList = std::vector<TomlValue>;
struct TomlTable {
  std::map<std::string, TomlValue> values;
  std::uint32_t line = 0;  // where it begins; 0: unknown

  [[nodiscard]] const TomlValue* get(const std::string& key) const;  // null: there is none
};

struct TomlValue {
  // Nothing: of another type, a date for example.
  std::variant<std::monostate, std::string, bool, std::int64_t, double, TomlList, TomlTable> value;
  std::uint32_t line = 0;

  // Null: of another type.
  template <class Type>
  [[nodiscard]] const Type* as() const {
    return std::get_if<Type>(&value);
  }
};

inline const TomlValue* TomlTable::get(const std::string& key) const {
  const auto found = values.find(key);
  return found == values.end() ? nullptr : &found->second;
}

// `name`: of the file, for errors. Throws UsageError.
[[nodiscard]] TomlTable parse_toml(const std::string& text, const std::string& name);

// A value in TOML syntax.
[[nodiscard]] std::string as_toml(const std::string& value);
[[nodiscard]] std::string as_toml(double value);
[[nodiscard]] std::string as_toml(std::uint64_t value);
[[nodiscard]] std::string as_toml(std::uint32_t value);
[[nodiscard]] std::string as_toml(bool value);
[[nodiscard]] std::string as_toml(const std::vector<std::string>& values);

}  // namespace netsum::app
