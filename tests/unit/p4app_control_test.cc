// p4app's control service: its messages byte by byte, the order of calls, and both ends of gRPC in memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "p4app/controller.h"
#include "p4app/grpc.h"
#include "p4app/messages.h"

namespace netsum::p4app {
namespace {

using Strings = std::vector<std::string>;

TEST(P4appMessages, HaveTheirFieldsNumbers) {
  const UdpSessionRequest request{300, 1, 2, {0x0a0b, 5}, 3};
  const std::string bytes("\x08\xac\x02\x10\x01\x18\x02\x20\x8b\x14\x28\x05\x38\x03", 14);
  EXPECT_EQ(to_bytes(request), bytes);
  const auto read = from_bytes<UdpSessionRequest>(bytes);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->session, 300u);
  EXPECT_EQ(read->station.mac, 0x0a0bu);
  EXPECT_EQ(read->packet_size, 3u);
  // Zeros are left out by others.
  EXPECT_EQ(from_bytes<BroadcastRequest>("")->workers, 0u);
  EXPECT_FALSE(from_bytes<BarrierRequest>("\x08"));
  EXPECT_EQ(to_bytes(BarrierResponse()), "");
}

class P4appController : public ::testing::Test {
 protected:
  // "CALL:value", "CALL!text" of errors.
  Strings answers() {
    Strings texts;
    for (const auto& each : controller_.take_answers()) {
      const std::string call = std::to_string(each.call);
      if (each.status != GrpcStatus::ok) {
        texts.push_back(call + "!" + each.bytes);
      } else {
        const auto value = from_bytes<BroadcastResponse>(each.bytes);  // a session's number has the same field
        texts.push_back(call + ":" + std::to_string(value ? value->value : 0));
      }
    }
    return texts;
  }
  Strings barrier(Controller::Call call, std::uint32_t workers) {
    controller_.on_call(call, barrier_path, to_bytes(BarrierRequest{workers}));
    return answers();
  }
  Strings broadcast(Controller::Call call, std::uint32_t rank, std::uint64_t value) {
    controller_.on_call(call, broadcast_path, to_bytes(BroadcastRequest{value, rank, 2, 0}));
    return answers();
  }
  Strings session(Controller::Call call, std::uint64_t number, std::uint32_t rank, std::uint32_t ipv4,
                  std::uint64_t size = 3, std::uint32_t workers = 2) {
    controller_.on_call(call, udp_session_path, to_bytes(UdpSessionRequest{number, rank, workers, {7, ipv4}, size}));
    return answers();
  }

