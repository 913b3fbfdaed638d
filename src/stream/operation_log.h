// What a rank remembers of its calls so that a job can go on after one of its processes died: the inputs of those without a
// result, which are sent again, and the latest results, for ranks that did not get them (ATP §A.3).
//
// The paper restarts "from the earliest sequence number that is yet to be aggregated"; but what a restarted worker computes
// again may differ, and one tensor could mix two gradients. So recovery restarts at operations: what any rank has a result
// of keeps that result, which is broadcast to those that do not; everything else is void, and sent anew by all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "stream/operation.h"

namespace netsum::stream {

// How far a rank is, as it joins.
struct Progress {
  static constexpr std::uint64_t anywhere = UINT64_MAX;
  static constexpr std::uint64_t furthest = UINT64_MAX / 2;  // no job gets there, and none is to begin where numbers wrap

  std::uint64_t next = anywhere;        // the first operation that it has no result of; anywhere: a new process that goes
                                        // on where the others are
  std::uint64_t kept = anywhere;        // the first operation whose result it keeps, at most `next`
  std::vector<std::uint64_t> finished;  // beyond `next`, ascending
  bool operator==(const Progress&) const = default;

  [[nodiscard]] bool sound() const;  // whether a log could have said so
};

// Where all ranks go on together.
struct Resumption {
  std::uint64_t first = 0;                         // the first operation that some rank has no result of
  std::map<std::uint64_t, std::uint32_t> replays;  // operations from there on that others have: whose result holds
  bool operator==(const Resumption&) const = default;
};

// Empty, or why these ranks cannot go on together: one needs a result that another does not keep any more.
[[nodiscard]] std::string agree(std::span<const Progress> ranks, Resumption& out);
// Empty, or why this cannot be what `ranks` of them have agreed on, of which one is `own`: what it is to send again it must
// have, and what it has a result of it must not send anew.
[[nodiscard]] std::string check(const Resumption& resumption, const Progress& own, std::uint32_t ranks);

class OperationLog {
 public:
  static constexpr std::size_t most_results = 4096;

  // `memory`: bytes of results to keep, beside the latest, which is always kept.
  explicit OperationLog(std::size_t memory) : memory_(memory) {}

  [[nodiscard]] Progress progress() const;

  // The ranks have agreed where to go on. Puts inputs back into the tensors of calls without a result, and returns what is
  // to be sent of the calls so far, in order: some are replays, of which this rank may have the result (their number then
  // belongs to no call under way, and they point at the log's own memory).
  [[nodiscard]] std::vector<Operation> resume(const Resumption& resumption);

  // The next call: keeps its input, and returns what to send for it.
  [[nodiscard]] Operation issue(const Operation& call);

  // What was sent under this number has ended: the call has its result, or a replay of what this rank had is over.
  void finish(std::uint64_t number);

  [[nodiscard]] std::uint64_t next_issue() const { return next_issue_; }
  [[nodiscard]] std::size_t bytes_kept() const { return bytes_kept_; }  // of results

 private:
  struct Entry {
    Operation call;
    std::vector<std::byte> bytes;  // the input; once finished, the result
    bool finished = false;
    bool replaying = false;
  };

  [[nodiscard]] Operation as_sent(const Operation& call) const;
  void forget();

  std::size_t memory_, bytes_kept_ = 0;
  std::map<std::uint64_t, Entry> entries_;  // the results kept, then what is under way
  std::uint64_t next_issue_ = 0;
  bool begun_ = false;
  Resumption resumption_;
};

}  // namespace netsum::stream
