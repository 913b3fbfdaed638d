// ATP's packets at a chip as a system for explore(): the shipped register rule (or one that lacks a part), ranks that send
// and resend what their window allows, one int32 for each half of a chunk, and a network that may do anything.
//
// Every packet that was ever sent may arrive at any time, any number of times, or never. Its second pass may come late, when
// others have had theirs, or never, which is more than a chip does. The control plane may free either half at any time.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "model/explore.h"
#include "protocol/atp/chip_slots.h"

namespace netsum::model {

struct AtpChipSetup {
  std::uint32_t workers = 2, chunks = 3, window = 2;  // all chunks ask for one slot
  std::size_t passes = 2;                             // the most that are late at once; others are lost
  bool disagree = false;                              // the last worker issues another call
  bool one_owner = false;                             // as the paper's: the second half believes what the first pass found
};

template <class Rule>
class AtpChipJob {
 public:
  struct Action {
    enum class Kind : std::uint8_t { arrive, result, pass, free, take } kind = Kind::arrive;
    std::uint32_t worker = 0, chunk = 0;  // free: the half
    bool resend = false;
    std::size_t pass = 0;
  };

  explicit AtpChipJob(const AtpChipSetup& setup) : setup_(setup), base_(setup.workers) {}

  [[nodiscard]] std::vector<Action> actions() const {
    using Kind = typename Action::Kind;
    std::vector<Action> actions;
    for (std::uint32_t worker = 0; worker < setup_.workers; ++worker) {
      for (std::uint32_t chunk = 0; chunk < sent_by(worker); ++chunk) {
        for (const bool resend : {false, true}) actions.push_back({Kind::arrive, worker, chunk, resend});
      }
      if (base_[worker] < sent_by_all()) actions.push_back({Kind::take, worker});
    }
    for (std::uint32_t chunk = 0; chunk < sent_by_all(); ++chunk) actions.push_back({Kind::result, 0, chunk});
    for (std::size_t pass = 0; pass < passes_.size(); ++pass) actions.push_back({Kind::pass, 0, 0, false, pass});
    for (const std::uint32_t half : {0U, 1U}) {
      if (slots_.has(0, half)) actions.push_back({Kind::free, 0, half});
    }
    return actions;
  }

  void apply(const Action& action) {
    switch (action.kind) {
      case Action::Kind::arrive:
        arrive(action.worker, action.chunk, action.resend);
        break;
      case Action::Kind::result:
        slots_.leave(0, 0, high, action.chunk);
        later({true, 0, action.chunk, false, {}, 0});
        break;
      case Action::Kind::pass: {
        const Pass pass = *std::next(passes_.begin(), static_cast<std::ptrdiff_t>(action.pass));
        passes_.erase(pass);
        second_pass(pass);
        break;
      }
      case Action::Kind::free:
        slots_.free(0, action.chunk);
        break;
      case Action::Kind::take:
        ++base_[action.worker];
        break;
    }
  }

  void append_state(std::vector<std::byte>& out) const {
    slots_.append_state(out);
    for (const std::size_t half : {0, 1}) {
      if (slots_.has(0, half)) out.insert(out.end(), sums_.begin() + 4 * half, sums_.begin() + 4 * half + 4);
    }
    for (const std::uint32_t base : base_) append_bytes(out, base);
    for (const Pass& p : passes_) append_bytes(out, p.of_result, p.worker, p.chunk, p.resend, p.bitmap(), p.sum);
  }

  [[nodiscard]] std::string words(const Action& action) const {
    const std::string chunk = std::to_string(action.chunk), worker = "worker " + std::to_string(action.worker);
    switch (action.kind) {
      case Action::Kind::arrive:
        return worker + (action.resend ? " resends chunk " : " sends chunk ") + chunk;
      case Action::Kind::result:
        return "the result of chunk " + chunk + " passes";
      case Action::Kind::pass:
        return "second pass number " + std::to_string(action.pass) + " of those that are late";
      case Action::Kind::free:
        return "the control plane frees half " + chunk;
      case Action::Kind::take:
        return worker + " takes a result";
    }
    return "";
  }

  // Whatever the slot holds, and although every first packet is lost: a worker's values get to the server with the third
  // resend, in a sum or past the slot.
  void check_liveness() const {
    for (std::uint32_t worker = 0; worker < setup_.workers; ++worker) {
      if (base_[worker] >= setup_.chunks) continue;
      AtpChipJob kind(*this);
      kind.passes_.clear();
      kind.reached_ = false;
      for (int resends = 0; resends < 3; ++resends) {
        kind.arrive(worker, base_[worker], true);
        while (!kind.passes_.empty()) kind.second_pass(kind.passes_.extract(kind.passes_.begin()).value());
      }
      if (!kind.reached_) throw Wrong("worker " + std::to_string(worker) + " resends in vain");
    }
  }

