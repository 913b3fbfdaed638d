// Any bytes as a connection to p4app's control service, and any messages as its calls: the controller answers or keeps each
// call once, and keeps no call that is gone.
#include <fuzzer/FuzzedDataProvider.h>

#include <set>
#include <string>

#include "fuzz/harness.h"
#include "p4app/controller.h"
#include "p4app/grpc.h"
#include "wire/p4app.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function

struct World {
  World() : controller({0x020000000001, 0x0a000001}, hooks()) {}

  p4app::Controller::Hooks hooks() {
    p4app::Controller::Hooks h;
    h.begin = [this](std::uint64_t, std::uint32_t count, std::uint32_t elements) {
      fuzz::check(count >= 1 && count <= wire::p4app::max_workers && (elements == 64 || elements == 256),
                  "a session is sound");
      workers = count;
    };
    h.worker = [this](std::uint32_t rank, const p4app::Station&) {
      fuzz::check(rank < workers, "a worker is of the session");
    };
    return h;
  }

  void call(std::string_view path, const std::string& payload) {
    waiting.insert(++last);
    controller.on_call(last, path, payload);
    settle();
  }
  void settle() {
    for (const auto& answer : controller.take_answers())
      fuzz::check(waiting.erase(answer.call) == 1, "a call is answered once");
  }

  std::uint32_t workers = 0;
  p4app::Controller controller;
  p4app::Controller::Call last = 0;
  std::set<p4app::Controller::Call> waiting;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  World world;
  if (input.ConsumeBool()) {
    p4app::GrpcServerEnd end;
    // Else few inputs would come past the preface.
    if (input.ConsumeBool()) static_cast<void>(end.receive("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"));
    while (input.remaining_bytes() > 0) {
      if (!end.receive(input.ConsumeRandomLengthString(600))) break;
      for (const auto& call : end.take_calls()) {
        fuzz::check(call.payload.size() <= p4app::longest_grpc_message, "messages are bounded");
        world.call(call.path, call.payload);
        end.answer(call.stream, p4app::GrpcStatus::ok, "");
      }
      static_cast<void>(end.take_output());
    }
    return 0;
  }
  const auto small = [&] { return input.ConsumeIntegralInRange<std::uint32_t>(0, 4); };
  while (input.remaining_bytes() > 0) {
    switch (input.ConsumeIntegralInRange<int>(0, 5)) {
      case 0:
        world.call(p4app::barrier_path, to_bytes(p4app::BarrierRequest{small()}));
        break;
      case 1:
        world.call(p4app::broadcast_path, to_bytes(p4app::BroadcastRequest{small(), small(), small(), small()}));
        break;
      case 2:
        world.call(p4app::udp_session_path,
                   to_bytes(p4app::UdpSessionRequest{small(), small(), small(), {small(), small()}, small()}));
        break;
      case 3:
        world.call(input.PickValueInArray(
                       {p4app::barrier_path, p4app::broadcast_path, p4app::udp_session_path, p4app::rdma_session_path}),
                   input.ConsumeRandomLengthString(40));
        break;
      default:
        if (world.waiting.empty()) break;
        world.controller.on_gone(*world.waiting.begin());
        world.waiting.erase(world.waiting.begin());
        world.settle();
    }
  }
  return 0;
}
