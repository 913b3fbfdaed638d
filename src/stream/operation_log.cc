#include "stream/operation_log.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/kernels.h"
#include "stream/tensor.h"

namespace netsum::stream {
namespace {

std::size_t tensor_bytes(const Operation& call) {
  NETSUM_CHECK(call.parts == 1 && call.collective != Collective::reduce);  // every rank has the same result
  if (call.collective == Collective::barrier) return 0;
  return call.collective == Collective::broadcast ? call.elements : call.elements * bytes_of(call.dtype);
}

// As Progress and Resumption hold them.
bool ascend(const std::vector<Progress::Summed>& sets) {
  return sets.size() <= Progress::most_sets &&
         std::is_sorted(sets.begin(), sets.end(), [](const auto& a, const auto& b) { return a.from <= b.from; });
}

// The set for `number`; empty: none is noted.
RankSet set_of(const std::vector<Progress::Summed>& sets, std::uint64_t number) {
  const auto after = std::find_if(sets.begin(), sets.end(), [&](const auto& set) { return set.from > number; });
  return after == sets.begin() ? RankSet() : std::prev(after)->ranks;
}

void note(std::vector<Progress::Summed>& sets, std::uint64_t number, const RankSet& ranks) {
  if (sets.empty() ? !ranks.empty() : !(sets.back().ranks == ranks)) sets.push_back({number, ranks});
}

void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

}  // namespace

bool Progress::sound() const {
  if (next == anywhere) return kept == anywhere && finished.empty();
  return kept <= next && next <= furthest && next - kept <= OperationLog::most_results &&
         finished.size() <= OperationLog::most_results && std::is_sorted(finished.begin(), finished.end()) &&
         (finished.empty() || (finished.front() > next && finished.back() - next <= 2 * OperationLog::most_results)) &&
         ascend(summed);
}

std::string agree(std::span<const Progress> ranks, Resumption& out) {
  out = {};
  std::uint64_t first = Progress::anywhere;
  std::size_t behind = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].next >= first) continue;
    first = ranks[rank].next;
    behind = rank;
  }
  if (first == Progress::anywhere) return {};  // all are new
  out.first = first;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const Progress& progress = ranks[rank];
    if (progress.next == Progress::anywhere) continue;
    if (progress.kept > first) {
      return "rank " + std::to_string(behind) + " must continue with operation " + std::to_string(first) + ", but rank " +
             std::to_string(rank) + " keeps results only from operation " + std::to_string(progress.kept) +
             " on: restart rank " + std::to_string(behind) + " at that operation or later, or restart all ranks";
    }
    for (std::uint64_t number = first; number < progress.next; ++number) {
      out.replays.emplace(number, static_cast<std::uint32_t>(rank));
    }
    for (const std::uint64_t number : progress.finished) {
      if (number >= first) out.replays.emplace(number, static_cast<std::uint32_t>(rank));
    }
  }
  for (const auto& [number, place] : out.replays) note(out.summed, number, set_of(ranks[place].summed, number));
  if (out.summed.size() > Progress::most_sets)
    return "results of more than " + std::to_string(Progress::most_sets) + " sets of ranks are kept";
  return {};
}

std::string check(const Resumption& resumption, const Progress& own, std::uint32_t ranks) {
  const std::uint64_t first = resumption.first;
  const auto& replays = resumption.replays;
  const auto nonsense = [](std::uint64_t number) {
    return "the job cannot continue with operation " + std::to_string(number);
  };
  if (first > Progress::furthest || !ascend(resumption.summed)) return nonsense(first);
  // Bounds how far from `first` a rank's results can be: kept ones, and ones beyond its next operation.
  constexpr std::uint64_t reach = 3 * OperationLog::most_results;
  for (const auto& [number, rank] : replays) {
    if (number < first || number - first > reach || rank >= ranks) return nonsense(number);
  }
  if (own.next == Progress::anywhere) return "";
  if (first > own.next || first < own.kept) return nonsense(first);
  for (std::uint64_t number = first; number < own.next; ++number) {
    if (!replays.contains(number)) return nonsense(number);
  }
  const auto lost =
      std::find_if(own.finished.begin(), own.finished.end(), [&](std::uint64_t n) { return !replays.contains(n); });
  return lost == own.finished.end() ? "" : nonsense(*lost);
}

