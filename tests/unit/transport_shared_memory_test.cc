// Memory that others may read: nobody but its maker can write it, or make it shorter under a reader.
#include "transport/local/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <optional>
#include <vector>

#include "netsum/error.h"
#include "transport/local/local_socket.h"

namespace netsum::transport {
namespace {

TEST(SharedMemory, IsWrittenByItsMakerAlone) {
  const OwnMemory own("test", 10'000);
  const int number = own.descriptor()->number();
  EXPECT_EQ(::mmap(nullptr, 10'000, PROT_READ | PROT_WRITE, MAP_SHARED, number, 0), MAP_FAILED);
  const std::string path = "/proc/self/fd/" + std::to_string(number);
  const Descriptor again(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_EQ(::mmap(nullptr, 10'000, PROT_READ | PROT_WRITE, MAP_SHARED, again.number(), 0), MAP_FAILED);
  EXPECT_LT(::pwrite(number, "x", 1, 0), 0);
  EXPECT_NE(::ftruncate(number, 0), 0);
  EXPECT_NE(::ftruncate(number, 20'000), 0);

  const PeerMemory peer(*own.descriptor(), 10'000);
  ASSERT_EQ(peer.bytes().size(), 10'000U);
  own.bytes()[9'999] = std::byte{7};
  EXPECT_EQ(peer.bytes()[9'999], std::byte{7});
  EXPECT_NE(::mprotect(const_cast<std::byte*>(peer.bytes().data()), 10'000, PROT_READ | PROT_WRITE), 0);
}

void expect_refused(const Descriptor& descriptor, std::size_t least) {
  try {
    const PeerMemory peer(descriptor, least);
    FAIL() << "it was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::refused);
  }
}

TEST(SharedMemory, ThatIsNotSealedOrTooShortIsRefused) {
  const Descriptor loose(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(loose.number(), 4096), 0);
  expect_refused(loose, 4096);
  ASSERT_EQ(::fcntl(loose.number(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  expect_refused(loose, 4096);
  const OwnMemory own("test", 4096);
  expect_refused(*own.descriptor(), 4097);
  expect_refused(Descriptor(::open("/dev/zero", O_RDONLY | O_CLOEXEC)), 1);
}

TEST(SharedMemory, OfManyIsWrittenByAllAndKeepsItsLength) {
  const CommonMemory made("test", 10'000);
  const CommonMemory also(made.descriptor(), 10'000);
  also.bytes()[9'999] = std::byte{7};
  EXPECT_EQ(made.bytes()[9'999], std::byte{7});
  EXPECT_NE(::ftruncate(also.descriptor()->number(), 0), 0);
  EXPECT_NE(::ftruncate(also.descriptor()->number(), 20'000), 0);
  // A lock of one is not the other's, though it came from its descriptor.
  struct flock lock {};
  lock.l_type = F_WRLCK;
  auto locked = made.opened_again();
  ASSERT_EQ(::fcntl(locked->number(), F_OFD_SETLK, &lock), 0);
  EXPECT_NE(::fcntl(also.opened_again()->number(), F_OFD_SETLK, &lock), 0);
  locked.reset();
  EXPECT_EQ(::fcntl(also.opened_again()->number(), F_OFD_SETLK, &lock), 0);

  const auto loose = std::make_shared<Descriptor>(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(loose->number(), 10'000), 0);
  EXPECT_THROW(CommonMemory(loose, 10'000), Error);
  EXPECT_THROW(CommonMemory(made.descriptor(), 9'999), Error);
  EXPECT_THROW(CommonMemory(std::make_shared<Descriptor>(::open("/dev/zero", O_RDWR | O_CLOEXEC)), 4096), Error);
}

void connect(LocalListener& listener, const std::string& name, std::shared_ptr<Descriptor>& client,
             std::shared_ptr<Descriptor>& server) {
  ASSERT_EQ(connect_local(name, client), LocalOutcome::done);
  auto peers = listener.accept();
  ASSERT_EQ(peers.size(), 1U);
  EXPECT_EQ(peers.front().user, ::geteuid());
  server = std::move(peers.front().socket);
}

// ---- a child of fork()

// The body's value in a child: its exit code.
int in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(SharedMemory, WhatAChildWritesReachesNobody) {
  constexpr std::size_t bytes = 10'000;
  OwnMemory own("test", bytes);
  const PeerMemory peer(*own.descriptor(), bytes);
  own.close_descriptor();
  own.bytes()[0] = own.bytes()[bytes - 1] = std::byte{5};
  const auto write = [&](std::uint8_t value) {
    const bool as_it_was = own.bytes()[0] == std::byte{value} && own.bytes()[bytes - 1] == std::byte{value};
    own.bytes()[0] = own.bytes()[bytes - 1] = static_cast<std::byte>(value + 1);
    return as_it_was && own.bytes()[0] == static_cast<std::byte>(value + 1);
  };
  EXPECT_EQ(in_child([&] {
              if (!write(5)) return 1;
              return in_child([&] { return write(6) ? 0 : 2; });  // nor what its own child writes
            }),
            0);
  EXPECT_EQ(peer.bytes()[0], std::byte{5});
  EXPECT_EQ(peer.bytes()[bytes - 1], std::byte{5});
  own.bytes()[0] = std::byte{8};
  EXPECT_EQ(peer.bytes()[0], std::byte{8}) << "its maker writes on";
}

TEST(LocalSocket, EndsWithItsProcessThoughAChildLives) {
  const std::string name = "netsum-unit-fork-" + std::to_string(::getpid());
  auto listener = std::make_optional<LocalListener>(name, false);
  std::shared_ptr<Descriptor> client, server;
  connect(*listener, name, client, server);
  int forked[2];
  ASSERT_EQ(::pipe2(forked, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::write(forked[1], "x", 1) != 1) ::_exit(1);
    while (true) ::pause();
  }
  char started = 0;
  EXPECT_EQ(::read(forked[0], &started, 1), 1);
  ::close(forked[0]);
  ::close(forked[1]);
  client.reset();
  std::byte message[8];
  std::shared_ptr<Descriptor> attached;
  pollfd ended{server->number(), POLLIN, 0};
  EXPECT_EQ(::poll(&ended, 1, 10'000), 1);
  EXPECT_EQ(receive_local(*server, message, attached), LocalOutcome::closed);
  listener.reset();
  EXPECT_EQ(connect_local(name, client), LocalOutcome::closed) << "nobody would ever take it";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(LocalSocket, CarriesMessagesWithDescriptors) {
  const std::string name = "netsum-unit-" + std::to_string(::getpid());
  std::shared_ptr<Descriptor> client, server;
  EXPECT_EQ(connect_local(name, client), LocalOutcome::closed);
  LocalListener listener(name, false);
  EXPECT_TRUE(listener.accept().empty());
  EXPECT_THROW(LocalListener(name, false), Error) << "a name is one listener's";
  connect(listener, name, client, server);

  const OwnMemory own("test", 4096);
  own.bytes()[0] = std::byte{5};
  std::byte message[8] = {std::byte{1}};
  EXPECT_EQ(send_local(*client, message, own.descriptor().get()), LocalOutcome::done);
  EXPECT_EQ(send_local(*client, message), LocalOutcome::done);
  std::byte received[8] = {};
  std::shared_ptr<Descriptor> attached;
  ASSERT_EQ(receive_local(*server, received, attached), LocalOutcome::done);
  EXPECT_EQ(received[0], std::byte{1});
  ASSERT_TRUE(attached);
  EXPECT_EQ(PeerMemory(*attached, 4096).bytes()[0], std::byte{5});
  ASSERT_EQ(receive_local(*server, received, attached), LocalOutcome::done);
  EXPECT_FALSE(attached);
  EXPECT_EQ(receive_local(*server, received, attached), LocalOutcome::later);

  EXPECT_EQ(send_local(*client, std::span(message).first(4)), LocalOutcome::done);
  EXPECT_EQ(receive_local(*server, received, attached), LocalOutcome::closed) << "of another length";
}

int lowest_free_descriptor() {
  return Descriptor(::dup(STDERR_FILENO)).number();
}

// As a hostile peer would: any number of descriptors, with any number of bytes.
void send_descriptors(const Descriptor& socket, std::size_t descriptors, std::size_t bytes) {
  alignas(cmsghdr) std::byte room[CMSG_SPACE(4 * sizeof(int))] = {};
  std::byte text[64] = {};
  iovec part{text, bytes};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = room;
  header.msg_controllen = CMSG_SPACE(descriptors * sizeof(int));
  cmsghdr* const rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(descriptors * sizeof(int));
  const int numbers[4] = {STDERR_FILENO, STDERR_FILENO, STDERR_FILENO, STDERR_FILENO};
  std::memcpy(CMSG_DATA(rights), numbers, descriptors * sizeof(int));
  ASSERT_EQ(::sendmsg(socket.number(), &header, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
}

TEST(LocalSocket, KeepsNoDescriptorThatItDoesNotHandOver) {
  const std::string name = "netsum-unit-rights-" + std::to_string(::getpid());
  LocalListener listener(name, false);
  std::shared_ptr<Descriptor> client, server;
  connect(listener, name, client, server);
  const int lowest = lowest_free_descriptor();
  for (const std::size_t bytes : {0U, 8U, 9U}) {
    for (const std::size_t descriptors : {1U, 2U, 4U}) {
      send_descriptors(*client, descriptors, bytes);
      std::byte message[8];
      std::shared_ptr<Descriptor> attached;
      EXPECT_EQ(receive_local(*server, message, attached), bytes == 8 ? LocalOutcome::done : LocalOutcome::closed);
      EXPECT_EQ(attached != nullptr, descriptors == 1 && bytes == 8);
      attached.reset();
      EXPECT_EQ(lowest_free_descriptor(), lowest) << descriptors << " descriptors with " << bytes << " bytes";
    }
  }
}

TEST(LocalSocket, KnowsWhoIsAtItsOtherEnd) {
  const std::string name = "netsum-unit-user-" + std::to_string(::getpid());
  LocalListener listener(name, false);
  std::shared_ptr<Descriptor> client, server;
  connect(listener, name, client, server);
  EXPECT_EQ(user_of(*client), ::geteuid());
  EXPECT_EQ(user_of(*server), ::geteuid());
  EXPECT_FALSE(user_of(Descriptor()));
}

// Connects as another user, so often; what became of each.
int connections_ended(const std::string& name, uid_t user, int count, LocalListener& listener, std::size_t& let_in) {
  int pipe[2];
  EXPECT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresuid(user, user, user) != 0) ::_exit(100);
    std::vector<std::shared_ptr<Descriptor>> sockets(static_cast<std::size_t>(count));
    for (auto& socket : sockets) static_cast<void>(connect_local(name, socket));
    if (::write(pipe[1], "x", 1) != 1) ::_exit(101);
    int ended = 0;
    for (auto& socket : sockets) {
      pollfd end{socket->number(), POLLIN, 0};
      if (::poll(&end, 1, 10'000) == 1 && (end.revents & POLLHUP) != 0) ++ended;
    }
    ::_exit(ended);
  }
  char ready = 0;
  EXPECT_EQ(::read(pipe[0], &ready, 1), 1);
  ::close(pipe[0]);
  ::close(pipe[1]);
  for (int turn = 0; turn < 20; ++turn) {
    const auto peers = listener.accept();
    for (const LocalPeer& peer : peers) EXPECT_EQ(peer.user, user);
    let_in += peers.size();
    if (turn == 0 && let_in == 0) {
      EXPECT_EQ(listener.poll_for().fd, -1) << "it rests after strangers";
      EXPECT_GT(listener.most_wait_ms(), 0);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(LocalSocket, LetsInWhomItMayAndRestsFromOthers) {
  if (::geteuid() != 0) GTEST_SKIP() << "no right to be another user";
  const std::string name = "netsum-unit-users-" + std::to_string(::getpid());
  LocalListener listener(name, true, {4711});
  std::size_t let_in = 0;
  EXPECT_EQ(connections_ended(name, 4712, 50, listener, let_in), 50);
  EXPECT_EQ(let_in, 0U);
  EXPECT_EQ(connections_ended(name, 4711, 3, listener, let_in), 3);  // let go of by this test
  EXPECT_EQ(let_in, 3U);
}

// What makes accept() fail while somebody waits is no reason to try again at once.
TEST(LocalSocket, RestsWhenThereIsNoDescriptorLeft) {
  const std::string name = "netsum-unit-full-" + std::to_string(::getpid());
  LocalListener listener(name, false);
  std::shared_ptr<Descriptor> client;
  ASSERT_EQ(connect_local(name, client), LocalOutcome::done);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit full{static_cast<rlim_t>(lowest_free_descriptor()), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &full), 0);
  const bool none = listener.accept().empty();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(none);
  EXPECT_EQ(listener.poll_for().fd, -1);
  EXPECT_GT(listener.most_wait_ms(), 0);
  EXPECT_EQ(listener.accept().size(), 1U);
  EXPECT_EQ(listener.most_wait_ms(), -1);
}

TEST(LocalSocket, ANameThatDoesNotFitIsNoOthersName) {
  const std::string name = "netsum-unit-" + std::string(200, 'x');
  EXPECT_THROW(LocalListener(name, false), Error);
  std::shared_ptr<Descriptor> socket;
  EXPECT_EQ(connect_local(name, socket), LocalOutcome::closed);
}

}  // namespace
}  // namespace netsum::transport
