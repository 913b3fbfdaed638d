// A rank's log of its calls, so that a job can go on after one of its processes died: those without a result, which are sent
// again, and the latest results, for ranks that did not get them (ATP §A.3).
//
// The paper restarts "from the earliest sequence number that is yet to be aggregated". But a restarted worker may compute
// different values, and one tensor could mix two gradients. So recovery restarts at operations: if any rank has an
// operation's result, that result stands and is broadcast to the other ranks; all ranks send all other operations again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bitmap.h"
#include "stream/operation.h"

namespace netsum::stream {

// How far a rank has got when it joins.
struct Progress {
  static constexpr std::uint64_t anywhere = UINT64_MAX;
  static constexpr std::uint64_t furthest = UINT64_MAX / 2;  // no job gets this far, and none may begin where numbers wrap

  std::uint64_t next = anywhere;        // the first operation without a result here; anywhere: a new process, which goes
                                        // on where the others are
  std::uint64_t kept = anywhere;        // the first operation whose result is kept, at most `next`
  std::vector<std::uint64_t> finished;  // beyond `next`, ascending
  // The ranks whose values results have in them, if ranks may be missing: of results from `from` on, until the next entry.
  struct Summed {
    std::uint64_t from = 0;
    RankSet ranks{};
    bool operator==(const Summed&) const = default;
  };
  static constexpr std::size_t most_sets = 64;
  std::vector<Summed> summed{};  // from `kept` on, ascending
  bool operator==(const Progress&) const = default;

  [[nodiscard]] bool sound() const;  // whether a log can be in this state
};

// Where all ranks resume together, and which ranks these are.
struct Resumption {
  std::uint64_t first = 0;                         // the first operation without a result on some rank
  std::map<std::uint64_t, std::uint32_t> replays;  // later operations that have a result: the place of the rank that has it
  std::vector<Progress::Summed> summed{};          // of these operations' results
  bool boundary = false;                           // ranks let new processes in, which begin with the others' next call
  RankSet members{};                               // empty: all ranks. A member's place among them is its number in packets.
  bool operator==(const Resumption&) const = default;
};

// Empty, or why these ranks cannot resume: one needs a result that no other keeps any more.
[[nodiscard]] std::string agree(std::span<const Progress> ranks, Resumption& out);
// Empty, or why `ranks` ranks, one of them at `own`, cannot have agreed on this: `own` must still have all that it is to
// replay, and must not send an operation again that it has a result of.
[[nodiscard]] std::string check(const Resumption& resumption, const Progress& own, std::uint32_t ranks);

class OperationLog {
 public:
  static constexpr std::size_t most_results = 4096;

  // `memory`: bytes of results to keep besides the latest, which is always kept.
  explicit OperationLog(std::size_t memory) : memory_(memory) {}

  [[nodiscard]] Progress progress() const;

  // The ranks have agreed where to resume. Returns the operations to send for the calls so far, in order. Some are replays.
  // If this rank has a replay's result, the number belongs to no pending call.
  [[nodiscard]] std::vector<Operation> resume(const Resumption& resumption);

  // The next call. Returns the operation to send: its results go into the log's memory, so that the call's input is there
  // until it ends.
  [[nodiscard]] Operation issue(const Operation& call);

  // The operation sent under this number has ended: the call gets its result, or the replay of this rank's result is over.
  // Returns the ranks whose values the result has in it; empty: all.
  RankSet finish(std::uint64_t number);

  [[nodiscard]] std::uint64_t next_issue() const { return next_issue_; }
  // How many of the next calls have a result already, which other ranks formed without this one.
  [[nodiscard]] std::uint64_t behind() const;
  [[nodiscard]] std::size_t bytes_kept() const { return bytes_kept_; }  // of results

 private:
  // Not zeroed. Taken from earlier calls, where that fits: to have fresh pages takes longer than to fill them.
  struct Bytes {
    std::unique_ptr<std::byte[]> memory;
    std::size_t size = 0, capacity = 0;
  };
  struct Entry {
    Operation call;
    Bytes bytes;     // the result, once finished
    RankSet summed;  // of a result
    bool finished = false;
    bool replaying = false;
  };

  static constexpr std::size_t most_spare = 4, least_spare = std::size_t{64} << 10;  // bytes

  [[nodiscard]] Operation as_sent(const Entry& entry) const;
  [[nodiscard]] Bytes take(std::size_t size);
  void forget();

  std::size_t memory_, bytes_kept_ = 0;
  std::map<std::uint64_t, Entry> entries_;  // the results kept, then the pending calls
  std::vector<Bytes> spare_;                // oldest first
  std::uint64_t next_issue_ = 0;
  bool begun_ = false;
  Resumption resumption_;
};

}  // namespace netsum::stream
