// Whose an AF_XDP socket's frames are: this test is the kernel at the other ends of the rings.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include "transport/bypass/xdp_frames.h"

namespace netsum::transport {
namespace {

constexpr std::uint32_t frames = 8;  // each way
constexpr std::size_t frame_bytes = 2048;

// A ring with both counters at the same value: rings are as old as their sockets, and the counters wrap.
template <class Ring, class Entry>
struct Shared {
  Shared(Ring& ring, std::uint32_t begin, bool written_here) : producer(begin), consumer(begin) {
    ring.cached_prod = begin;
    ring.cached_cons = written_here ? begin + frames : begin;  // as libxdp begins
    ring.mask = frames - 1;
    ring.size = frames;
    ring.producer = &producer;
    ring.consumer = &consumer;
    ring.ring = entries.data();
    ring.flags = &flags;
  }
  [[nodiscard]] std::uint32_t count() const { return producer - consumer; }
  [[nodiscard]] Entry& at(std::uint32_t number) { return entries[number % frames]; }

  std::uint32_t producer, consumer, flags = 0;
  std::array<Entry, frames> entries{};
};

class Frames : public testing::TestWithParam<std::uint32_t> {
 protected:
  // The kernel receives a frame of that many bytes, if it has one to receive into.
  bool arrive(std::uint32_t bytes, std::byte content) {
    if (fill.count() == 0) return false;
    const std::uint64_t address = fill.at(fill.consumer++);
    EXPECT_EQ(address % frame_bytes, 0U);
    EXPECT_EQ(kernels.erase(address), 1U) << "not given to the kernel";
    std::fill_n(memory.begin() + static_cast<std::ptrdiff_t>(address) + 256, bytes, content);
    received.at(received.producer++) = {address + 256, bytes, 0};
    return true;
  }
  // What the kernel got back since the last time is its own.
  void note_given() {
    for (std::uint32_t i = seen; i != fill.producer; ++i) EXPECT_TRUE(kernels.insert(fill.at(i)).second) << "given twice";
    seen = fill.producer;
  }
  // The kernel sends the oldest frame; its content.
  std::vector<std::byte> leave() {
    const xdp_desc& frame = transmit.at(transmit.consumer++);
    EXPECT_TRUE(sending.insert(frame.addr).second) << "already being sent";
    const auto begin = memory.begin() + static_cast<std::ptrdiff_t>(frame.addr);
    return {begin, begin + frame.len};
  }
  void complete(std::uint64_t address) {
    sending.erase(address);
    completed.at(completed.producer++) = address;
  }

  XdpRings rings;
  std::vector<std::byte> memory = std::vector<std::byte>(2 * frames * frame_bytes);
  std::uint32_t seen = GetParam();
  Shared<xsk_ring_prod, std::uint64_t> fill{rings.fill, GetParam(), true};
  Shared<xsk_ring_prod, xdp_desc> transmit{rings.transmit, GetParam(), true};
  Shared<xsk_ring_cons, xdp_desc> received{rings.received, GetParam(), false};
  Shared<xsk_ring_cons, std::uint64_t> completed{rings.completed, GetParam(), false};
  XdpFrames ours{rings, memory, frame_bytes};
  std::set<std::uint64_t> kernels, sending;
};

TEST_P(Frames, AllForReceivingAreTheKernelsAtFirst) {
  note_given();
  EXPECT_EQ(kernels.size(), frames);
  EXPECT_EQ(*kernels.rbegin(), (frames - 1) * frame_bytes);
  EXPECT_TRUE(ours.take().empty());
  EXPECT_EQ(ours.places(), frames);
  EXPECT_EQ(ours.outgoing(), 0U);
}

TEST_P(Frames, ReceivedOnesGoBackWithTheNextTake) {
  for (std::uint32_t round = 0; round < 5 * frames; ++round) {
    note_given();
    const std::uint32_t count = round % frames + 1;
    for (std::uint32_t i = 0; i < count; ++i) EXPECT_TRUE(arrive(100 + i, std::byte(round + i)));
    EXPECT_EQ(ours.waiting(), count);
    const std::span<const iovec> taken = ours.take();
    ASSERT_EQ(taken.size(), count);
    EXPECT_EQ(ours.waiting(), 0U);
    note_given();
    EXPECT_EQ(kernels.size(), frames - count);
    for (std::uint32_t i = 0; i < count; ++i) {
      EXPECT_EQ(taken[i].iov_len, 100 + i);
      EXPECT_EQ(*static_cast<std::byte*>(taken[i].iov_base), std::byte(round + i));
    }
    EXPECT_TRUE(ours.take().empty());
  }
  note_given();
  EXPECT_EQ(kernels.size(), frames);
}

TEST_P(Frames, AreSentInOrderOnceSubmitted) {
  for (const int content : {1, 2, 3}) {
    const std::span<std::byte> place = ours.add(60);
    ASSERT_EQ(place.size(), 60U);
    std::fill(place.begin(), place.end(), std::byte(content));
  }
  EXPECT_EQ(transmit.count(), 0U);
  EXPECT_EQ(ours.added(), 3U);
  ours.submit();
  EXPECT_EQ(ours.added(), 0U);
  EXPECT_EQ(ours.unsent(), 3U);
  for (const int content : {1, 2, 3}) EXPECT_EQ(leave(), std::vector<std::byte>(60, std::byte(content)));
  EXPECT_EQ(ours.unsent(), 0U);
  EXPECT_EQ(ours.outgoing(), 3U);
}

TEST_P(Frames, WaitForTheKernelWhenAllAreBeingSent) {
  for (std::uint32_t round = 0; round < 20; ++round) {
    for (std::uint32_t i = 0; i < frames; ++i) ASSERT_FALSE(ours.add(60).empty());
    EXPECT_TRUE(ours.add(60).empty());
    ours.submit();
    EXPECT_EQ(ours.outgoing(), frames);
    while (transmit.count() > 0) static_cast<void>(leave());
    EXPECT_TRUE(ours.add(60).empty());
    // In another order.
    const std::set<std::uint64_t> all = sending;
    for (const std::uint64_t address : all) {
      EXPECT_GE(address, frames * frame_bytes);  // never one for receiving
      complete(address);
    }
    EXPECT_EQ(ours.outgoing(), 0U);
  }
}

TEST_P(Frames, HaveRoomForOneEach) {
  EXPECT_EQ(ours.add(frame_bytes).size(), frame_bytes);
  EXPECT_TRUE(ours.add(frame_bytes + 1).empty());
}

INSTANTIATE_TEST_SUITE_P(Counters, Frames, testing::Values(0U, 5U, UINT32_MAX - 3));

}  // namespace
}  // namespace netsum::transport
