// A job at a chip as a system for explore(): the shipped register rule (or one that lacks a part), workers as Algorithm 4
// has them, one int32 a chunk, and a network that may do anything.
//
// Every packet that was ever sent may arrive at any time, any number of times, or never, as in job.h. The same holds for a
// packet's second pass, which is more than a chip does: passes may come late, be lost, and even happen twice.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "model/explore.h"
#include "protocol/switchml/chip_slots.h"

namespace netsum::model {

struct ChipSetup {
  std::uint32_t workers = 2, slots = 1, chunks = 4;  // chunk c is in slot c % slots
  // Forgets second passes that change nothing any more: their worker has the result, so the round is closed. A rule that
  // lacks a part may not have this.
  bool without_idle_passes = true;
  // In which the gate was passed. Not so: what a packet does to the sums comes at any time before its second pass.
  bool sums_in_order = true;
};

template <class Rule>
class ChipJob {
 public:
  struct Action {
    enum class Kind : std::uint8_t { arrive, sum_up, harvest, take } kind = Kind::arrive;
    std::uint32_t worker = 0, chunk = 0;
    std::uint32_t sum = 0;  // take: what the result says
    std::uint16_t exponent = 0;
  };

  explicit ChipJob(const ChipSetup& setup)
      : setup_(setup),
        slots_(setup.slots, setup.workers),
        sums_(std::size_t{setup.slots} * 2),
        next_(std::size_t{setup.workers} * setup.slots) {
    for (std::uint32_t worker = 0; worker < setup.workers; ++worker) {
      for (std::uint32_t slot = 0; slot < setup.slots; ++slot) next_of(worker, slot) = slot;
    }
  }

  [[nodiscard]] std::vector<Action> actions() const {
    std::vector<Action> actions;
    for (std::uint32_t worker = 0; worker < setup_.workers; ++worker) {
      for (std::uint32_t chunk = 0; chunk < setup_.chunks; ++chunk) {
        if (chunk <= next_of(worker, chunk % setup_.slots)) actions.push_back({Action::Kind::arrive, worker, chunk});
      }
    }
    for (const auto& [pass, entry] : to_sum_up_) actions.push_back({Action::Kind::sum_up, pass.worker, pass.chunk});
    for (const Pass& pass : passes_) {
      if (!to_sum_up_.contains(pass)) actions.push_back({Action::Kind::harvest, pass.worker, pass.chunk});
    }
    for (const Result& r : results_) actions.push_back({Action::Kind::take, r.to, r.chunk, r.sum, r.exponent});
    return actions;
  }

  void apply(const Action& action) {
    switch (action.kind) {
      case Action::Kind::arrive:
        arrive({action.worker, action.chunk});
        break;
      case Action::Kind::sum_up:
        sum_up(*to_sum_up_.find({action.worker, action.chunk}));
        to_sum_up_.erase({action.worker, action.chunk});
        break;
      case Action::Kind::harvest:
        harvest({action.worker, action.chunk});
        break;
      case Action::Kind::take:
        take({action.worker, action.chunk, action.sum, action.exponent});
        break;
    }
    forget();
  }

  void append_state(std::vector<std::byte>& out) const {
    slots_.append_state(out);
    for (const auto& sum : sums_) out.insert(out.end(), sum.begin(), sum.end());
    for (const std::uint32_t next : next_) append_bytes(out, next);
    append_bytes(out, static_cast<std::uint32_t>(passes_.size()));
    for (const Pass& pass : passes_) append_bytes(out, pass.worker, pass.chunk);
    append_bytes(out, static_cast<std::uint32_t>(to_sum_up_.size()));
    for (const auto& [pass, entry] : to_sum_up_) append_bytes(out, pass.worker, pass.chunk, entry.first);
    for (const Result& result : results_) append_bytes(out, result.to, result.chunk, result.sum, result.exponent);
  }

  [[nodiscard]] std::string words(const Action& action) const {
    if (action.kind == Action::Kind::take) return name_of(action.worker, "takes chunk ") + std::to_string(action.chunk);
    const std::string packet = name_of(action.worker, "sent chunk ") + std::to_string(action.chunk);
    if (action.kind == Action::Kind::sum_up) return packet + ": it comes to the sums";
    return packet + (action.kind == Action::Kind::arrive ? ", and the switch receives it" : ": its second pass");
  }

  // If from now on everything arrives that is sent, and all that is on its way is lost, everything completes.
  void check_liveness() const {
    ChipJob kind(*this);
    kind.passes_.clear();
    kind.results_.clear();
    for (bool going = true; going;) {
      going = false;
      for (std::uint32_t worker = 0; worker < setup_.workers; ++worker) {
        for (std::uint32_t slot = 0; slot < setup_.slots; ++slot) {
          const std::uint32_t chunk = kind.next_of(worker, slot);
          if (chunk >= setup_.chunks) continue;
          kind.arrive({worker, chunk});
          while (!kind.passes_.empty()) {
            const Pass pass = *kind.passes_.begin();
            kind.passes_.erase(kind.passes_.begin());
            kind.harvest(pass);
          }
          going |= !kind.results_.empty();
          while (!kind.results_.empty()) {
            const Result result = *kind.results_.begin();
            kind.results_.erase(kind.results_.begin());
            kind.take(result);
          }
        }
      }
    }
    for (std::uint32_t worker = 0; worker < setup_.workers; ++worker) {
      for (std::uint32_t slot = 0; slot < setup_.slots; ++slot) {
        const std::uint32_t chunk = kind.next_of(worker, slot);
        if (chunk < setup_.chunks) throw Wrong(name_of(worker, "repeats chunk ") + std::to_string(chunk) + " in vain");
      }
    }
  }

