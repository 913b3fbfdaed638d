// A job at chips as a system for explore(): the shipped register rule (or one that lacks a part), workers as Algorithm 4 has
// them, one int32 a chunk, and a network that may do anything. One chip, or a root with a leaf for each rack.
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
  // Forgets second passes, and packets between switches, that change nothing any more: their sender has the result, so the
  // round is closed. A rule that lacks a part may not have this.
  bool without_idle_passes = true;
  // In which the gate was passed. Not so: what a packet does to the sums comes at any time before its second pass.
  bool sums_in_order = true;
  std::vector<std::uint32_t> racks = {};  // of a tree: how many workers are at each leaf, in their order
  bool stores_results = true;             // a leaf does: repeats are answered with them
  bool begins_anew = false;               // the first leaf may restart once, with empty registers
};

template <class Rule>
class ChipJob {
 public:
  // A sender is a worker, or a leaf: they are numbered in this order.
  struct Action {
    enum class Kind : std::uint8_t { arrive, sum_up, pass, take, restart } kind = Kind::arrive;
    std::uint32_t sender = 0, chunk = 0;                 // take: the receiver
    std::uint32_t sum = 0;                               // that the packet carries
    std::uint16_t exponent = 0;                          // that the packet carries
    switchml::ChipPass pass = switchml::ChipPass::none;  // pass: what for
  };

  explicit ChipJob(const ChipSetup& setup) : setup_(setup), may_restart_(setup.begins_anew) {
    const auto leaves = static_cast<std::uint32_t>(setup.racks.size());
    std::uint32_t at_root = 0;
    places_.resize(setup.workers + leaves);
    for (std::uint32_t leaf = 0; leaf < leaves; ++leaf) places_[setup.workers + leaf] = {0, at_root++};
    std::uint32_t worker = 0;
    for (std::uint32_t leaf = 0; leaf < leaves; ++leaf) {
      for (std::uint32_t bit = 0; bit < setup.racks[leaf]; ++bit) places_[worker++] = {1 + leaf, bit};
    }
    while (worker < setup.workers) places_[worker++] = {0, at_root++};
    switches_.push_back(switch_of(at_root, true));
    for (const std::uint32_t members : setup.racks) switches_.push_back(switch_of(members, false));
    for (std::size_t sender = 0; sender < places_.size(); ++sender) {
      for (std::uint32_t slot = 0; slot < setup.slots; ++slot) next_.push_back(slot);
    }
  }

  [[nodiscard]] std::vector<Action> actions() const {
    std::vector<Action> actions;
    for (std::uint32_t worker = 0; worker < setup_.workers; ++worker) {
      for (std::uint32_t chunk = 0; chunk < setup_.chunks; ++chunk) {
        if (chunk > next_of(worker, chunk % setup_.slots)) continue;
        const Packet packet = contribution(worker, chunk);
        actions.push_back({Action::Kind::arrive, worker, chunk, packet.sum, packet.exponent});
      }
    }
    for (const Packet& p : upstream_) actions.push_back({Action::Kind::arrive, p.node, p.chunk, p.sum, p.exponent});
    for (const auto& [packet, entry] : to_sum_up_) actions.push_back({Action::Kind::sum_up, packet.node, packet.chunk});
    for (const Pass& pass : passes_) {
      if (!is_to_sum_up(pass.sender, pass.chunk))
        actions.push_back({Action::Kind::pass, pass.sender, pass.chunk, 0, 0, pass.what});
    }
    for (const Packet& r : results_) actions.push_back({Action::Kind::take, r.node, r.chunk, r.sum, r.exponent});
    if (may_restart_) actions.push_back({Action::Kind::restart});
    return actions;
  }

