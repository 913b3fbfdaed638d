// What both ends of a control connection must have in common.
#pragma once

#include <string>

namespace netsum::control {

[[nodiscard]] const std::string& version();  // of netsum
// A digest of the layouts of all control messages, all packets and their seals, computed from their definitions: 16
// hexadecimal digits.
// Two netsums whose fingerprints differ do not understand each other.
[[nodiscard]] const std::string& fingerprint();
// The control messages' layouts, which it is a digest of, with the packets' (wire/samples.h).
[[nodiscard]] std::string layouts();

}  // namespace netsum::control