Progress OperationLog::progress() const {
  Progress progress;
  if (!begun_) return progress;
  progress.next = next_issue_;
  progress.kept = entries_.empty() ? next_issue_ : entries_.begin()->first;
  for (const auto& [number, entry] : entries_) {
    if (!entry.finished) progress.next = std::min(progress.next, number);
    if (entry.finished && number > progress.next) progress.finished.push_back(number);
    if (entry.finished) note(progress.summed, number, entry.summed);
  }
  if (auto& sets = progress.summed; sets.size() > Progress::most_sets) {  // older results are of no use to others
    sets.erase(sets.begin(), sets.end() - Progress::most_sets);
    progress.kept = std::min(progress.next, sets.front().from);
  }
  return progress;
}

std::vector<Operation> OperationLog::resume(const Resumption& resumption) {
  if (!begun_) next_issue_ = resumption.first;
  begun_ = true;
  resumption_ = resumption;
  std::vector<Operation> operations;
  for (auto& [number, entry] : entries_) {
    entry.replaying = entry.finished && number >= resumption.first;
    if (number < resumption.first) continue;
    NETSUM_CHECK(!entry.finished || resumption.replays.contains(number));
    operations.push_back(as_sent(entry));
  }
  return operations;
}

Operation OperationLog::issue(const Operation& call) {
  NETSUM_CHECK(begun_ && call.number == next_issue_);
  ++next_issue_;
  Entry& entry = entries_[call.number];
  entry.call = call;
  entry.bytes = take(tensor_bytes(call));
  return as_sent(entry);
}

RankSet OperationLog::finish(std::uint64_t number) {
  Entry& entry = entries_.at(number);
  if (!entry.finished) {
    if (entry.bytes.size >= kernels::beyond_caches_from) {
      kernels::copy_past_caches(static_cast<std::byte*>(result_of(entry.call)), entry.bytes.memory.get(), entry.bytes.size);
    } else {
      copy(result_of(entry.call), entry.bytes.memory.get(), entry.bytes.size);
    }
    bytes_kept_ += entry.bytes.size;
    entry.summed = resumption_.replays.contains(number) ? set_of(resumption_.summed, number) : resumption_.members;
  }
  entry.finished = true;
  entry.replaying = false;
  const RankSet summed = entry.summed;
  forget();
  return summed;
}

std::uint64_t OperationLog::behind() const {
  const auto& replays = resumption_.replays;
  return replays.empty() || replays.rbegin()->first < next_issue_ ? 0 : replays.rbegin()->first + 1 - next_issue_;
}

OperationLog::Bytes OperationLog::take(std::size_t size) {
  const auto fits = std::find_if(spare_.begin(), spare_.end(),
                                 [&](const Bytes& each) { return each.capacity >= size && each.capacity / 2 <= size; });
  if (fits == spare_.end()) return {std::make_unique_for_overwrite<std::byte[]>(size), size, size};
  Bytes taken = std::move(*fits);
  spare_.erase(fits);
  taken.size = size;
  return taken;
}

// Drops the oldest results first, and none of a later operation than one without a result: a rank's results are a contiguous
// range up to its next operation, and those beyond.
void OperationLog::forget() {
  while (entries_.size() > 1 && (bytes_kept_ > memory_ || entries_.size() > most_results)) {
    const auto oldest = entries_.begin();
    const auto second = std::next(oldest);
    if (!oldest->second.finished || oldest->second.replaying || !second->second.finished) return;
    bytes_kept_ -= oldest->second.bytes.size;
    if (oldest->second.bytes.capacity >= least_spare) spare_.push_back(std::move(oldest->second.bytes));
    if (spare_.size() > most_spare) spare_.erase(spare_.begin());
    entries_.erase(oldest);
  }
}

// A call that already has a result is sent as a broadcast of the result. The call's signature is in the tag, so mismatched
// calls are still detected. A broadcast from a rank that is gone comes from the next one that is there.
Operation OperationLog::as_sent(const Entry& entry) const {
  const Operation& call = entry.call;
  std::byte* const result = entry.bytes.memory.get();
  const auto found = resumption_.replays.find(call.number);
  if (found == resumption_.replays.end()) {
    Operation sent = call;
    if (reduces(call)) {
      sent.out = result;
    } else {
      copy(result, call.data, entry.bytes.size);
      sent.data = result;
    }
    if (const RankSet& members = resumption_.members; !members.empty())
      sent.root = members.place_of(call.root) % members.size();
    return sent;
  }
  Operation replay;
  replay.number = call.number;
  replay.collective = Collective::broadcast;
  replay.elements = tensor_bytes(call);
  replay.root = found->second;
  replay.tag = signature_of(call, 0);
  replay.data = result;
  return replay;
}

}  // namespace netsum::stream
