// A job at the P4 pipeline as a system for explore(): workers as Algorithm 4 has them, one chunk a packet, of one or more
// quarters, and a network that may do anything. As in chip_job.h every packet that was ever sent may arrive at any time, any
// number of times, or never; and the same holds for each of a packet's further passes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "model/explore.h"
#include "model/p4_pipeline.h"

namespace netsum::model {

struct P4Setup {
  std::uint32_t workers = 2, slots = 1, chunks = 4;  // chunk c is in slot c % slots
  std::uint8_t quarters = 2;
  // Forgets passes that change nothing any more: their sender has the result, so the round is closed in all quarters.
  bool without_idle_passes = true;
};

template <class Rule = P4Rule>
class P4Job {
 public:
  struct Action {
    enum class Kind : std::uint8_t { arrive, pass, take } kind = Kind::arrive;
    std::uint32_t worker = 0, chunk = 0;
    std::size_t number = 0;  // pass, take: of those that wait
  };

  explicit P4Job(const P4Setup& setup) : setup_(setup), pipeline_(setup.slots, setup.workers, setup.quarters) {
    for (std::uint32_t worker = 0; worker < setup.workers; ++worker) {
      for (std::uint32_t slot = 0; slot < setup.slots; ++slot) next_.push_back(slot);
    }
  }

  [[nodiscard]] std::vector<Action> actions() const {
    std::vector<Action> actions;
    for (std::uint32_t worker = 0; worker < setup_.workers; ++worker) {
      for (std::uint32_t chunk = 0; chunk < setup_.chunks; ++chunk) {
        if (chunk <= next_of(worker, chunk % setup_.slots)) actions.push_back({Action::Kind::arrive, worker, chunk});
      }
    }
    std::size_t number = 0;
    for (const Pass& each : passes_) actions.push_back({Action::Kind::pass, each.worker, each.chunk, number++});
    number = 0;
    for (const Pass& each : results_) actions.push_back({Action::Kind::take, each.worker, each.chunk, number++});
    return actions;
  }

  void apply(const Action& action) {
    if (action.kind == Action::Kind::arrive) pass(contribution(action.worker, action.chunk));
    if (action.kind == Action::Kind::pass)
      pass(Pass(*std::next(passes_.begin(), static_cast<std::ptrdiff_t>(action.number))));
    if (action.kind == Action::Kind::take)
      take(Pass(*std::next(results_.begin(), static_cast<std::ptrdiff_t>(action.number))));
    std::erase_if(results_, [&](const Pass& each) { return has_result(each); });
    if (setup_.without_idle_passes) std::erase_if(passes_, [&](const Pass& each) { return has_result(each); });
  }

  void append_state(std::vector<std::byte>& out) const {
    pipeline_.append_state(out);
    for (const std::uint32_t next : next_) append_bytes(out, next);
    append_bytes(out, static_cast<std::uint32_t>(passes_.size()));
    for (const auto* passes : {&passes_, &results_}) {
      for (const Pass& each : *passes) {
        append_bytes(out, each.worker, each.chunk, each.kind, each.quarter, each.added, each.exponent);
        for (const std::uint32_t word : each.words) append_bytes(out, word);
      }
    }
  }

  [[nodiscard]] std::string words(const Action& action) const {
    const std::string packet = "worker " + std::to_string(action.worker) + "'s chunk " + std::to_string(action.chunk);
    if (action.kind == Action::Kind::arrive) return packet + " arrives";
    if (action.kind == Action::Kind::take)
      return "worker " + std::to_string(action.worker) + " takes a result of it: " + packet;
    const Pass& each = *std::next(passes_.begin(), static_cast<std::ptrdiff_t>(action.number));
    return packet + (each.kind == P4Kind::consume ? " adds quarter " : " reads quarter ") + std::to_string(each.quarter);
  }

  // If from now on everything arrives that is sent, and all that is on its way is lost, everything completes.
  void check_liveness() const {
    P4Job kind(*this);
    kind.passes_.clear();
    kind.results_.clear();
    for (int in_vain = 0; in_vain < 2;) {
      const std::vector<std::uint32_t> before = kind.next_;
      for (std::uint32_t worker = 0; worker < setup_.workers; ++worker) {
        for (std::uint32_t slot = 0; slot < setup_.slots; ++slot) {
          if (kind.next_of(worker, slot) >= setup_.chunks) continue;
          kind.pass(kind.contribution(worker, kind.next_of(worker, slot)));
          while (!kind.passes_.empty()) kind.pass(kind.passes_.extract(kind.passes_.begin()).value());
          while (!kind.results_.empty()) kind.take(kind.results_.extract(kind.results_.begin()).value());
        }
      }
      in_vain = before == kind.next_ ? in_vain + 1 : 0;
    }
    for (const std::uint32_t next : kind.next_) {
      if (next < setup_.chunks) throw Wrong("chunk " + std::to_string(next) + " is repeated in vain");
    }
  }