 private:
  using Slots = netsum::atp::BasicChipSlots<Rule>;
  using Meeting = typename Slots::Meeting;
  static constexpr std::uint32_t high = 1 << 16;

  struct Pass {
    bool of_result = false;
    std::uint32_t worker = 0, chunk = 0;
    bool resend = false;
    Meeting first;
    std::uint32_t sum = 0;  // of the first half, as the first pass left it
    [[nodiscard]] std::uint32_t bitmap() const {
      return first.bitmap << 3 | std::uint32_t{first.joins} << 2 | std::uint32_t{first.adds} << 1 |
             std::uint32_t{first.stores};
    }
    bool operator<(const Pass& o) const {
      return std::tuple(of_result, worker, chunk, resend, bitmap(), sum) <
             std::tuple(o.of_result, o.worker, o.chunk, o.resend, o.bitmap(), o.sum);
    }
  };

  [[nodiscard]] std::uint32_t sent_by(std::uint32_t worker) const {
    return std::min(base_[worker] + setup_.window, setup_.chunks);
  }
  [[nodiscard]] std::uint32_t sent_by_all() const {
    std::uint32_t all = setup_.chunks;
    for (std::uint32_t worker = 0; worker < setup_.workers; ++worker) all = std::min(all, sent_by(worker));
    return all;
  }
  [[nodiscard]] bool dissents(std::uint32_t worker) const { return setup_.disagree && worker + 1 == setup_.workers; }

  // A part that is missing, foreign or counted twice shows.
  [[nodiscard]] static std::uint32_t value(std::uint32_t worker, std::uint32_t chunk, std::size_t half) {
    return static_cast<std::uint32_t>(1 + 2 * chunk + half) << (8 * worker);
  }
  [[nodiscard]] netsum::atp::ChipPacket packet(std::uint32_t worker, std::uint32_t chunk, bool resend) const {
    return {high, chunk, dissents(worker) ? 8U : 7U, 1U << worker, setup_.window, resend};
  }
  void pass_half(std::size_t half, const Meeting& meeting, std::uint32_t worker, std::uint32_t chunk) {
    std::array<std::byte, 8> payload;
    for (const std::size_t each : {0, 1}) store_le(payload.data() + 4 * each, value(worker, chunk, each));
    Slots::add(half, meeting, payload, sums_.data());
  }
  [[nodiscard]] std::uint32_t sum_of(std::size_t half) const { return load_le<std::uint32_t>(sums_.data() + 4 * half); }

  void arrive(std::uint32_t worker, std::uint32_t chunk, bool resend) {
    const Meeting first = slots_.meet(0, 0, packet(worker, chunk, resend));
    if (!first.joins) return void(reached_ = true);  // it passes on
    pass_half(0, first, worker, chunk);
    later({false, worker, chunk, resend, first, sum_of(0)});
  }
  void later(const Pass& pass) {
    if (passes_.size() < setup_.passes) passes_.insert(pass);
  }

  void second_pass(const Pass& pass) {
    if (pass.of_result) return void(slots_.leave(0, 1, high, pass.chunk));
    const Meeting second = setup_.one_owner ? pass.first : slots_.meet(0, 1, packet(pass.worker, pass.chunk, pass.resend));
    if (!second.joins) return;
    pass_half(1, second, pass.worker, pass.chunk);
    const std::uint32_t everyone = atp_chip_everyone(setup_.workers);
    if (!Slots::goes_up(pass.first, second, pass.resend, everyone)) return;
    reached_ = true;
    bool dissent = false, consent = false;
    std::uint32_t sums[2] = {0, 0};
    for (std::uint32_t worker = 0; worker < setup_.workers; ++worker) {
      if ((second.bitmap >> worker & 1) == 0) continue;
      (dissents(worker) ? dissent : consent) = true;
      for (const std::size_t half : {0, 1}) sums[half] += value(worker, pass.chunk, half);
    }
    if (dissent && consent) throw Wrong("values of two calls are in one sum");
    if (pass.sum != sums[0]) throw Wrong("a sum's first half is wrong");
    if (sum_of(1) != sums[1]) throw Wrong("a sum's second half is wrong");
  }

  AtpChipSetup setup_;
  std::vector<std::uint32_t> base_;  // by worker: it has the results of all chunks below
  Slots slots_{1};
  std::array<std::byte, 8> sums_{};
  std::set<Pass> passes_;  // second ones, that are late
  bool reached_ = false;
};

}  // namespace netsum::model
