// Any text as a layout of the INA header, and any bytes as a header: a layout that is taken has all of its fields in the
// header and outside of the seal, nothing outside of the header is read or written, and what is read can be written again
// and is read as the same.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "fuzz/harness.h"
#include "netsum/error.h"
#include "wire/netreduce.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function
using wire::netreduce::InaHeader;
using wire::netreduce::Layout;
using Bytes = std::vector<std::byte>;

std::optional<Layout> layout_of(const std::string& text) {
  try {
    return wire::netreduce::parse_layout(text);
  } catch (const Error& error) {
    fuzz::check(error.code() == ErrorCode::bad_argument, "a layout that is refused is the caller's fault");
    return std::nullopt;
  }
}

// Texts that nearly are layouts.
std::string text_of(FuzzedDataProvider& input) {
  if (input.ConsumeBool()) return input.ConsumeRandomLengthString(200);
  constexpr const char* keys[] = {"ring", "rank", "message", "packets", "signature", "dtype", "flags"};
  std::string text =
      input.ConsumeBool() ? "magic=4e52@" + std::to_string(input.ConsumeIntegralInRange<int>(0, 130)) : "netsum";
  if (input.ConsumeBool()) text += ",endian=big";
  if (input.ConsumeBool()) text += ",seals=yes";
  text += ",header=" + std::to_string(4 * input.ConsumeIntegralInRange<int>(0, 33));
  for (const char* key : keys) {
    if (input.ConsumeIntegralInRange<int>(0, 7) == 0) continue;
    text += std::string(",") + key + "=" + std::to_string(input.ConsumeIntegralInRange<int>(0, 130)) + ":" +
            std::to_string(input.ConsumeIntegralInRange<int>(0, 9));
  }
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  const std::optional<Layout> layout = layout_of(text_of(input));
  if (!layout) return 0;
  const Layout::Field fields[] = {layout->ring,      layout->rank,  layout->message, layout->packets,
                                  layout->signature, layout->dtype, layout->flags};
  const std::uint32_t begin = layout->seals ? wire::netreduce::seal_bytes : 0;
  bool apart = true;  // a field in another one, or in the magic, cannot be written beside it
  std::vector<bool> used(layout->header_bytes);
  const auto use = [&](std::uint32_t offset, std::uint32_t bytes) {
    fuzz::check(bytes == 0 || (offset >= begin && offset + bytes <= layout->header_bytes), "fields are in the header");
    for (std::uint32_t i = offset; i < offset + bytes; ++i) {
      apart = apart && !used[i];
      used[i] = true;
    }
  };
  use(layout->magic_offset, layout->magic_bytes);
  for (const Layout::Field& field : fields) use(field.offset, field.bytes);
  fuzz::check(layout->magic_bytes > 0 && layout->ring.bytes > 0 && layout->rank.bytes > 0 && layout->message.bytes > 0,
              "a header says whose it is");

  // Exactly as long as it is: who reads beyond is found.
  std::vector<std::uint8_t> given = input.ConsumeBytes<std::uint8_t>(layout->header_bytes);
  if (given.size() >= layout->magic_offset + layout->magic_bytes && input.ConsumeBool()) {
    for (std::uint32_t i = 0; i < layout->magic_bytes; ++i) {
      given[layout->magic_offset + i] = std::to_integer<std::uint8_t>(layout->magic[i]);
    }
  }
  const auto header = wire::netreduce::read_header(*layout, std::as_bytes(std::span(given)));
  fuzz::check(!header || given.size() == layout->header_bytes, "what is cut has no header");
  if (header && apart) {
    Bytes again(layout->header_bytes, std::byte{0xee});
    wire::netreduce::write_header(*layout, again, *header);
    fuzz::check(wire::netreduce::read_header(*layout, again) == header, "what is read can be written");
  }
  if (header && layout->message.bytes < 8) {
    const std::uint32_t bits = 8 * layout->message.bytes;
    const auto near = input.ConsumeIntegralInRange<std::uint64_t>(0, std::uint64_t{1} << 62);
    const std::uint64_t extended = wire::netreduce::extend_message(header->message, bits, near);
    const std::uint64_t period = std::uint64_t{1} << bits;
    fuzz::check(extended % period == header->message % period, "what was on the wire is what was on the wire");
    const std::uint64_t distance = extended > near ? extended - near : near - extended;
    fuzz::check(distance <= period / 2 || extended < period, "the nearest, or the first");
  }
  return 0;
}
