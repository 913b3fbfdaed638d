// Rings of threads over loopback: sums, their bits, and neighbours that go, are late, or are somebody else.
#include "parallel/tcp_ring.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <functional>
#include <optional>
#include <thread>

#include "runtime/thread.h"

namespace netsum::parallel {
namespace {

using namespace std::chrono_literals;

Time in(Duration patience) {
  return runtime::now() + patience;
}
constexpr Duration ample = 60s;

float value(std::uint32_t rank, std::size_t i) {
  std::uint64_t state = (rank + 1) * 0x9e3779b97f4a7c15ULL + i * 0xbf58476d1ce4e5b9ULL;
  state = (state ^ state >> 31) * 0x94d049bb133111ebULL;
  return std::ldexp(static_cast<float>(static_cast<std::int32_t>(state >> 32)), -31 - static_cast<int>(state & 7));
}

std::vector<float> input(std::uint32_t rank, std::size_t elements) {
  std::vector<float> tensor(elements);
  for (std::size_t i = 0; i < elements; ++i) tensor[i] = value(rank, i);
  return tensor;
}

// Piece k from rank k on.
std::vector<float> expected(std::uint32_t size, std::size_t elements) {
  std::vector<float> sums(elements);
  for (std::uint32_t piece = 0; piece < size; ++piece) {
    for (std::size_t i = elements * piece / size; i < elements * (piece + 1) / size; ++i) {
      sums[i] = value(piece, i);
      for (std::uint32_t hop = 1; hop < size; ++hop) sums[i] += value((piece + hop) % size, i);
    }
  }
  return sums;
}

[[nodiscard]] bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](float x, float y) { return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y); });
}

struct Seats {
  explicit Seats(std::uint32_t size) {
    for (std::uint32_t rank = 0; rank < size; ++rank) {
      listeners.push_back(TcpSocket::bound_to("127.0.0.1:0"));
      addresses.push_back(listeners.back().local_address());
    }
  }
  [[nodiscard]] TcpRing take(std::uint32_t rank, Duration patience = ample, const std::string& name = "test",
                             const std::string& secret = "") {
    const auto size = static_cast<std::uint32_t>(addresses.size());
    return {std::move(listeners[rank]), {name, rank, size, addresses[(rank + 1) % size], secret}, in(patience)};
  }
  std::vector<TcpSocket> listeners;
  std::vector<std::string> addresses;
};

std::optional<Error> attempt(const std::function<void()>& body) {
  try {
    body();
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  }
}

std::vector<std::optional<Error>> on_ranks(std::uint32_t size, const std::function<void(std::uint32_t)>& body) {
  std::vector<std::optional<Error>> outcomes(size);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { outcomes[rank] = attempt([&] { body(rank); }); });
  }
  for (auto& thread : threads) thread.join();
  return outcomes;
}

void expect_none(const std::vector<std::optional<Error>>& outcomes) {
  for (const auto& outcome : outcomes) EXPECT_FALSE(outcome) << outcome->what();
}

void expect_error(const std::optional<Error>& outcome, ErrorCode code, const std::string& part) {
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->code(), code) << outcome->what();
  EXPECT_NE(std::string(outcome->what()).find(part), std::string::npos) << outcome->what();
}

