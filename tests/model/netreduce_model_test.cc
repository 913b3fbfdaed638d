// Every interleaving of small rings of NetReduce.

#include <gtest/gtest.h>

#include <cstdio>

#include "model/netreduce_job.h"

namespace netsum::model::netreduce {
namespace {

constexpr std::uint64_t most_states = 1'000'000;

Exploration explore(const char* name, const RingSetup& setup, Shortcuts shortcuts, bool liveness) {
  RingSystem system(setup);
  Search search(system, shortcuts);
  const Exploration found = search.run(most_states, liveness);
  std::printf("%-58s %8llu states %9llu transitions, depth %3llu, %5.1f s%s\n", name,
              static_cast<unsigned long long>(found.states), static_cast<unsigned long long>(found.transitions),
              static_cast<unsigned long long>(found.depth), found.seconds, found.wrong ? ", wrong" : "");
  std::fflush(stdout);
  return found;
}

// After a restart nobody finishes, and only what is delivered is checked.
void holds(const char* name, const RingSetup& setup) {
  const Exploration found = explore(name, setup, Shortcuts::all, !setup.restarts);
  EXPECT_TRUE(found.wrong.has_value() || found.complete) << "not all states were seen";
  if (!found.wrong) return;
  std::string trace;
  for (const std::string& step : found.trace) trace += "\n  " + step;
  ADD_FAILURE() << *found.wrong << trace << "\n  (without the steps that change no node)";
}

void is_found_wrong(const char* name, const RingSetup& setup, const char* with) {
  const Exploration found = explore(name, setup, Shortcuts::all, !setup.restarts);
  for (const std::string& step : found.trace) std::printf("    %s\n", step.c_str());
  ASSERT_TRUE(found.wrong.has_value());
  std::printf("    => %s\n", found.wrong->c_str());
  EXPECT_NE(std::string::npos, found.wrong->find(with)) << *found.wrong;
}

TEST(NetreduceModel, RingsOfTwo) {
  holds("2 ranks, 1 message of 1 packet", {2, 1, {1}});
  holds("2 ranks, 1 message of 2 packets", {2, 1, {2}});
  holds("2 ranks, 3 messages, window of 1, buffers reused", {2, 1, {1, 1, 1}});
  holds("2 ranks, 2 messages, window of 2", {2, 2, {1, 1}});
  holds("2 ranks, 3 messages, window of 2", {2, 2, {1, 1, 1}});
  holds("2 ranks, messages of 2 and 1 packets, window of 1", {2, 1, {2, 1}});
  holds("2 ranks, messages of 2, 1 and 1 packets, buffers reused", {2, 1, {2, 1, 1}});
}

TEST(NetreduceModel, RingsOfThree) {
  holds("3 ranks, 1 message of 1 packet", {3, 1, {1}});
  holds("3 ranks, 3 messages, window of 1, buffers reused", {3, 1, {1, 1, 1}});
}

TEST(NetreduceModel, SumsThatLeaveAtOnce) {
  holds("2 ranks, 1 message of 2 packets, order of arrival", {2, 1, {2}, Order::arrival});
  holds("2 ranks, 1 message of 3 packets, order of arrival", {2, 1, {3}, Order::arrival});
}

TEST(NetreduceModel, LearnedConnections) {
  holds("2 ranks, 3 messages, window of 1, learned", {2, 1, {1, 1, 1}, Order::ring, true});
  holds("2 ranks, 5 messages, window of 2, learned", {2, 2, {1, 1, 1, 1, 1}, Order::ring, true});
  holds("3 ranks, 2 messages, window of 1, learned", {3, 1, {1, 1}, Order::ring, true});
}

TEST(NetreduceModel, AcceleratorThatRestarts) {
  holds("2 ranks, 2 messages, window of 1, restart", {2, 1, {1, 1}, Order::ring, false, true});
  holds("2 ranks, 2 messages, window of 1, learned, restart", {2, 1, {1, 1}, Order::ring, true, true});
}

// Of results alone.
RingSetup papers_window(RingSetup setup) {
  setup.unacknowledged = static_cast<std::uint32_t>(setup.messages.size());
  return setup;
}

RingSetup single_repeats(RingSetup setup) {
  setup.selective = true;
  return setup;
}

TEST(NetreduceModel, SingleRepeats) {
  holds("2 ranks, 1 message of 2 packets, single repeats", single_repeats({2, 1, {2}}));
  holds("2 ranks, 1 message of 3 packets, single repeats", single_repeats({2, 1, {3}}));
  holds("2 ranks, 3 messages, window of 1, single repeats", single_repeats({2, 1, {1, 1, 1}}));
  holds("2 ranks, 2 messages, window of 2, single repeats", single_repeats({2, 2, {1, 1}}));
  holds("2 ranks, messages of 2 and 1 packets, single repeats", single_repeats({2, 1, {2, 1}}));
  holds("3 ranks, 1 message of 1 packet, single repeats", single_repeats({3, 1, {1}}));
  holds("2 ranks, 2 messages, window of 1, restart, single repeats",
        single_repeats({2, 1, {1, 1}, Order::ring, false, true}));
}

TEST(NetreduceModelOfAWrong, RepeatRequestsThatAcknowledge) {
  is_found_wrong("2 ranks, 1 message of 3 packets, requests acknowledge",
                 single_repeats({2, 1, {3}, Order::ring, false, false, Wrongly::requests_acknowledge}),
                 "still not everybody");
}

TEST(NetreduceModelOfAWrong, WindowWithoutAcknowledgements) {
  is_found_wrong("2 ranks, 3 messages, a window without acknowledgements", papers_window({2, 1, {1, 1, 1}}),
                 "still not everybody");
}

// A device's time-out also repeats m + N, whose buffers are still its own, and the answer acknowledges m.
TEST(NetreduceModel, DevicesNeedNoAcknowledgementsInTheWindow) {
  const auto devices = [](RingSetup setup) {
    setup.devices = true;
    return papers_window(setup);
  };
  holds("2 ranks, 3 messages, the paper's window, devices", devices({2, 1, {1, 1, 1}}));
  holds("2 ranks, 4 messages, the paper's window, devices", devices({2, 1, {1, 1, 1, 1}}));
  holds("2 ranks, messages of 2, 1 and 1 packets, devices", devices({2, 1, {2, 1, 1}}));
  holds("3 ranks, 3 messages, the paper's window, devices", devices({3, 1, {1, 1, 1}}));
  holds("2 ranks, 5 messages, the paper's window of 2, learned, devices",
        devices({2, 2, {1, 1, 1, 1, 1}, Order::ring, true}));
}

// What a host sends ahead of results, and what it sends without an acknowledgement, are together what there are buffers for.
TEST(NetreduceModel, WindowsOfResultsAndOfAcknowledgements) {
  const auto with = [](std::uint32_t ahead, std::uint32_t unacknowledged) {
    RingSetup setup = single_repeats({2, 2, {1, 1, 1, 1, 1}});
    setup.ahead = ahead;
    setup.unacknowledged = unacknowledged;
    return setup;
  };
  holds("2 ranks, 5 messages, buffers for 4, windows of 1 and 3", with(1, 3));
  holds("2 ranks, 5 messages, buffers for 4, windows of 3 and 1", with(3, 1));
  is_found_wrong("2 ranks, 5 messages, buffers for 4, windows of 2 and 3", with(2, 3), "still not everybody");
}

TEST(NetreduceModelOfAWrong, BuffersForOneWindow) {
  is_found_wrong("2 ranks, 3 messages, window of 2, buffers for 2",
                 {2, 2, {1, 1, 1}, Order::ring, false, false, Wrongly::half_the_buffers}, "still not everybody");
}

// A NAK acknowledges what is before it: a sender does not repeat what its successor still lacks.
TEST(NetreduceModelOfAWrong, AcceleratorThatSendsNaks) {
  is_found_wrong("2 ranks, 1 message of 3 packets, NAKs of the accelerator's",
                 {2, 1, {3}, Order::ring, false, false, Wrongly::naks_of_its_own}, "still not everybody");
}

TEST(NetreduceModelOfAWrong, ConnectionsThatAreForgotten) {
  is_found_wrong("2 ranks, restart without a file of connections",
                 {2, 1, {1}, Order::ring, false, true, Wrongly::connections_forgotten}, "fails: ");
}

// What begins a message shows whose connection it is. What overtakes it passes, and if it is then late once more, it comes
// behind the sum of the first packet: learned connections need a network that keeps their order. The seals show it.
TEST(NetreduceModelOfAWrong, PacketsThatOvertakeTheFirstOfALearnedConnection) {
  is_found_wrong("2 ranks, 1 message of 2 packets, learned", {2, 1, {2}, Order::ring, true}, "arrived unsummed");
}

TEST(NetreduceModelOfAWrong, SealsThatAreNotChecked) {
  is_found_wrong("2 ranks, restart without a file, seals not checked",
                 {2, 1, {1}, Order::ring, false, true, Wrongly::seals_not_checked}, "receives");
}

}  // namespace
}  // namespace netsum::model::netreduce
