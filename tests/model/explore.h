// Breadth-first search of every state that a system can reach.
//
// A System is a value with: std::vector<Action> actions() const; void apply(const Action&), which throws Wrong if what must
// always hold does not; void append_state(std::vector<std::byte>&) const; std::string words(const Action&) const.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace netsum::model {

struct Wrong : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Exploration {
  std::uint64_t states = 0, transitions = 0, depth = 0;
  double seconds = 0;
  bool complete = false;             // every reachable state was seen
  std::optional<std::string> wrong;  // what did not hold
  std::vector<std::string> trace;    // the shortest way there, in words
};

// 128 bits of a state: two states are taken for one only if both halves agree.
struct Digest {
  std::uint64_t low = 0, high = 0;
  bool operator==(const Digest&) const = default;
};
struct DigestHash {
  std::size_t operator()(const Digest& digest) const { return static_cast<std::size_t>(digest.low); }
};

// Eight bytes at a time: a search spends much of its time here.
inline Digest digest_of(std::span<const std::byte> bytes) {
  Digest digest{0x9e3779b97f4a7c15ULL ^ bytes.size(), 0xc2b2ae3d27d4eb4fULL};
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min<std::size_t>(8, bytes.size() - at));
    digest.low = (digest.low ^ word) * 0x9fb21c651e98df25ULL;
    digest.low ^= digest.low >> 32;
    digest.high = (digest.high + word) * 0xd6e8feb86659fd93ULL;
    digest.high ^= digest.high >> 29;
  }
  return digest;
}

// `each` sees every state once, and may throw Wrong too (liveness).
template <class System, class Each>
Exploration explore(const System& initial, std::uint64_t most_states, Each each) {
  using Action = typename System::Action;
  struct Step {
    std::uint64_t parent;
    Action action;
  };
  Exploration result;
  const auto began = std::chrono::steady_clock::now();
  std::unordered_set<Digest, DigestHash> seen;
  std::vector<Step> steps;  // how each state was first reached
  struct Pending {
    System system;
    std::uint64_t id, depth;
  };
  std::deque<Pending> frontier;
  std::vector<std::byte> bytes;

  const auto is_new = [&](const System& system) {
    bytes.clear();
    system.append_state(bytes);
    return seen.insert(digest_of(bytes)).second;
  };
  const auto trace_to = [&](std::uint64_t id) {
    for (; id != 0; id = steps[id].parent) result.trace.insert(result.trace.begin(), initial.words(steps[id].action));
  };

  static_cast<void>(is_new(initial));
  steps.push_back({0, {}});
  frontier.push_back({initial, 0, 0});
  try {
    each(initial);
    while (!frontier.empty() && seen.size() < most_states) {
      const Pending from = std::move(frontier.front());
      frontier.pop_front();
      result.depth = from.depth;
      for (const Action& action : from.system.actions()) {
        System next = from.system;
        ++result.transitions;
        const std::uint64_t id = steps.size();
        steps.push_back({from.id, action});
        try {
          next.apply(action);
          if (is_new(next)) {
            each(next);
            frontier.push_back({std::move(next), id, from.depth + 1});
          } else {
            steps.pop_back();
          }
        } catch (const std::exception&) {
          trace_to(id);
          throw;
        }
      }
    }
    result.complete = frontier.empty();
  } catch (const std::exception& wrong) {
    result.wrong = wrong.what();
  }
  result.states = seen.size();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  return result;
}

}  // namespace netsum::model