 private:
  static constexpr std::size_t most_quarters = 4;
  // A packet before a pass, or a result: `words` are the payload, two of each quarter.
  struct Pass {
    std::uint32_t worker = 0, chunk = 0;
    P4Kind kind = P4Kind::consume;
    std::uint8_t quarter = 0;
    bool added = false;
    std::uint16_t exponent = 0;
    std::array<std::uint32_t, most_quarters * 2> words{};
    auto operator<=>(const Pass&) const = default;
  };

  [[nodiscard]] std::uint32_t& next_of(std::uint32_t worker, std::uint32_t slot) {
    return next_[worker * setup_.slots + slot];
  }
  [[nodiscard]] std::uint32_t next_of(std::uint32_t worker, std::uint32_t slot) const {
    return next_[worker * setup_.slots + slot];
  }
  [[nodiscard]] bool has_result(const Pass& of) const { return of.chunk < next_of(of.worker, of.chunk % setup_.slots); }

  // A part that is missing, foreign or counted twice shows; so does an exponent of an earlier chunk.
  [[nodiscard]] std::uint32_t value(std::uint32_t worker, std::uint32_t chunk, std::size_t word) const {
    return (1 + chunk * 2 * setup_.quarters + static_cast<std::uint32_t>(word)) << (8 * worker);
  }
  [[nodiscard]] Pass contribution(std::uint32_t worker, std::uint32_t chunk) const {
    Pass pass{worker, chunk};
    pass.exponent = static_cast<std::uint16_t>(200 - 8 * chunk + (worker + chunk) % setup_.workers);
    for (std::size_t word = 0; word < setup_.quarters * std::size_t{2}; ++word)
      pass.words[word] = value(worker, chunk, word);
    return pass;
  }

  void pass(Pass each) {
    const std::uint32_t round = each.chunk / setup_.slots;
    const std::size_t quarter = each.quarter;
    P4Packet packet{each.chunk % setup_.slots,
                    round % 2,
                    round / 2,
                    1U << each.worker,
                    each.exponent,
                    each.words[quarter * 2],
                    each.words[quarter * 2 + 1],
                    each.kind,
                    each.quarter,
                    0,
                    each.added};
    packet.offset = each.quarter * 2U * setup_.slots;
    const P4Outcome outcome = pipeline_.pass(packet);
    each.words[quarter * 2] = packet.low;
    each.words[quarter * 2 + 1] = packet.high;
    each.exponent = packet.exponent;
    each.kind = packet.kind;
    each.quarter = packet.quarter;
    each.added = packet.added;
    if (outcome == P4Outcome::again) passes_.insert(each);
    if (outcome == P4Outcome::to_sender) results_.insert(each);
    if (outcome != P4Outcome::to_all) return;
    for (each.worker = 0; each.worker < setup_.workers; ++each.worker) results_.insert(each);
  }

  void take(const Pass& result) {
    std::uint32_t& next = next_of(result.worker, result.chunk % setup_.slots);
    if (next != result.chunk) return;  // Alg. 4: it waits for another one
    Pass right = contribution(0, result.chunk);
    for (std::uint32_t worker = 1; worker < setup_.workers; ++worker) {
      const Pass other = contribution(worker, result.chunk);
      right.exponent = std::max(right.exponent, other.exponent);
      for (std::size_t word = 0; word < right.words.size(); ++word) right.words[word] += other.words[word];
    }
    const std::string name = "worker " + std::to_string(result.worker) + " receives another ";
    if (result.words != right.words) throw Wrong(name + "sum of chunk " + std::to_string(result.chunk));
    if (result.exponent != right.exponent) throw Wrong(name + "exponent of chunk " + std::to_string(result.chunk));
    next += setup_.slots;
  }

  P4Setup setup_;
  P4Pipeline<Rule> pipeline_;
  std::vector<std::uint32_t> next_;  // [worker][slot]: the chunk in flight; all before have their result
  std::set<Pass> passes_;            // of packets that wait for their next one
  std::set<Pass> results_;           // on their way
};

}  // namespace netsum::model
