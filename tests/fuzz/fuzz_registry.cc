// Any sequence of joins (of all protocols, with switches, and again after a death), polls, cancelled joins, heartbeats,
// departures, silence and shutting down at a registry.
#include <fuzzer/FuzzedDataProvider.h>

#include "fuzz/registry_model.h"
#include "fuzz/spoiled.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function

session::JoinRequest any_request(FuzzedDataProvider& input, const fuzz::CheckedRegistry& registry) {
  session::JoinRequest request = fuzz::request_of(input, registry);
  if (input.ConsumeIntegralInRange<int>(0, 7) != 0) return request;
  switch (input.ConsumeIntegralInRange<int>(0, 8)) {  // one that is refused, or looks as if
    case 0:
      request.protocol_version = input.ConsumeIntegral<std::uint32_t>();
      break;
    case 1:
      request.protocol = input.ConsumeRandomLengthString(16);
      break;
    case 2:
      request.job = input.ConsumeRandomLengthString(400);
      break;
    case 3:
      request.rank = input.ConsumeIntegral<std::uint32_t>();
      break;
    case 4:
      request.world_size = input.ConsumeIntegral<std::uint32_t>();
      break;
    case 5:
      request.packet_elements = input.ConsumeIntegral<std::uint32_t>();
      break;
    case 6:
      request.slots_fixed = input.ConsumeIntegral<std::uint32_t>();
      break;
    case 7:
      request.own = fuzz::spoiled_part(request.own, input);
      break;
    default:
      request.endpoints.resize(input.ConsumeIntegral<std::uint8_t>(), request.endpoints.front());
      break;
  }
  return request;
}

fuzz::CheckedRegistry::Life life_of(FuzzedDataProvider& input, const fuzz::CheckedRegistry& registry) {
  if (registry.lives.empty()) return {};
  auto life = registry.lives[input.ConsumeIntegral<std::uint8_t>() % registry.lives.size()];
  switch (input.ConsumeIntegralInRange<int>(0, 15)) {  // one that is not right
    case 0:
      ++life.job_epoch;
      break;
    case 1:
      life.rank = input.ConsumeIntegral<std::uint32_t>();
      break;
    case 2:
      ++life.rank_epoch;
      break;
    default:
      break;
  }
  return life;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  fuzz::CheckedRegistry registry(input.PickValueInArray<std::uint32_t>({0, 0, 0, 2}));
  while (input.remaining_bytes() > 0) {
    const int action = input.ConsumeIntegralInRange<int>(0, 15);
    registry.fail_starts(input.ConsumeIntegralInRange<int>(0, 15) == 0);
    if (action < 6 || registry.tickets.empty()) {
      registry.join(any_request(input, registry));
    } else if (action < 9) {
      registry.poll(input.ConsumeIntegral<std::uint8_t>() % registry.tickets.size());
    } else if (action < 10) {
      registry.cancel(input.ConsumeIntegral<std::uint8_t>() % registry.tickets.size());
    } else if (action < 12) {
      registry.heartbeat(life_of(input, registry));
    } else if (action < 14) {
      registry.leave(life_of(input, registry));
    } else if (action < 15 || input.ConsumeIntegralInRange<int>(0, 7) != 0) {
      registry.tick(std::chrono::milliseconds(input.ConsumeIntegral<std::uint16_t>()));
    } else {
      registry.shut_down();
    }
  }
  registry.end();
  return 0;
}