  Strings told_;
  Controller controller_{
      {0x020000000001, 0x0a000001},
      {[this](std::uint64_t number, std::uint32_t workers, std::uint32_t elements) {
         told_.push_back("begin " + std::to_string(number) + " " + std::to_string(workers) + " " + std::to_string(elements));
       },
       [this](std::uint32_t rank, const Station& station) {
         told_.push_back("worker " + std::to_string(rank) + " " + std::to_string(station.ipv4));
       }}};
};

TEST_F(P4appController, BeginsASessionInTheOrderOfTheirClients) {
  EXPECT_EQ(broadcast(1, 1, 0), Strings{});
  EXPECT_EQ(broadcast(2, 0, 42), (Strings{"1:42", "2:42"}));
  EXPECT_EQ(session(3, 42, 0, 10), Strings{"3:42"});
  EXPECT_EQ(barrier(4, 2), Strings{});
  EXPECT_EQ(barrier(5, 2), (Strings{"4:0", "5:0"}));
  EXPECT_EQ(session(6, 42, 1, 11), Strings{"6:42"});
  EXPECT_EQ(told_, (Strings{"begin 42 2 256", "worker 0 10", "worker 1 11"}));
}

TEST_F(P4appController, TellsTheSwitchsStation) {
  controller_.on_call(1, udp_session_path, to_bytes(UdpSessionRequest{9, 0, 1, {7, 8}, 1}));
  const auto all = controller_.take_answers();
  ASSERT_EQ(all.size(), 1u);
  const auto response = from_bytes<UdpSessionResponse>(all[0].bytes);
  ASSERT_TRUE(response);
  EXPECT_EQ(response->station.mac, 0x020000000001u);
  EXPECT_EQ(response->station.ipv4, 0x0a000001u);
}

TEST_F(P4appController, RefusesWhatTheSwitchCouldNotSum) {
  EXPECT_EQ(session(1, 42, 1, 10), Strings{"1!rank 0 has not begun this session"});
  EXPECT_EQ(session(2, 42, 0, 10, 0), Strings{"2!packet_size is neither 1 nor 3: packets have 64 or 256 elements"});
  EXPECT_EQ(session(3, 42, 2, 10), Strings{"3!rank is not below num_workers"});
  EXPECT_EQ(session(4, 42, 0, 10, 3, 33), Strings{"4!num_workers is not from 1 to 32"});
  EXPECT_EQ(session(5, 42, 0, 10), Strings{"5:42"});
  EXPECT_EQ(session(6, 42, 1, 10), Strings{"6!another rank has this ipv4, and packets show nothing else of their worker"});
  EXPECT_EQ(session(7, 42, 1, 11, 1), Strings{"7!packet_size differs from rank 0's"});
  EXPECT_EQ(session(8, 42, 1, 11, 3, 3), Strings{"8!num_workers differs from rank 0's"});
  EXPECT_EQ(session(9, 41, 1, 11), Strings{"9!rank 0 has not begun this session"});
  controller_.on_call(10, rdma_session_path, "");
  EXPECT_EQ(controller_.take_answers().at(0).status, GrpcStatus::unimplemented);
  EXPECT_EQ(session(11, 42, 1, 11), Strings{"11:42"});
  EXPECT_EQ(session(12, 42, 1, 11), Strings{"12:42"});
  EXPECT_EQ(session(13, 42, 1, 12), Strings{"13!this rank has another ipv4 in this session: rank 0 begins a new one"});
  EXPECT_EQ(told_, (Strings{"begin 42 2 256", "worker 0 10", "worker 1 11", "worker 1 11"}));
}

TEST_F(P4appController, ForgetsWhoHasGone) {
  EXPECT_EQ(barrier(1, 2), Strings{});
  controller_.on_gone(1);
  EXPECT_EQ(barrier(2, 2), Strings{});
  EXPECT_EQ(barrier(3, 2), (Strings{"2:0", "3:0"}));
  EXPECT_EQ(broadcast(4, 1, 0), Strings{});
  controller_.on_gone(4);
  EXPECT_EQ(broadcast(5, 1, 0), Strings{});  // the same rank's process, again
  EXPECT_EQ(broadcast(6, 0, 7), (Strings{"5:7", "6:7"}));
}

TEST_F(P4appController, ARootThatBeginsAgainLeavesNothingOfTheFormerJob) {
  EXPECT_EQ(broadcast(1, 0, 7), Strings{"1:7"});  // and rank 1 never came
  EXPECT_EQ(broadcast(2, 0, 8), Strings{"2:8"});
  EXPECT_EQ(broadcast(3, 1, 0), Strings{"3:8"});
}

// Bytes both ways, in pieces of one to `piece` bytes.
void exchange(GrpcEnd& one, GrpcEnd& other, std::size_t piece) {
  for (bool more = true; more;) {
    more = false;
    for (auto [from, to] : {std::pair(&one, &other), std::pair(&other, &one)}) {
      const std::string bytes = from->take_output();
      for (std::size_t at = 0; at < bytes.size(); at += piece)
        ASSERT_TRUE(to->receive(std::string_view(bytes).substr(at, piece)));
      more = more || !bytes.empty();
    }
  }
}

class P4appGrpc : public ::testing::TestWithParam<std::size_t> {};

TEST_P(P4appGrpc, CarriesCallsAndAnswers) {
  GrpcServerEnd server;
  GrpcClientEnd client("10.0.0.1:50099");
  for (int round = 0; round < 3; ++round) {
    const std::string message(static_cast<std::size_t>(round) * 100, 'x');
    client.call(barrier_path, message);
    exchange(client, server, GetParam());
    const auto calls = server.take_calls();
    ASSERT_EQ(calls.size(), 1u);
    EXPECT_EQ(calls[0].path, barrier_path);
    EXPECT_EQ(calls[0].payload, message);
    EXPECT_FALSE(client.take_result());
    server.answer(calls[0].stream, GrpcStatus::ok, message + "y");
    exchange(client, server, GetParam());
    const auto result = client.take_result();
    ASSERT_TRUE(result);
    EXPECT_TRUE(result->ok);
    EXPECT_EQ(result->bytes, message + "y");
    EXPECT_EQ(server.take_gone(), std::vector<std::int32_t>{calls[0].stream});
  }
}

TEST_P(P4appGrpc, CarriesErrors) {
  GrpcServerEnd server;
  GrpcClientEnd client("10.0.0.1:50099");
  client.call("/nothing", "");
  exchange(client, server, GetParam());
  const auto calls = server.take_calls();
  ASSERT_EQ(calls.size(), 1u);
  server.answer(calls[0].stream, GrpcStatus::unimplemented, "there is no such call");
  exchange(client, server, GetParam());
  const auto result = client.take_result();
  ASSERT_TRUE(result);
  EXPECT_FALSE(result->ok);
  EXPECT_EQ(result->bytes, "there is no such call");
}

TEST_P(P4appGrpc, RefusesALongMessage) {
  GrpcServerEnd server;
  GrpcClientEnd client("10.0.0.1:50099");
  client.call(barrier_path, std::string(longest_grpc_message + 1, 'x'));
  exchange(client, server, GetParam());
  EXPECT_TRUE(server.take_calls().empty());
  const auto result = client.take_result();
  ASSERT_TRUE(result);
  EXPECT_FALSE(result->ok);
}

INSTANTIATE_TEST_SUITE_P(InPieces, P4appGrpc, ::testing::Values(1, 7, 100'000));

TEST(P4appGrpcServer, EndsWhatIsNoHttp2) {
  GrpcServerEnd server;
  EXPECT_FALSE(server.receive("GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
}

}  // namespace
}  // namespace netsum::p4app
