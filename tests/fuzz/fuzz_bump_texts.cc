// What an operator or an earlier life gives a bump as text: a description of a ring, and a file of connections. Each is
// refused as the caller's fault, or means something that can be had, and is read again as it was written.
#include <fuzzer/FuzzedDataProvider.h>

#include <string>
#include <vector>

#include "daemon/connection_file.h"
#include "fuzz/harness.h"
#include "netsum/error.h"
#include "protocol/netreduce/ring_text.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function
using netreduce::KnownConnection;

void refused(const Error& error) {
  fuzz::check(error.code() == ErrorCode::bad_argument, "what is refused is the caller's fault");
}

std::string word(FuzzedDataProvider& input, std::initializer_list<const char*> words) {
  const auto index = input.ConsumeIntegralInRange<std::size_t>(0, words.size());
  return index == words.size() ? input.ConsumeRandomLengthString(12) : *(words.begin() + index);
}

void ring(FuzzedDataProvider& input) {
  std::string text;
  if (input.ConsumeBool()) {
    text = input.ConsumeRandomLengthString(200);
  } else {
    while (input.remaining_bytes() > 0 && text.size() < 200) {
      if (!text.empty()) text += ',';
      text += word(input, {"id", "ranks", "packets", "window", "mtu", "dtype", "layout", "order"}) + '=';
      text += word(input, {"0", "1", "2", "3", "8", "1024", "4096", "4294967295", "int32", "float32", "nrtv", "netsum",
                           "ring", "arrival", "magic=4e52@0;ring=4:2;rank=6:2;message=8:4;header=16"});
    }
  }
  try {
    const netreduce::RingConfig config = netreduce::parse_ring(text);
    fuzz::check(netreduce::check(config).empty(), "a ring that is taken makes sense");
    // Lines of the cache, which whoever makes it adds to an account of bytes.
    fuzz::check(netreduce::Accelerator::memory_bytes(config) > 0, "and has a size");
  } catch (const Error& error) {
    refused(error);
  }
}

std::vector<KnownConnection> read(const std::string& text, bool& taken) {
  try {
    taken = true;
    return daemon::parse_connections(text, "a file");
  } catch (const Error& error) {
    refused(error);
    taken = false;
    return {};
  }
}

void connections(FuzzedDataProvider& input) {
  std::string text;
  if (input.ConsumeBool()) {
    text = input.ConsumeRemainingBytesAsString();
  } else {
    while (input.remaining_bytes() > 0) {
      if (input.ConsumeBool()) text += "- ";
      for (int i = 0; i < 2; ++i) text += word(input, {"10.0.0.1", "10.0.0.2", "::1", "fe80::1", "::ffff:10.0.0.1"}) + ' ';
      text += word(input, {"17", "16777215", "16777216", "0"});
      if (input.ConsumeBool()) text += ' ' + word(input, {"0", "5", "16777215"});
      text += word(input, {"\n", "\r\n", " \n", "\n# a word\n"});
    }
  }
  bool taken = false;
  const std::vector<KnownConnection> known = read(text, taken);
  std::string again;
  for (const KnownConnection& each : known) {
    const auto& [source, destination, queue_pair] = each.connection;
    fuzz::check(daemon::parse_address(daemon::to_string(source)) == source, "an address that is written is read");
    again += daemon::to_string(source) + ' ' + daemon::to_string(destination) + ' ' + std::to_string(queue_pair) +
             (each.first_psn ? ' ' + std::to_string(*each.first_psn) : "") + '\n';
  }
  bool taken_again = false;
  const std::vector<KnownConnection> same = read(again, taken_again);
  fuzz::check(taken_again && same.size() == known.size(), "what was read can be written");
  for (std::size_t i = 0; i < known.size(); ++i) {
    fuzz::check(same[i].connection == known[i].connection && same[i].first_psn == known[i].first_psn, "and is the same");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  input.ConsumeBool() ? ring(input) : connections(input);
  return 0;
}