  void apply(const Action& action) {
    const Packet packet{action.sender, action.chunk, action.sum, action.exponent};
    switch (action.kind) {
      case Action::Kind::arrive:
        arrive(packet);
        break;
      case Action::Kind::sum_up: {
        const auto found = std::find_if(to_sum_up_.begin(), to_sum_up_.end(), [&](const auto& each) {
          return each.first.node == action.sender && each.first.chunk == action.chunk;
        });
        sum_up(found->first, found->second);
        to_sum_up_.erase(found);
        break;
      }
      case Action::Kind::pass:
        second_pass({action.sender, action.chunk, action.pass});
        break;
      case Action::Kind::take:
        take(packet);
        break;
      case Action::Kind::restart:
        restart();
        break;
    }
    forget();
  }

  void append_state(std::vector<std::byte>& out) const {
    for (const Switch& each : switches_) {
      each.slots.append_state(out);
      for (const auto& sum : each.sums) out.insert(out.end(), sum.begin(), sum.end());
    }
    for (const std::uint32_t next : next_) append_bytes(out, next);
    append_bytes(out, may_restart_, static_cast<std::uint32_t>(passes_.size()),
                 static_cast<std::uint32_t>(upstream_.size()));
    for (const Pass& pass : passes_) append_bytes(out, pass.sender, pass.chunk, pass.what);
    append_bytes(out, static_cast<std::uint32_t>(to_sum_up_.size()));
    for (const auto& [packet, entry] : to_sum_up_) append_bytes(out, packet.node, packet.chunk, entry.first);
    for (const auto* packets : {&upstream_, &results_}) {
      for (const Packet& p : *packets) append_bytes(out, p.node, p.chunk, p.sum, p.exponent);
    }
  }

  [[nodiscard]] std::string words(const Action& action) const {
    if (action.kind == Action::Kind::restart) return "leaf 0 restarts";
    const std::string chunk = std::to_string(action.chunk);
    if (action.kind == Action::Kind::take) return name_of(action.sender) + " takes the result of chunk " + chunk;
    const std::string packet = name_of(action.sender) + " sent chunk " + chunk;
    if (action.kind == Action::Kind::sum_up) return packet + ": it comes to the sums";
    return packet + (action.kind == Action::Kind::arrive ? ", and its switch receives it" : ": its second pass");
  }

  // If from now on everything arrives that is sent, and all that is on its way is lost, everything completes.
  void check_liveness() const {
    ChipJob kind(*this);
    kind.passes_.clear();
    kind.upstream_.clear();
    kind.results_.clear();
    for (int in_vain = 0; in_vain < 2;) {
      const std::vector<std::uint32_t> before = kind.next_;
      for (std::uint32_t worker = 0; worker < setup_.workers; ++worker) {
        for (std::uint32_t slot = 0; slot < setup_.slots; ++slot) {
          const std::uint32_t chunk = kind.next_of(worker, slot);
          if (chunk >= setup_.chunks) continue;
          kind.arrive(kind.contribution(worker, chunk));
          kind.deliver_all();
        }
      }
      in_vain = before == kind.next_ ? in_vain + 1 : 0;
    }
    for (std::uint32_t worker = 0; worker < setup_.workers; ++worker) {
      for (std::uint32_t slot = 0; slot < setup_.slots; ++slot) {
        const std::uint32_t chunk = kind.next_of(worker, slot);
        if (chunk < setup_.chunks) throw Wrong(name_of(worker) + " repeats chunk " + std::to_string(chunk) + " in vain");
      }
    }
  }

 private:
  using Slots = switchml::BasicChipSlots<Rule>;
  struct Place {
    std::uint32_t at = 0, bit = 0;  // the switch: 0 is the root, 1 + i leaf i
  };
  struct Switch {
    Slots slots;
    std::vector<std::array<std::byte, 4>> sums;
  };
  struct Pass {
    std::uint32_t sender, chunk;
    switchml::ChipPass what;
    auto operator<=>(const Pass&) const = default;
  };
  struct Packet {
    std::uint32_t node, chunk, sum;  // upstream the sender, downstream the receiver
    std::uint16_t exponent;
    auto operator<=>(const Packet&) const = default;
  };

