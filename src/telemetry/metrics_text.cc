#include "telemetry/metrics_text.h"

#include <array>
#include <charconv>

namespace netsum::telemetry {
namespace {

void append_escaped(std::string& text, const std::string& value) {
  for (const char c : value) {
    if (c == '\n') {
      text += "\\n";
      continue;
    }
    if (c == '\\' || c == '"') text += '\\';
    text += c;
  }
}

void append_number(std::string& text, double value) {
  std::array<char, 512> digits;  // the largest double has 309, and the smallest 1074 behind the point: then e-324
  auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, std::chars_format::fixed);
  if (end.ec != std::errc()) end = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  text.append(digits.data(), end.ptr);
}

}  // namespace

std::string metrics_text(const std::vector<MetricFamily>& families) {
  std::string text;
  for (const MetricFamily& family : families) {
    text += "# HELP " + family.name + ' ' + family.help + '\n';
    text += "# TYPE " + family.name + (family.type == MetricType::gauge ? " gauge\n" : " counter\n");
    for (const Sample& sample : family.samples) {
      text += family.name;
      char before = '{';
      for (const auto& [name, value] : sample.labels) {
        text += before + name + "=\"";
        append_escaped(text, value);
        text += '"';
        before = ',';
      }
      if (!sample.labels.empty()) text += '}';
      text += ' ';
      append_number(text, sample.value);
      text += '\n';
    }
  }
  return text;
}

}  // namespace netsum::telemetry
