// Control messages as bytes of protocol buffers, through what the control server makes of them, at a registry.
#include <fuzzer/FuzzedDataProvider.h>

#include "control/convert.h"
#include "fuzz/registry_model.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function

constexpr int message_bytes = 512;

template <class Message>
std::optional<Message> read(FuzzedDataProvider& input) {
  const std::string bytes = input.ConsumeRandomLengthString(message_bytes);
  Message message;
  if (!message.ParseFromString(bytes)) return std::nullopt;
  return message;
}

void check_endpoint(const control::proto::Endpoint& message) {
  const auto endpoint = control::from_proto(message);
  if (!endpoint) return;
  control::proto::Endpoint again;
  control::to_proto(*endpoint, again);
  fuzz::check(again.address() == message.address() && again.port() == message.port() && again.scope() == message.scope(),
              "an endpoint is written as it was read");
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);  // it says of every string that it is not UTF-8
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  fuzz::CheckedRegistry registry;
  while (input.remaining_bytes() > 0) {
    const int action = input.ConsumeIntegralInRange<int>(0, 7);
    if (action < 4) {
      if (const auto message = read<control::proto::JoinRequest>(input)) {
        for (const auto& endpoint : message->endpoints()) check_endpoint(endpoint);
        if (const auto request = control::from_proto(*message)) registry.join(*request);
      }
    } else if (action < 6) {
      const auto message = read<control::proto::Membership>(input);
      if (!message) continue;
      const fuzz::CheckedRegistry::Life life{message->job_epoch(), message->rank(), message->rank_epoch()};
      action == 4 ? registry.heartbeat(life) : registry.leave(life);
    } else if (!registry.tickets.empty()) {
      const std::size_t index = input.ConsumeIntegral<std::uint8_t>() % registry.tickets.size();
      action == 6 ? registry.poll(index) : registry.cancel(index);
    }
  }
  registry.end();
  return 0;
}
