// A flight record, as `netsum explain` reads it from anywhere: an error, or text that a terminal takes for nothing else.
#include <algorithm>
#include <string>

#include "fuzz/harness.h"
#include "netsum/error.h"
#include "telemetry/flight_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function
  std::string text;
  try {
    text = telemetry::explain(std::string(data, data + size));
  } catch (const Error& error) {
    fuzz::check(error.code() == ErrorCode::bad_argument, "a record that is none");
    return 0;
  }
  const bool plain = std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 && c != '\n'; });
  fuzz::check(plain, "a record has no control characters");
  return 0;
}
