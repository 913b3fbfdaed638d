// Memory that others may read: nobody but its maker can write it, or make it shorter under a reader.
#include "transport/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "netsum/error.h"
#include "transport/local_socket.h"

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

TEST(LocalSocket, CarriesMessagesWithDescriptors) {
  const std::string name = "netsum-unit-" + std::to_string(::getpid());
  EXPECT_FALSE(connect_local(name));
  const auto listener = listen_local(name);
  EXPECT_FALSE(accept_local(*listener));
  const auto client = connect_local(name);
  ASSERT_TRUE(client);
  const auto server = accept_local(*listener);
  ASSERT_TRUE(server);

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

}  // namespace
}  // namespace netsum::transport