  [[nodiscard]] Switch switch_of(std::uint32_t members, bool root) const {
    return {Slots(setup_.slots, members, root), std::vector<std::array<std::byte, 4>>(std::size_t{setup_.slots} * 2)};
  }

  [[nodiscard]] bool is_worker(std::uint32_t sender) const { return sender < setup_.workers; }
  [[nodiscard]] std::string name_of(std::uint32_t sender) const {
    return is_worker(sender) ? "worker " + std::to_string(sender) : "leaf " + std::to_string(sender - setup_.workers);
  }
  // The switch behind a sender that is a leaf.
  [[nodiscard]] std::uint32_t leaf_of(std::uint32_t sender) const { return 1 + sender - setup_.workers; }

  [[nodiscard]] std::uint32_t& next_of(std::uint32_t sender, std::uint32_t slot) {
    return next_[std::size_t{sender} * setup_.slots + slot];
  }
  [[nodiscard]] std::uint32_t next_of(std::uint32_t sender, std::uint32_t slot) const {
    return next_[std::size_t{sender} * setup_.slots + slot];
  }
  [[nodiscard]] bool has_result(std::uint32_t sender, std::uint32_t chunk) const {
    return chunk < next_of(sender, chunk % setup_.slots);
  }
  [[nodiscard]] bool is_to_sum_up(std::uint32_t sender, std::uint32_t chunk) const {
    return std::any_of(to_sum_up_.begin(), to_sum_up_.end(),
                       [&](const auto& each) { return each.first.node == sender && each.first.chunk == chunk; });
  }

  [[nodiscard]] switchml::ChipRound round_of(std::uint32_t chunk) const {
    const std::uint32_t number = chunk / setup_.slots;
    return {chunk % setup_.slots, static_cast<std::uint8_t>(number % 2), number / 2};
  }
  [[nodiscard]] static std::byte* sum_of(Switch& at, const switchml::ChipRound& round) {
    return at.sums[std::size_t{round.slot} * 2 + round.version].data();
  }

  // A part that is missing, foreign or counted twice shows; so does an exponent of an earlier chunk.
  [[nodiscard]] static std::uint32_t value(std::uint32_t worker, std::uint32_t chunk) { return (1 + chunk) << (8 * worker); }
  [[nodiscard]] std::uint16_t exponent(std::uint32_t worker, std::uint32_t chunk) const {
    return static_cast<std::uint16_t>(200 - 8 * chunk + (worker + chunk) % setup_.workers);
  }
  [[nodiscard]] Packet contribution(std::uint32_t worker, std::uint32_t chunk) const {
    return {worker, chunk, value(worker, chunk), exponent(worker, chunk)};
  }

  void deliver_all() {
    while (!passes_.empty() || !upstream_.empty() || !results_.empty()) {
      if (!passes_.empty()) {
        second_pass(passes_.extract(passes_.begin()).value());
      } else if (!upstream_.empty()) {
        arrive(upstream_.extract(upstream_.begin()).value());
      } else {
        take(results_.extract(results_.begin()).value());
      }
    }
  }

  void arrive(const Packet& packet) {
    const Place& place = places_[packet.node];
    const auto entry = switches_[place.at].slots.consume(round_of(packet.chunk), place.bit);
    if (entry.adds) {
      if (setup_.sums_in_order) {
        sum_up(packet, entry);
      } else {
        to_sum_up_.emplace(packet, entry);
      }
    }
    if (entry.again != switchml::ChipPass::none) passes_.insert({packet.node, packet.chunk, entry.again});
  }

  void sum_up(const Packet& packet, const typename Slots::Entry& entry) {
    Switch& at = switches_[places_[packet.node].at];
    const switchml::ChipRound round = round_of(packet.chunk);
    std::array<std::byte, 4> payload;
    store_be(payload.data(), packet.sum);
    at.slots.add(round, entry, {packet.exponent, packet.exponent}, payload, sum_of(at, round));
  }