TEST(TcpRing, SumsEveryLengthInTheRingsOrder) {
  for (const std::uint32_t size : {1u, 2u, 3u, 4u, 7u}) {
    Seats seats(size);
    expect_none(on_ranks(size, [&](std::uint32_t rank) {
      TcpRing ring = seats.take(rank);
      for (const std::size_t elements : {0U, 1U, 2U, 6U, 7U, 8U, 1'000U, 4'097U, 100'003U, 1'000'000U}) {
        auto tensor = input(rank, elements);
        ring.all_reduce(tensor, in(ample));
        EXPECT_TRUE(same_bits(tensor, expected(size, elements)))
            << size << " ranks, " << elements << " elements, rank " << rank;
      }
    }));
  }
}

TEST(TcpRing, SendsEachByteAsOftenAsARingMust) {
  constexpr std::uint32_t size = 4;
  constexpr std::size_t elements = 1'000'000;
  Seats seats(size);
  expect_none(on_ranks(size, [&](std::uint32_t rank) {
    TcpRing ring = seats.take(rank);
    auto tensor = input(rank, elements);
    ring.all_reduce(tensor, in(ample));
    ring.barrier(in(ample));
    const double once = 2.0 * (size - 1) / size * elements * sizeof(float);
    EXPECT_GT(static_cast<double>(ring.to_next().bytes_sent), once);
    EXPECT_LT(static_cast<double>(ring.to_next().bytes_sent), 1.5 * once);  // a late reader is repeated to
    EXPECT_GT(static_cast<double>(ring.to_previous().bytes_received), once);
    EXPECT_LT(static_cast<double>(ring.to_previous().bytes_received), 1.5 * once);
    EXPECT_LT(static_cast<double>(ring.to_previous().bytes_sent), 0.1 * once);  // acknowledgements
  }));
}

TEST(TcpRing, NobodyPassesABarrierBeforeAllHaveCome) {
  constexpr std::uint32_t size = 3;
  Seats seats(size);
  std::atomic<std::uint32_t> come{0};
  expect_none(on_ranks(size, [&](std::uint32_t rank) {
    TcpRing ring = seats.take(rank);
    for (std::uint32_t round = 1; round <= 100; ++round) {
      come.fetch_add(1, std::memory_order_relaxed);
      ring.barrier(in(ample));
      EXPECT_GE(come.load(std::memory_order_relaxed), size * round);
    }
  }));
}

TEST(TcpRing, WhoGoesIsNamedByItsNeighboursAndAllEnd) {
  constexpr std::uint32_t size = 4;
  Seats seats(size);
  const auto outcomes = on_ranks(size, [&](std::uint32_t rank) {
    TcpRing ring = seats.take(rank);
    std::vector<float> tensor(500'000);
    ring.all_reduce(tensor, in(ample));
    if (rank == 2) return;
    ring.all_reduce(tensor, in(ample));
  });
  EXPECT_FALSE(outcomes[2]);
  for (const std::size_t rank : {0u, 1u, 3u}) expect_error(outcomes[rank], ErrorCode::worker_lost, "closed its connection");
  const auto names = [&](std::size_t rank, const std::string& who) {
    return std::string(outcomes[rank]->what()).find(who) != std::string::npos;
  };
  EXPECT_TRUE(names(1, "rank 2 closed") || names(3, "rank 2 closed"));
}

TEST(TcpRing, AFailedRingStaysFailed) {
  Seats seats(2);
  expect_none(on_ranks(2, [&](std::uint32_t rank) {
    TcpRing ring = seats.take(rank);
    ring.close();
    std::vector<float> tensor(10);
    expect_error(attempt([&] { ring.all_reduce(tensor, in(ample)); }), ErrorCode::closed, "failed earlier");
  }));
}

TEST(TcpRing, ARankThatIsLateIsNamedAtTheDeadline) {
  Seats seats(3);
  std::atomic<bool> over{false};
  const auto outcomes = on_ranks(3, [&](std::uint32_t rank) {
    TcpRing ring = seats.take(rank);
    std::vector<float> tensor(1000);
    if (rank == 1) {
      over.wait(false);  // alive, and does not take part
    } else {
      const auto error = attempt([&] { ring.all_reduce(tensor, in(rank == 2 ? 100ms : ample)); });
      over = true;
      over.notify_all();
      if (error) throw Error(*error);
    }
  });
  EXPECT_FALSE(outcomes[1]);
  expect_error(outcomes[2], ErrorCode::deadline, "all-reduce 0 did not end in time: step 0 of 4 waits for rank 1");
  expect_error(outcomes[0], ErrorCode::worker_lost, "rank");
}

TEST(TcpRing, DifferentLengthsAreAnError) {
  Seats seats(3);
  const auto outcomes = on_ranks(3, [&](std::uint32_t rank) {
    TcpRing ring = seats.take(rank);
    std::vector<float> tensor(rank == 1 ? 999 : 1000);
    ring.all_reduce(tensor, in(ample));
  });
  int mismatches = 0;
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome);
    EXPECT_TRUE(outcome->code() == ErrorCode::mismatch || outcome->code() == ErrorCode::worker_lost) << outcome->what();
    if (outcome->code() != ErrorCode::mismatch) continue;
    ++mismatches;
    EXPECT_NE(std::string(outcome->what()).find("of 999 elements"), std::string::npos);
    EXPECT_NE(std::string(outcome->what()).find("of 1000 elements"), std::string::npos);
  }
  EXPECT_GE(mismatches, 1);
}

TEST(TcpRing, StrangersDoNotGetIn) {
  Seats seats(2);
  for (TcpSocket& listener : seats.listeners) listener.listen();
  TcpSocket silent = TcpSocket::connected_to(seats.addresses[0], in(ample));
  TcpSocket loud = TcpSocket::connected_to(seats.addresses[1], in(ample));
  const std::vector<std::byte> noise(1000, std::byte{'x'});
  ASSERT_TRUE(loud.send_all(noise, in(ample)));
  expect_none(on_ranks(2, [&](std::uint32_t rank) {
    TcpRing ring = seats.take(rank);
    auto tensor = input(rank, 1000);
    ring.all_reduce(tensor, in(ample));
    EXPECT_TRUE(same_bits(tensor, expected(2, 1000)));
  }));
}

// One after the other, each with a second, they would keep the neighbour out until the deadline.
TEST(TcpRing, SilentStrangersKeepNobodyOut) {
  Seats seats(2);
  for (TcpSocket& listener : seats.listeners) listener.listen();
  std::vector<TcpSocket> silent;
  for (int i = 0; i < 12; ++i) silent.push_back(TcpSocket::connected_to(seats.addresses[0], in(ample)));
  expect_none(on_ranks(2, [&](std::uint32_t rank) {
    TcpRing ring = seats.take(rank, std::chrono::seconds(10));
    ring.barrier(in(ample));
  }));
}

