// Collectives among members that share memory: as threads of one object, and as processes that come and die.
#include "parallel/machine_group.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <csignal>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>

#include "runtime/thread.h"
#include "transport/local/local_socket.h"

namespace netsum::parallel {
namespace {

using namespace std::chrono_literals;

Time in(Duration patience) {
  return runtime::now() + patience;
}
constexpr Duration ample = 60s;

// Values over many magnitudes: another order of adding gives other bits.
float value(std::uint32_t rank, std::size_t i) {
  std::uint64_t state = (rank + 1) * 0x9e3779b97f4a7c15ULL + i * 0xbf58476d1ce4e5b9ULL;
  state = (state ^ state >> 31) * 0x94d049bb133111ebULL;
  return std::ldexp(static_cast<float>(static_cast<std::int32_t>(state >> 32)), -31 - static_cast<int>(state & 7));
}

void fill(std::span<float> tensor, std::uint32_t rank) {
  for (std::size_t i = 0; i < tensor.size(); ++i) tensor[i] = value(rank, i);
}

float sum_in_order(std::uint32_t members, std::size_t i) {
  float sum = value(0, i);
  for (std::uint32_t rank = 1; rank < members; ++rank) sum += value(rank, i);
  return sum;
}

[[nodiscard]] std::size_t wrong(std::span<const float> tensor, const Piece& piece, std::uint32_t members) {
  std::size_t count = 0;
  for (std::size_t i = piece.begin; i < piece.end; ++i) {
    count += std::bit_cast<std::uint32_t>(tensor[i]) != std::bit_cast<std::uint32_t>(sum_in_order(members, i));
  }
  return count;
}

std::optional<Error> attempt(const std::function<void()>& body) {
  try {
    body();
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  }
}

// The outcome of each member.
std::vector<std::optional<Error>> on_threads(std::uint32_t members, std::size_t elements,
                                             const std::function<void(MachineGroup&)>& body, Duration patience = ample) {
  const auto memory = GroupMemory::of_threads(members, elements);
  std::vector<std::optional<Error>> outcomes(members);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < members; ++rank) {
    threads.emplace_back([&, rank] {
      outcomes[rank] = attempt([&] {
        MachineGroup group("threads", memory, rank, in(patience));
        body(group);
      });
    });
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

TEST(Pieces, CoverATensorInWholeBlocks) {
  for (const std::size_t elements : {0U, 1U, 255U, 256U, 257U, 1000U, 4096U, 100'003U}) {
    for (const std::uint32_t pieces : {1u, 2u, 3u, 7u, 8u, 16u}) {
      std::size_t end = 0, longest = 0, shortest = elements;
      for (std::uint32_t i = 0; i < pieces; ++i) {
        const Piece piece = piece_of(elements, i, pieces);
        EXPECT_EQ(piece.begin, end);
        EXPECT_TRUE(piece.begin % 256 == 0 || piece.size() == 0);
        end = piece.end;
        longest = std::max(longest, piece.size());
        shortest = std::min(shortest, piece.size());
      }
      EXPECT_EQ(end, elements);
      EXPECT_LE(longest - shortest, 512u);
    }
  }
}

constexpr std::uint32_t sizes[] = {1, 2, 3, 5, 8};
constexpr std::size_t lengths[] = {0, 1, 256, 257, 5'000, 100'003};

TEST(MachineGroup, ReduceScatterAndAllGatherGiveTheSumInMembersOrder) {
  for (const std::uint32_t members : sizes) {
    for (const std::size_t elements : lengths) {
      expect_none(on_threads(members, elements, [&](MachineGroup& group) {
        for (int round = 0; round < 3; ++round) {  // tensors are filled again while others may still be in the last call
          fill(group.tensor(), group.rank());
          group.reduce_scatter(elements, in(ample));
          EXPECT_EQ(wrong(group.tensor(), piece_of(elements, group.rank(), members), members), 0u);
          group.all_gather(elements, in(ample));
          EXPECT_EQ(wrong(group.tensor(), {0, elements}, members), 0u) << members << " members, " << elements;
        }
      }));
    }
  }
}

TEST(MachineGroup, ReduceGivesTheSumToTheMasterAlone) {
  for (const std::uint32_t members : sizes) {
    for (const std::size_t elements : lengths) {
      expect_none(on_threads(members, elements, [&](MachineGroup& group) {
        fill(group.tensor(), group.rank());
        group.reduce(elements, in(ample));
        if (group.rank() == 0) {
          EXPECT_EQ(wrong(group.tensor(), {0, elements}, members), 0u);
        } else {
          std::size_t changed = 0;
          for (std::size_t i = 0; i < elements; ++i) changed += group.tensor()[i] != value(group.rank(), i);
          EXPECT_EQ(changed, 0u);
        }
        group.broadcast(elements, in(ample));
        EXPECT_EQ(wrong(group.tensor(), {0, elements}, members), 0u);
      }));
    }
  }
}

TEST(MachineGroup, WorksOnTheBeginningOfATensor) {
  expect_none(on_threads(3, 10'000, [](MachineGroup& group) {
    fill(group.tensor(), group.rank());
    group.reduce_scatter(1000, in(ample));
    group.all_gather(1000, in(ample));
    EXPECT_EQ(wrong(group.tensor(), {0, 1000}, 3), 0u);
    EXPECT_EQ(group.tensor()[1000], value(group.rank(), 1000));
  }));
}

TEST(MachineGroup, NobodyPassesABarrierBeforeAllHaveCome) {
  std::atomic<std::uint32_t> come{0};
  expect_none(on_threads(4, 0, [&](MachineGroup& group) {
    for (std::uint32_t round = 1; round <= 200; ++round) {
      come.fetch_add(1, std::memory_order_relaxed);
      group.barrier(in(ample));
      EXPECT_GE(come.load(std::memory_order_relaxed), 4 * round);
    }
  }));
}

TEST(MachineGroup, NamesWhoIsMissingAtTheDeadline) {
  const auto memory = GroupMemory::of_threads(4, 0);
  std::optional<Error> patient;
  std::thread thread([&] { patient = attempt([&] { const MachineGroup group("late", memory, 2, in(ample)); }); });
  while (memory->slot(2).word == 0) std::this_thread::yield();
  expect_error(attempt([&] { const MachineGroup group("late", memory, 0, in(30ms)); }), ErrorCode::deadline,
               "machine group 'late', member 0: joining did not end in time: it waits for member 1, 3");
  thread.join();
  expect_error(patient, ErrorCode::worker_lost, "member 0 failed: joining did not end in time: it waits for member 1, 3");
}

TEST(MachineGroup, DifferentCallsAreAnErrorOfAll) {
  const auto outcomes = on_threads(3, 1000, [](MachineGroup& group) {
    if (group.rank() == 1) {
      group.reduce_scatter(999, in(ample));
    } else {
      group.all_gather(1000, in(ample));
    }
  });
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome);
    EXPECT_TRUE(outcome->code() == ErrorCode::mismatch || outcome->code() == ErrorCode::worker_lost);
  }
  expect_error(outcomes[1], ErrorCode::mismatch, "all-gather of 1000 elements");
  expect_error(outcomes[1], ErrorCode::mismatch, "reduce-scatter of 999 elements");
}

TEST(MachineGroup, FailureOfOneIsHeardByAllWithItsReason) {
  const auto outcomes = on_threads(3, 100, [](MachineGroup& group) {
    group.barrier(in(ample));
    if (group.rank() == 1) {
      group.abort("the network is down");
      group.barrier(in(ample));
    } else {
      group.reduce(100, in(ample));
    }
  });
  expect_error(outcomes[1], ErrorCode::closed, "failed earlier");
  for (const int rank : {0, 2})
    expect_error(outcomes[static_cast<std::size_t>(rank)], ErrorCode::worker_lost, "the network is down");
}

TEST(MachineGroup, WhoLeavesEarlyIsNamed) {
  const auto outcomes = on_threads(2, 0, [](MachineGroup& group) {
    if (group.rank() == 0) group.barrier(in(ample));
  });
  expect_error(outcomes[0], ErrorCode::worker_lost, "member 1 left");
  EXPECT_FALSE(outcomes[1]);
}

// ---- processes

class Child {
 public:
  // `body` returns the exit code.
  explicit Child(const std::function<int()>& body) : pid_(fork()) {
    if (pid_ == 0) _exit(body());
  }
  ~Child() {
    if (!ended_) {
      kill(pid_, SIGKILL);
      static_cast<void>(exit_code());
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void signal(int number) const { kill(pid_, number); }
  [[nodiscard]] int exit_code() {
    int status = 0;
    waitpid(pid_, &status, 0);
    ended_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_;
  bool ended_ = false;
};

std::string unique_name(const char* of) {
  return std::string(of) + "-" + std::to_string(getpid());
}

std::string address_of(const std::string& name) {
  return "netsum-group-" + std::to_string(geteuid()) + "-" + name;
}

bool name_exists(const std::string& name) {
  std::shared_ptr<transport::Descriptor> socket;
  return transport::connect_local(address_of(name), socket) == transport::LocalOutcome::done;
}

TEST(GroupMemory, ProcessesSumInIt) {
  const std::string name = unique_name("sum");
  constexpr std::uint32_t members = 4;
  constexpr std::size_t elements = 70'001;
  const auto member = [&](std::uint32_t rank) {
    MachineGroup group(name, GroupMemory::join({name, rank, members, elements}, in(ample)), rank, in(ample));
    group.barrier(in(ample));
    std::size_t bad = name_exists(name);
    for (int round = 0; round < 5; ++round) {
      fill(group.tensor(), rank);
      group.reduce_scatter(elements, in(ample));
      group.all_gather(elements, in(ample));
      bad += wrong(group.tensor(), {0, elements}, members);
      fill(group.tensor(), rank);
      group.barrier(in(ample));
      group.reduce(elements, in(ample));
      group.broadcast(elements, in(ample));
      bad += wrong(group.tensor(), {0, elements}, members);
    }
    return bad == 0 ? 0 : 1;
  };
  Child one([&] { return member(1); }), two([&] { return member(2); }), three([&] { return member(3); });
  EXPECT_EQ(member(0), 0);
  for (Child* each : {&one, &two, &three}) EXPECT_EQ(each->exit_code(), 0);
}

TEST(GroupMemory, ADeadMemberIsNamedLongBeforeTheDeadline) {
  const std::string name = unique_name("dead");
  Child victim([&] {
    MachineGroup group(name, GroupMemory::join({name, 1, 2, 100}, in(ample)), 1, in(ample));
    group.barrier(in(ample));
    raise(SIGKILL);
    return 0;
  });
  MachineGroup group(name, GroupMemory::join({name, 0, 2, 100}, in(ample)), 0, in(ample));
  group.barrier(in(ample));
  const Time begin = runtime::now();
  expect_error(attempt([&] { group.all_gather(100, in(ample)); }), ErrorCode::worker_lost, "member 1 died");
  EXPECT_LT(runtime::now() - begin, 20s);
  expect_error(attempt([&] { group.barrier(in(ample)); }), ErrorCode::worker_lost, "failed earlier");
}

TEST(GroupMemory, AStoppedMemberEndsInTheDeadline) {
  const std::string name = unique_name("stopped");
  Child victim([&] {
    MachineGroup group(name, GroupMemory::join({name, 1, 2, 0}, in(ample)), 1, in(ample));
    group.barrier(in(ample));
    raise(SIGSTOP);
    return 0;
  });
  MachineGroup group(name, GroupMemory::join({name, 0, 2, 0}, in(ample)), 0, in(ample));
  group.barrier(in(ample));
  expect_error(attempt([&] { group.barrier(in(200ms)); }), ErrorCode::deadline,
               "barrier did not end in time: it waits for member 1");
}

TEST(GroupMemory, ADeadJobLeavesNothingBehind) {
  const std::string name = unique_name("stale");
  Child victim([&] {
    const auto memory = GroupMemory::join({name, 0, 2, 100}, in(ample));
    raise(SIGKILL);
    return 0;
  });
  EXPECT_EQ(victim.exit_code(), -1);
  EXPECT_FALSE(name_exists(name));
  expect_error(attempt([&] {
                 static_cast<void>(GroupMemory::join({name, 1, 2, 50}, in(50ms)));
               }),
               ErrorCode::deadline, "member 0");
  Child other([&] {
    const MachineGroup group(name, GroupMemory::join({name, 1, 2, 50}, in(ample)), 1, in(ample));
    return 0;
  });
  const MachineGroup group(name, GroupMemory::join({name, 0, 2, 50}, in(ample)), 0, in(ample));
  EXPECT_EQ(other.exit_code(), 0);
  EXPECT_FALSE(name_exists(name));
}

TEST(GroupMemory, OfTwoThatWouldMakeItOneDoes) {
  const std::string name = unique_name("race");
  for (int round = 0; round < 300; ++round) {
    std::atomic<int> ready{0}, made{0}, refused{0};
    const auto make = [&] {
      ready.fetch_add(1);
      while (ready.load() < 2) std::this_thread::yield();
      std::shared_ptr<GroupMemory> memory;
      const auto outcome = attempt([&] { memory = GroupMemory::join({name, 0, 2, 1}, in(ample)); });
      (outcome ? refused : made).fetch_add(1);
      while (made.load() + refused.load() < 2) std::this_thread::yield();
    };
    std::thread other(make);
    make();
    other.join();
    ASSERT_EQ(made.load(), 1) << "round " << round;
  }
}

// A child that a member forked lives on, and has nothing of it.
TEST(GroupMemory, AMembersChildIsNoMember) {
  const std::string name = unique_name("orphan");
  int orphans[2];
  ASSERT_EQ(pipe(orphans), 0);
  Child victim([&] {
    MachineGroup group(name, GroupMemory::join({name, 1, 2, 100}, in(ample)), 1, in(ample));
    group.barrier(in(ample));
    const pid_t orphan = fork();
    if (orphan == 0) {
      while (true) pause();
    }
    if (write(orphans[1], &orphan, sizeof orphan) != sizeof orphan) return 1;
    raise(SIGKILL);
    return 0;
  });
  MachineGroup group(name, GroupMemory::join({name, 0, 2, 100}, in(ample)), 0, in(ample));
  group.barrier(in(ample));
  expect_error(attempt([&] { group.all_gather(100, in(5s)); }), ErrorCode::worker_lost, "member 1 died");
  pid_t orphan = 0;
  ASSERT_EQ(read(orphans[0], &orphan, sizeof orphan), static_cast<ssize_t>(sizeof orphan));
  kill(orphan, SIGKILL);
  close(orphans[0]);
  close(orphans[1]);
}

// Hands over `memory` with what a group of 2 members and 100 elements has, to whoever attaches next.
std::optional<Error> attach_to(const transport::Descriptor& memory) {
  const std::string name = unique_name("impostor");
  transport::LocalListener listener(address_of(name), false);
  std::optional<Error> outcome;
  std::thread thread([&] {
    outcome = attempt([&] {
      const auto attached = GroupMemory::join({name, 1, 2, 100}, in(ample));
      attached->tensor(1)[99] = 1;
    });
  });
  const struct { std::uint64_t magic = 0x32'7075'6f72'676eULL, elements = 100, members = 2; } message;
  std::vector<transport::LocalPeer> peers;
  while (peers.empty()) peers = listener.accept();
  EXPECT_EQ(transport::send_local(*peers.front().socket, std::as_bytes(std::span(&message, 1)), &memory),
            transport::LocalOutcome::done);
  thread.join();
  return outcome;
}

TEST(GroupMemory, MemoryThatCouldBecomeShorterIsRefused) {
  const transport::CommonMemory right("test", 4096 * 3);
  EXPECT_FALSE(attach_to(*right.descriptor()));
  const transport::CommonMemory short_of_it("test", 4096 * 2);
  expect_error(attach_to(*short_of_it.descriptor()), ErrorCode::refused, "not sealed, or not of 12288 bytes");
  const transport::Descriptor loose(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(loose.number(), 4096 * 3), 0);
  expect_error(attach_to(loose), ErrorCode::refused, "not sealed");
}

TEST(GroupMemory, IsNotTakenFromAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "no right to be another user";
  const std::string name = unique_name("squatter");
  int listening[2];
  ASSERT_EQ(pipe(listening), 0);
  Child squatter([&] {
    const std::string address = address_of(name);  // root's
    if (setresuid(4711, 4711, 4711) != 0) return 1;
    const transport::LocalListener listener(address, false);
    if (write(listening[1], "x", 1) != 1) return 1;
    while (true) pause();
  });
  char ready = 0;
  ASSERT_EQ(read(listening[0], &ready, 1), 1);
  for (const std::uint32_t rank : {0U, 1U}) {
    expect_error(attempt([&] {
                   static_cast<void>(GroupMemory::join({name, rank, 2, 1}, in(ample)));
                 }),
                 ErrorCode::refused, rank == 0 ? "'s name is in use" : "another user of this machine (user 4711)");
  }
  close(listening[0]);
  close(listening[1]);
}

TEST(MachineGroup, AReasonWithoutAnEndIsCutOff) {
  const auto memory = GroupMemory::of_threads(2, 0);
  memory->slot(1).reason.fill('x');
  memory->slot(1).calls[1] = 0xffff;  // and what follows the text
  memory->slot(1).word = static_cast<std::uint32_t>(MemberState::failed);
  const auto outcome = attempt([&] { const MachineGroup group("loud", memory, 0, in(ample)); });
  expect_error(outcome, ErrorCode::worker_lost, "member 1 failed: xxx");
  EXPECT_EQ(std::count(outcome->what(), outcome->what() + std::strlen(outcome->what()), 'x'), 256);
}

TEST(GroupMemory, RefusesSecondsAndStrangers) {
  const std::string name = unique_name("refusals");
  const auto first = GroupMemory::join({name, 0, 3, 100}, in(ample));
  const auto second = GroupMemory::join({name, 1, 3, 100}, in(ample));
  const auto join = [&](std::uint32_t rank, std::uint32_t size, std::size_t elements) {
    return attempt([&] { static_cast<void>(GroupMemory::join({name, rank, size, elements}, in(ample))); });
  };
  expect_error(join(0, 3, 100), ErrorCode::refused, "two jobs of the same name");
  expect_error(join(1, 3, 100), ErrorCode::refused, "has a member 1 already");
  expect_error(join(2, 4, 100), ErrorCode::mismatch, "3 members and 100 elements");
  expect_error(join(2, 3, 101), ErrorCode::mismatch, "3 members and 101 elements");
  expect_error(join(3, 3, 100), ErrorCode::bad_argument, "member 3");
  EXPECT_FALSE(join(2, 3, 100));
  for (const char* bad : {"", "a/b", "..//", "a b"}) {
    expect_error(attempt([&] {
                   static_cast<void>(GroupMemory::join({bad, 0, 2, 1}, in(ample)));
                 }),
                 ErrorCode::bad_argument, "name");
  }
  EXPECT_TRUE(name_exists(name));
}

TEST(GroupMemory, NoNameIsLeftWhenItsMakerGoesBeforeAllHaveCome) {
  const std::string name = unique_name("early");
  expect_error(attempt([&] {
                 const MachineGroup group(name, GroupMemory::join({name, 0, 2, 1}, in(ample)), 0, in(20ms));
               }),
               ErrorCode::deadline, "member 1");
  EXPECT_FALSE(name_exists(name));
}

TEST(GroupMemory, MoreThanThereIsIsAnErrorAndNoSignal) {
  const std::string name = unique_name("large");
  expect_error(attempt([&] {
                 static_cast<void>(GroupMemory::join({name, 0, 2, std::size_t{1} << 44}, in(ample)));
               }),
               ErrorCode::internal, "bytes of shared memory");
  EXPECT_FALSE(name_exists(name));
}

}  // namespace
}  // namespace netsum::parallel
