// Every interleaving of how two racks' bumps and their root agree on a ring of foreign hosts.
//
// A host takes no sum but that of the messages of its own job; and from every state hosts that begin get their sums.
#include <gtest/gtest.h>

#include <cstdio>

#include "model/learned_racks_job.h"

namespace netsum::model::learned_racks {
namespace {

Exploration explore(const char* name, const Setup& setup) {
  RacksSystem system(setup);
  Search search(system, Shortcuts::all);
  Exploration found = search.run(1'000'000, true);
  std::printf("%-58s %8llu states %9llu transitions, depth %3llu, %5.1f s%s\n", name,
              static_cast<unsigned long long>(found.states), static_cast<unsigned long long>(found.transitions),
              static_cast<unsigned long long>(found.depth), found.seconds, found.wrong ? ", wrong" : "");
  std::fflush(stdout);
  return found;
}

void holds(const char* name, const Setup& setup) {
  const Exploration found = explore(name, setup);
  EXPECT_TRUE(found.wrong.has_value() || found.complete) << "not all states were seen";
  if (!found.wrong) return;
  std::string trace;
  for (const std::string& step : found.trace) trace += "\n  " + step;
  ADD_FAILURE() << *found.wrong << trace << "\n  (without the steps that change no node)";
}

void is_found_wrong(const char* name, const Setup& setup, const char* with) {
  const Exploration found = explore(name, setup);
  for (const std::string& step : found.trace) std::printf("    %s\n", step.c_str());
  ASSERT_TRUE(found.wrong.has_value());
  std::printf("    => %s\n", found.wrong->c_str());
  EXPECT_NE(std::string::npos, found.wrong->find(with)) << *found.wrong;
}

TEST(LearnedRacksModel, OneJob) {
  holds("one job", {1});
}
TEST(LearnedRacksModel, ABumpThatIsStartedAgain) {
  holds("one job, the bump of a rack is started again", {1, 1});
}
TEST(LearnedRacksModel, ARootThatIsStartedAgain) {
  holds("one job, the root is started again", {1, 0, 1});
}
TEST(LearnedRacksModelAtLength, HostsThatBeginAgain) {
  holds("two jobs", {2});
}

TEST(LearnedRacksModelOfAWrong, ProcessesThatRepeat) {
  is_found_wrong("one job, another process with the former one's number", {1, 1, 0, Wrongly::processes_repeat},
                 "still not everybody");
}
TEST(LearnedRacksModelAtLength, LivesThatRepeat) {
  is_found_wrong("two jobs, a root that begins the former one's lives", {2, 0, 1, Wrongly::lives_repeat},
                 "sum of other messages");
}
// What the hosts do for it: packets do not show which process has sent them, only to which they go.
TEST(LearnedRacksModelOfAWrong, HostsThatDoNotWaitForEachOther) {
  is_found_wrong("two jobs, hosts that send to queue pairs to come", {2, 0, 0, Wrongly::queue_pairs_not_awaited},
                 "sum of other messages");
}

}  // namespace
}  // namespace netsum::model::learned_racks
