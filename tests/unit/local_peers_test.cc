// An aggregator's local socket, between ranks and whoever else is on the host: what it holds is bounded, and so is the time.
#include "daemon/local_peers.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/shared_segment.h"
#include "transport/local/shared_memory.h"

namespace netsum::daemon {
namespace {

using namespace std::chrono_literals;
using transport::Descriptor;
using transport::LocalOutcome;
using transport::OwnMemory;

constexpr uid_t somebody = 4711, somebody_else = 4712;

class LocalPeersTest : public ::testing::Test {
 protected:
  // The rank's end.
  std::shared_ptr<Descriptor> connect(uid_t user = somebody) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    peers_.add({std::make_shared<Descriptor>(ends[0]), user}, now_);
    return std::make_shared<Descriptor>(ends[1]);
  }

  void serve() {
    std::vector<pollfd> descriptors;
    peers_.poll_for(descriptors);
    ::poll(descriptors.data(), descriptors.size(), 0);
    peers_.serve(descriptors, now_);
  }

  static LocalOutcome send(const Descriptor& socket, transport::LocalType type, const Descriptor* attached,
                           std::uint64_t arena = 0) {
    transport::LocalMessage message;
    message.type = type;
    message.arena = arena;
    return transport::send_local(socket, message.bytes(), attached);
  }

  std::shared_ptr<Descriptor> attached_;
  LocalOutcome receive(const Descriptor& socket, transport::LocalMessage& message) {
    return transport::receive_local(socket, message.writable(), attached_);
  }
  bool ended(const Descriptor& socket) {
    transport::LocalMessage message;
    return receive(socket, message) == LocalOutcome::closed;
  }

  std::uint64_t say_hello(const Descriptor& socket) {
    EXPECT_EQ(send(socket, transport::LocalType::hello, segment_.descriptor().get()), LocalOutcome::done);
    serve();
    transport::LocalMessage answer;
    EXPECT_EQ(receive(socket, answer), LocalOutcome::done);
    EXPECT_EQ(answer.type, transport::LocalType::ticket);
    return answer.ticket;
  }

  // A job's ranks, who have each other's segments.
  std::vector<std::shared_ptr<Descriptor>> start_job(std::uint64_t epoch, std::uint32_t ranks) {
    std::vector<std::shared_ptr<Descriptor>> sockets;
    std::vector<std::uint64_t> tickets;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      sockets.push_back(connect());
      tickets.push_back(say_hello(*sockets.back()));
    }
    peers_.start_job(epoch, tickets);
    serve();
    for (const auto& socket : sockets) {
      for (std::uint32_t other = 1; other < ranks; ++other) {
        transport::LocalMessage member;
        EXPECT_EQ(receive(*socket, member), LocalOutcome::done);
        EXPECT_EQ(member.type, transport::LocalType::member);
        EXPECT_EQ(member.job_epoch, epoch);
        EXPECT_TRUE(attached_);
      }
    }
    return sockets;
  }

  OwnMemory segment_{"test", sizeof(runtime::SharedSegment)};
  Time now_{};
  std::vector<std::uint32_t> lost_;
  LocalPeers peers_{8, [this](std::uint64_t, std::uint32_t rank) { lost_.push_back(rank); }};
};

TEST_F(LocalPeersTest, WhoSaysNothingIsSentAway) {
  const auto silent = connect();
  serve();
  EXPECT_EQ(peers_.most_wait_ms(now_), 5000);
  const auto waiting = connect();
  static_cast<void>(say_hello(*waiting));
  now_ += LocalPeers::hello_patience - 1ms;
  serve();
  EXPECT_FALSE(ended(*silent));
  EXPECT_EQ(peers_.most_wait_ms(now_), 1);
  now_ += 1ms;
  serve();
  EXPECT_TRUE(ended(*silent));
  now_ += 1h;
  serve();
  EXPECT_FALSE(ended(*waiting)) << "it waits for its job, however long that takes";
  EXPECT_EQ(peers_.most_wait_ms(now_), -1);
}