TEST(TcpRing, MembersHaveTheSecret) {
  for (const bool right : {true, false}) {
    Seats seats(2);
    const auto outcomes = on_ranks(2, [&](std::uint32_t rank) {
      TcpRing ring =
          seats.take(rank, right ? ample : std::chrono::milliseconds(200), "test", right || rank == 0 ? "secret" : "guess");
      ring.barrier(in(ample));
    });
    if (right) {
      expect_none(outcomes);
    } else {
      for (const auto& outcome : outcomes) EXPECT_TRUE(outcome);
    }
  }
}

// A peer by hand: rank 1 of two, who sends a byte at a time.
TEST(TcpRing, AddsFloatsThatComeInParts) {
  constexpr std::size_t elements = 6'000, half = elements / 2;
  const auto bytes_of = [](std::span<float> floats) { return std::as_writable_bytes(floats); };
  Seats seats(2);
  seats.listeners[1].listen();
  std::vector<float> tensor = input(0, elements);
  std::thread rank([&] {
    TcpRing ring = seats.take(0);
    ring.all_reduce(tensor, in(ample));
  });
  auto from_0 = seats.listeners[1].accept(in(ample));
  ASSERT_TRUE(from_0);
  TcpSocket to_0 = TcpSocket::connected_to(seats.addresses[0], in(ample));
  std::array<std::byte, 24> hello{}, answer{};
  ASSERT_TRUE(from_0->receive_all(hello, in(ample)));
  hello[16] = std::byte{1};  // the rank
  ASSERT_TRUE(to_0.send_all(hello, in(ample)) && from_0->send_all(hello, in(ample)) && to_0.receive_all(answer, in(ample)));

  std::array<std::byte, 16> header{};
  std::vector<float> mine = input(1, elements), theirs(half);
  ASSERT_TRUE(from_0->receive_all(header, in(ample)) && to_0.send_all(header, in(ample)));
  for (const std::byte& each : bytes_of(std::span(mine).last(half))) ASSERT_TRUE(to_0.send_all({&each, 1}, in(ample)));
  ASSERT_TRUE(from_0->receive_all(bytes_of(theirs), in(ample)));
  for (std::size_t i = 0; i < half; ++i) theirs[i] += mine[i];
  for (const std::byte& each : bytes_of(theirs)) ASSERT_TRUE(to_0.send_all({&each, 1}, in(ample)));
  ASSERT_TRUE(from_0->receive_all(bytes_of(theirs), in(ample)));
  rank.join();
  EXPECT_TRUE(same_bits(tensor, expected(2, elements)));
}

TEST(TcpRing, MembersOfAnotherRingAreRefused) {
  Seats seats(2);
  const auto outcomes =
      on_ranks(2, [&](std::uint32_t rank) { const TcpRing ring = seats.take(rank, 500ms, rank == 0 ? "one" : "other"); });
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome);
    EXPECT_TRUE(outcome->code() == ErrorCode::deadline || outcome->code() == ErrorCode::refused) << outcome->what();
  }
}

TEST(TcpRing, WhoNeverComesIsNamed) {
  Seats seats(2);
  const TcpSocket elsewhere = TcpSocket::bound_to("127.0.0.1:0");  // nobody listens
  expect_error(attempt([&] {
                 const TcpRing ring(std::move(seats.listeners[0]), {"test", 0, 2, elsewhere.local_address()}, in(50ms));
               }),
               ErrorCode::deadline, elsewhere.local_address());
  seats.listeners[1].listen();  // the kernel answers, and nobody else
  expect_error(attempt([&] {
                 const TcpRing ring(TcpSocket::bound_to("127.0.0.1:0"), {"test", 0, 2, seats.addresses[1]}, in(50ms));
               }),
               ErrorCode::deadline, "rank 1 did not connect in time");
  expect_error(attempt([&] {
                 const TcpRing ring(TcpSocket::bound_to("127.0.0.1:0"), {"test", 2, 2, seats.addresses[1]}, in(ample));
               }),
               ErrorCode::bad_argument, "rank 2");
}

// A parent chooses ports for its children, and holds them until they listen.
TEST(TcpSocket, APortThatIsHeldIsFreeForOneListener) {
  const TcpSocket held = TcpSocket::bound_to("127.0.0.1:0");
  TcpSocket listener = TcpSocket::bound_to(held.local_address());
  listener.listen();
  EXPECT_EQ(listener.local_address(), held.local_address());
  expect_error(attempt([&] {
                 TcpSocket second = TcpSocket::bound_to(held.local_address());
                 second.listen();
               }),
               ErrorCode::refused, held.local_address());
}

}  // namespace
}  // namespace netsum::parallel