  void second_pass(const Pass& pass) {
    const std::uint32_t number = places_[pass.sender].at;
    Switch& at = switches_[number];
    const switchml::ChipRound round = round_of(pass.chunk);
    const bool for_all = pass.what == switchml::ChipPass::answer && at.slots.harvest(round);
    const auto sum = load_be<std::uint32_t>(sum_of(at, round));
    const std::uint16_t largest = at.slots.exponents(round)[0];
    if (pass.what == switchml::ChipPass::upstream) {
      upstream_.insert({setup_.workers + number - 1, pass.chunk, sum, largest});
    } else if (for_all) {
      send_to_all(number, {0, pass.chunk, sum, largest});
    } else {
      results_.insert({pass.sender, pass.chunk, sum, largest});
    }
  }

  void send_to_all(std::uint32_t number, Packet result) {
    for (std::uint32_t receiver = 0; receiver < places_.size(); ++receiver) {
      if (places_[receiver].at != number) continue;
      result.node = receiver;
      results_.insert(result);
    }
  }

  void take(const Packet& result) {
    if (!is_worker(result.node)) return close(result);
    std::uint32_t& next = next_of(result.node, result.chunk % setup_.slots);
    if (next != result.chunk) return;  // Alg. 4: it waits for another one
    std::uint32_t sum = 0;
    std::uint16_t largest = 0;
    for (std::uint32_t worker = 0; worker < setup_.workers; ++worker) {
      sum += value(worker, result.chunk);
      largest = std::max(largest, exponent(worker, result.chunk));
    }
    if (result.sum != sum) {
      std::array<char, 48> text{};
      std::snprintf(text.data(), text.size(), " receives %08x for chunk %u, not %08x", result.sum, result.chunk, sum);
      throw Wrong(name_of(result.node) + text.data());
    }
    if (result.exponent != largest) throw Wrong(name_of(result.node) + " receives another exponent");
    next += setup_.slots;
  }

  void close(const Packet& result) {
    const std::uint32_t number = leaf_of(result.node);
    Switch& at = switches_[number];
    const switchml::ChipRound round = round_of(result.chunk);
    if (!at.slots.close(round)) return;
    std::array<std::byte, 4> payload;
    store_be(payload.data(), result.sum);
    if (setup_.stores_results) at.slots.store(round, {result.exponent, result.exponent}, payload, sum_of(at, round));
    std::uint32_t& next = next_of(result.node, result.chunk % setup_.slots);
    next = std::max(next, result.chunk + setup_.slots);
    send_to_all(number, result);
  }

  void restart() {
    may_restart_ = false;
    switches_[1] = switch_of(setup_.racks.front(), false);
    std::erase_if(passes_, [&](const Pass& pass) { return places_[pass.sender].at == 1; });
    for (std::uint32_t slot = 0; slot < setup_.slots; ++slot) next_of(setup_.workers, slot) = slot;
  }

  // Results that their worker would not take, too.
  void forget() {
    std::erase_if(results_, [&](const Packet& r) {
      return (is_worker(r.node) || setup_.without_idle_passes) && has_result(r.node, r.chunk);
    });
    if (!setup_.without_idle_passes) return;
    std::erase_if(passes_, [&](const Pass& pass) { return has_result(pass.sender, pass.chunk); });
    std::erase_if(upstream_, [&](const Packet& sum) { return has_result(sum.node, sum.chunk); });
  }

  ChipSetup setup_;
  bool may_restart_;
  std::vector<Place> places_;                          // by sender
  std::vector<Switch> switches_;                       // the root, then the leaves
  std::vector<std::uint32_t> next_;                    // [sender][slot]: the chunk in flight; all before have their result
  std::set<Pass> passes_;                              // packets that may have a second pass
  std::map<Packet, typename Slots::Entry> to_sum_up_;  // that have passed the gate
  std::set<Packet> upstream_, results_;                // on their way
};

}  // namespace netsum::model