TEST_F(LocalPeersTest, WhoSaysWhatNoRankSaysIsSentAway) {
  const Descriptor loose(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(loose.number(), sizeof(runtime::SharedSegment)), 0);
  const OwnMemory short_one("test", sizeof(runtime::SharedSegment) - 1);
  const struct {
    transport::LocalType type;
    const Descriptor* attached;
  } wrong[] = {{transport::LocalType::hello, nullptr},
               {transport::LocalType::hello, &loose},
               {transport::LocalType::hello, short_one.descriptor().get()},
               {transport::LocalType::ticket, nullptr},
               {transport::LocalType::member, &loose},
               {transport::LocalType::arena, segment_.descriptor().get()},
               {transport::LocalType::arena_gone, nullptr}};
  for (const auto& each : wrong) {
    const auto socket = connect();
    EXPECT_EQ(send(*socket, each.type, each.attached), LocalOutcome::done);
    serve();
    EXPECT_TRUE(ended(*socket)) << static_cast<int>(each.type);
  }
  EXPECT_TRUE(lost_.empty());
  EXPECT_TRUE(peers_.has_room());
}

TEST_F(LocalPeersTest, AUserHasHalfOfThePlacesAndTheOwnerAll) {
  std::vector<std::shared_ptr<Descriptor>> sockets;
  const auto connected = [&](uid_t user, int count) {
    int stayed = 0;
    for (int i = 0; i < count; ++i) {
      sockets.push_back(connect(user));
      stayed += ended(*sockets.back()) ? 0 : 1;
    }
    return stayed;
  };
  EXPECT_EQ(connected(somebody, 6), 4);
  EXPECT_TRUE(peers_.has_room());
  EXPECT_EQ(connected(somebody_else, 1), 1);
  EXPECT_EQ(connected(::geteuid(), 6), 3);
  EXPECT_FALSE(peers_.has_room());
  sockets.clear();
  serve();
  EXPECT_EQ(connected(::geteuid(), 10), 8);
}

TEST_F(LocalPeersTest, RanksOfAJobAreLostOnceAndNotAtItsEnd) {
  auto ranks = start_job(7, 3);
  EXPECT_TRUE(peers_.has_room());
  ranks[1].reset();
  serve();
  serve();
  EXPECT_EQ(lost_, std::vector<std::uint32_t>{1});
  peers_.stop_job(7);
  serve();
  EXPECT_TRUE(ended(*ranks[0]) && ended(*ranks[2]));
  EXPECT_EQ(lost_.size(), 1U);
}

TEST_F(LocalPeersTest, AJobWithAWrongTicketIsForNobody) {
  const auto one = connect();
  const std::uint64_t ticket = say_hello(*one);
  peers_.start_job(7, {ticket, ticket});
  serve();
  EXPECT_TRUE(ended(*one));
}

// The aggregator keeps descriptors for a rank that takes none; not any number.
TEST_F(LocalPeersTest, ARankThatTakesNothingIsLostBeforeDescriptorsAre) {
  const auto ranks = start_job(7, 2);
  const Descriptor first(::dup(STDERR_FILENO));
  for (int i = 0; i < 2000 && lost_.empty(); ++i) {
    if (send(*ranks[0], transport::LocalType::arena, segment_.descriptor().get(), 1) != LocalOutcome::done) break;
    serve();
    if (lost_.empty() && send(*ranks[0], transport::LocalType::arena_gone, nullptr, 1) != LocalOutcome::done) break;
    serve();
  }
  ASSERT_EQ(lost_, std::vector<std::uint32_t>{1});
  const Descriptor last(::dup(STDERR_FILENO));
  EXPECT_LT(last.number() - first.number(), 16);
}

}  // namespace
}  // namespace netsum::daemon