 private:
  using Slots = switchml::BasicChipSlots<Rule>;
  struct Pass {
    std::uint32_t worker, chunk;
    auto operator<=>(const Pass&) const = default;
  };
  struct Result {
    std::uint32_t to, chunk, sum;
    std::uint16_t exponent;
    auto operator<=>(const Result&) const = default;
  };

  [[nodiscard]] static std::string name_of(std::uint32_t worker, const char* does) {
    return std::string("worker ").append(std::to_string(worker)).append(" ").append(does);
  }

  [[nodiscard]] std::uint32_t& next_of(std::uint32_t worker, std::uint32_t slot) {
    return next_[std::size_t{worker} * setup_.slots + slot];
  }
  [[nodiscard]] std::uint32_t next_of(std::uint32_t worker, std::uint32_t slot) const {
    return next_[std::size_t{worker} * setup_.slots + slot];
  }

  [[nodiscard]] switchml::ChipRound round_of(std::uint32_t chunk) const {
    const std::uint32_t number = chunk / setup_.slots;
    return {chunk % setup_.slots, static_cast<std::uint8_t>(number % 2), number / 2};
  }
  [[nodiscard]] std::byte* sum_of(const switchml::ChipRound& round) {
    return sums_[std::size_t{round.slot} * 2 + round.version].data();
  }

  // A part that is missing, foreign or counted twice shows; so does an exponent of an earlier chunk.
  [[nodiscard]] static std::uint32_t value(std::uint32_t worker, std::uint32_t chunk) { return (1 + chunk) << (8 * worker); }
  [[nodiscard]] std::uint16_t exponent(std::uint32_t worker, std::uint32_t chunk) const {
    return static_cast<std::uint16_t>(200 - 8 * chunk + (worker + chunk) % setup_.workers);
  }

  void arrive(const Pass& packet) {
    const switchml::ChipRound round = round_of(packet.chunk);
    const auto entry = slots_.consume(round, packet.worker);
    if (entry.adds) {
      if (setup_.sums_in_order) {
        sum_up({packet, entry});
      } else {
        to_sum_up_.emplace(packet, entry);
      }
    }
    if (entry.again) passes_.insert(packet);
  }

  void sum_up(const std::pair<const Pass, typename Slots::Entry>& of) {
    const auto& [packet, entry] = of;
    const switchml::ChipRound round = round_of(packet.chunk);
    std::array<std::byte, 4> payload;
    store_be(payload.data(), value(packet.worker, packet.chunk));
    const std::uint16_t own = exponent(packet.worker, packet.chunk);
    slots_.add(round, entry, {own, own}, payload, sum_of(round));
  }

  void harvest(const Pass& packet) {
    const switchml::ChipRound round = round_of(packet.chunk);
    const bool for_all = slots_.harvest(round);
    const auto sum = load_be<std::uint32_t>(sum_of(round));
    for (std::uint32_t worker = 0; worker < setup_.workers; ++worker) {
      if (for_all || worker == packet.worker) results_.insert({worker, packet.chunk, sum, slots_.exponents(round)[0]});
    }
  }

  void take(const Result& result) {
    std::uint32_t& next = next_of(result.to, result.chunk % setup_.slots);
    if (next != result.chunk) return;  // Alg. 4: it waits for another one
    std::uint32_t sum = 0;
    std::uint16_t largest = 0;
    for (std::uint32_t worker = 0; worker < setup_.workers; ++worker) {
      sum += value(worker, result.chunk);
      largest = std::max(largest, exponent(worker, result.chunk));
    }
    if (result.sum != sum) {
      std::array<char, 48> text{};
      std::snprintf(text.data(), text.size(), "receives %08x for chunk %u, not %08x", result.sum, result.chunk, sum);
      throw Wrong(name_of(result.to, text.data()));
    }
    if (result.exponent != largest) throw Wrong(name_of(result.to, "receives another exponent"));
    next += setup_.slots;
  }

  // Results that their worker would not take, too.
  void forget() {
    std::erase_if(results_, [&](const Result& r) { return r.chunk < next_of(r.to, r.chunk % setup_.slots); });
    if (!setup_.without_idle_passes) return;
    std::erase_if(passes_, [&](const Pass& pass) { return pass.chunk < next_of(pass.worker, pass.chunk % setup_.slots); });
  }

  ChipSetup setup_;
  Slots slots_;
  std::vector<std::array<std::byte, 4>> sums_;
  std::vector<std::uint32_t> next_;                  // [worker][slot]: the chunk in flight; all before have their result
  std::set<Pass> passes_;                            // packets that may have a second pass
  std::map<Pass, typename Slots::Entry> to_sum_up_;  // that have passed the gate
  std::set<Result> results_;                         // on their way
};

}  // namespace netsum::model
