// Control messages as they arrive at the border, and what it may say of those that it refuses.
#pragma once

#include <google/protobuf/stubs/logging.h>

#include <cstddef>
#include <optional>

#include "control/border.h"
#include "fuzz/spoiled.h"
#include "session/check.h"

namespace netsum::fuzz {

// Protocol buffers would say of every string that it is not UTF-8.
inline const auto logged_before = google::protobuf::SetLogHandler(nullptr);

// What its sender writes, after its way over the network. Nothing: no handler sees it.
template <class Message, class Value>
[[nodiscard]] std::optional<Message> arrived(const Value& value, FuzzedDataProvider& input) {
  std::optional<Message> message(std::in_place);
  control::write(value, *message);
  if (!arrive(*message, input)) message.reset();
  return message;
}

// Whether it passed; if not, it is said why in one line of fewer than `most` bytes.
template <class Value>
[[nodiscard]] bool passed(const control::Parsed<Value>& value, std::size_t most) {
  const bool said = value || (!value.why().empty() && value.why().size() < most && session::printable(value.why()));
  check(said, "a refusal in one line");
  return bool{value};
}

}  // namespace netsum::fuzz
