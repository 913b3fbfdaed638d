// Search of every state that a system of nodes can reach over a network that may do anything.
//
// The network is the set of all packets that were ever sent. Each may arrive at any time, any number of times, or never:
// loss, copies, reordering and delay without bound at once. So it only grows, and what can be done with some packets can be
// done with more. That is what makes the search small and leaves nothing out:
//
//  - What a worker's time-outs may send is in the network as soon as they may happen; that they do is not a step.
//  - Where some of the packets take a node from its state to others and back to it, what it sends on the way is in the
//    network, and it is where it was. (The shortest such way: a packet that changes nothing where it arrives, but is passed
//    on or answered.)
//  - A packet that its receiver will never take notice of again is left out.
//  - The same states of the nodes are not looked at again with a smaller network than they were.
//
// The states of the nodes that can be reached are the same with and without this, and what is checked is checked on those,
// and on each packet that is sent. A test compares the two where both can be done.
//
// A node's real object runs once for each of its states and each packet that can meet it there: the search itself walks the
// table of what came of it. That append_state() tells apart all that matters is what this, as any search, relies on.
#pragma once

#include <algorithm>
#include <bitset>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/time.h"
#include "model/explore.h"
#include "model/host.h"

namespace netsum::model {

struct Packet {
  std::uint8_t from = 0, to = 0;  // nodes
  std::vector<std::byte> bytes;
  auto operator<=>(const Packet&) const = default;
};

class Node {
 public:
  Node() = default;
  virtual ~Node() = default;
  Node& operator=(const Node&) = delete;

  [[nodiscard]] virtual std::unique_ptr<Node> clone() const = 0;
  virtual void append_state(std::vector<std::byte>& out) const = 0;
  virtual void check() const = 0;  // throws Wrong

  virtual void receive(const RxView& packet, Time now, RecordingSink& out) = 0;
  // Its clock in the search, where every moment may be followed by any other: `way` of ways() for each.
  [[nodiscard]] virtual std::size_t ways() const { return 1; }
  [[nodiscard]] virtual Time when(std::size_t way) = 0;

  // What it may do by itself now, in words.
  [[nodiscard]] virtual std::vector<std::string> choices() const { return {}; }
  virtual void choose(std::size_t /*which*/, RecordingSink& /*out*/) {}
  // All that time-outs, one after the other without an answer, would send now.
  virtual void time_outs(RecordingSink& /*out*/) const {}
  // In no state that follows does it take notice of this packet.
  [[nodiscard]] virtual bool is_past(const Packet& /*packet*/) const { return false; }

  // When the network behaves:
  [[nodiscard]] virtual bool finished() const { return true; }
  virtual void begin(Time /*now*/, RecordingSink& /*out*/) {}  // whatever it has put off
  [[nodiscard]] virtual Time next_timeout() const { return never; }
  virtual void on_timer(Time /*now*/, RecordingSink& /*out*/) {}

 protected:
  Node(const Node&) = default;
};

class System {
 public:
  virtual ~System() = default;
  std::vector<std::unique_ptr<Node>> nodes;

  // A packet that was sent for the first time, in any state; throws Wrong if no correct node sends it.
  virtual void inspect(const Packet& packet) = 0;
  // False: it decides only when something is sent again, and matters only once the network behaves.
  [[nodiscard]] virtual bool in_network(const Packet& packet) const = 0;
  [[nodiscard]] virtual std::string words(const Packet& packet) const = 0;
  [[nodiscard]] virtual std::string name(std::size_t node) const = 0;
};

// Whether a search makes use of this; time-outs happen by themselves in either. A trace names every step only without.
enum class Shortcuts : std::uint8_t { none, all };

class Search {
 public:
  static constexpr std::size_t most_packets = 512;  // distinct ones, of all that can ever be sent
  static constexpr std::size_t most_nodes = 8;

  Search(System& system, Shortcuts shortcuts) : system_(system), shortcuts_(shortcuts), tables_(system.nodes.size()) {}

  Exploration run(std::uint64_t most_states, bool liveness) {
    Exploration result;
    const auto began = std::chrono::steady_clock::now();
    try {
      explore(result, most_states, liveness);
    } catch (const std::exception& wrong) {
      result.wrong = wrong.what();
      result.trace = trace();
    }
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    return result;
  }

  // Different states of all nodes together, whatever the network holds.
  [[nodiscard]] std::size_t states_of_nodes() const { return of_nodes_; }

 private:
  using Network = std::bitset<most_packets>;

  struct Input {
    std::uint16_t node = 0;
    bool choice = false;
    std::uint16_t which = 0;  // packet; or which choice
    std::uint16_t way = 0;
  };
  struct Step {
    std::uint32_t next = 0;
    Network sent;
  };
  // A state of a node, and what follows from it.
  struct Known {
    std::unique_ptr<Node> node;
    std::vector<std::string> choices;
    Network past;  // of the first past_known packets
    std::size_t past_known = 0;
    std::vector<std::int32_t> steps;   // by packet * ways + way: in steps_, or -1
    std::vector<std::int32_t> chosen;  // by choice
  };
  struct Place {
    std::uint32_t id = 0;
    Network network;  // what of it is to this node
    bool operator==(const Place&) const = default;
  };
  struct PlaceHash {
    std::size_t operator()(const Place& place) const {
      return std::hash<Network>()(place.network) ^ place.id * std::size_t{0x9e3779b97f4a7c15};
    }
  };
  struct Table {
    std::deque<Known> known;
    std::unordered_map<Digest, std::uint32_t, DigestHash> ids;
    std::size_t ways = 1;
    Network packets;  // to this node
    std::unordered_map<Place, Network, PlaceHash> round_trips;
  };
  struct State {
    std::array<std::uint32_t, most_nodes> at{};
    Network network;
  };
  struct Reached {
    std::uint64_t parent;
    Input input;
  };

  // ---- the nodes, one by one

  std::uint32_t number_of(std::size_t node, std::unique_ptr<Node> object) {
    Table& table = tables_[node];
    std::vector<std::byte> bytes;
    object->append_state(bytes);
    const auto [entry, is_new] = table.ids.emplace(digest_of(bytes), static_cast<std::uint32_t>(table.known.size()));
    if (is_new) {
      auto choices = object->choices();
      std::vector<std::int32_t> chosen(choices.size(), -1);
      table.known.push_back({std::move(object), std::move(choices), {}, 0, {}, std::move(chosen)});
    }
    return entry->second;
  }

  void take(std::size_t from, RecordingSink& out, Network& sent) {
    for (auto& item : out.sent()) {
      Packet packet{static_cast<std::uint8_t>(from), item.to.address[15], std::move(item.bytes)};
      if (!system_.in_network(packet)) continue;
      const auto known = numbers_.find(packet);
      if (known != numbers_.end()) {
        sent[known->second] = true;
        continue;
      }
      if (packets_.size() == most_packets) throw std::logic_error("more distinct packets than expected");
      system_.inspect(packet);
      const auto number = static_cast<std::uint16_t>(packets_.size());
      tables_[packet.to].packets[number] = true;
      packets_.push_back(packet);
      numbers_.emplace(std::move(packet), number);
      sent[number] = true;
    }
    out.clear();
  }

  const Step& step(const State& state, const Input& input) { return step(state.at[input.node], input); }

  const Step& step(std::uint32_t id, const Input& input) {
    Table& table = tables_[input.node];
    Known& known = table.known[id];
    const std::size_t index = input.choice ? input.which : input.which * table.ways + input.way;
    auto& steps = input.choice ? known.chosen : known.steps;
    if (index >= steps.size()) steps.resize(packets_.size() * table.ways, -1);
    if (steps[index] >= 0) return steps_[static_cast<std::size_t>(steps[index])];

    doing_ = input;
    Step made;
    std::unique_ptr<Node> node = known.node->clone();
    RecordingSink out;
    if (input.choice) {
      node->choose(input.which, out);
    } else {
      const Packet packet = packets_[input.which];
      node->receive({packet.bytes, host(packet.from)}, node->when(input.way), out);
    }
    node->check();
    take(input.node, out, made.sent);
    node->time_outs(out);
    take(input.node, out, made.sent);
    made.next = number_of(input.node, std::move(node));
    doing_.reset();
    steps[index] = static_cast<std::int32_t>(steps_.size());
    return steps_.emplace_back(made);
  }

  // ---- all of them

  // Lets each node go wherever the packets take it from where it is, and back, with all that it sends on the way.
  void grow(State& state) {
    if (shortcuts_ == Shortcuts::none) return;
    for (bool grew = true; grew;) {
      grew = false;
      for (std::uint16_t node = 0; node < tables_.size(); ++node) {
        const Network& sent = sent_on_round_trips(node, state.at[node], state.network);
        if ((sent & ~state.network).none()) continue;
        state.network |= sent;
        grew = true;
      }
    }
  }

  const Network& sent_on_round_trips(std::uint16_t node, std::uint32_t id, const Network& network) {
    Table& table = tables_[node];
    const Place place{id, network & table.packets};
    const auto [entry, is_new] = table.round_trips.try_emplace(place);
    if (!is_new) return entry->second;

    struct Edge {
      std::uint32_t from, to;
      const Network* sent;
    };
    std::vector<Edge> edges;
    std::vector<std::uint32_t> reached{id};
    for (std::size_t i = 0; i < reached.size(); ++i) {
      for_each(place.network, [&](std::uint16_t number) {
        for (std::uint16_t way = 0; way < table.ways; ++way) {
          const Step& made = step(reached[i], {node, false, number, way});
          if (made.next != reached[i] || made.sent.any()) edges.push_back({reached[i], made.next, &made.sent});
          if (std::find(reached.begin(), reached.end(), made.next) == reached.end()) reached.push_back(made.next);
        }
      });
    }
    std::vector<std::uint32_t> back{id};  // from these it comes back
    for (std::size_t i = 0; i < back.size(); ++i) {
      for (const Edge& edge : edges) {
        if (edge.to == back[i] && std::find(back.begin(), back.end(), edge.from) == back.end()) back.push_back(edge.from);
      }
    }
    Network sent;
    for (const Edge& edge : edges) {
      if (std::find(back.begin(), back.end(), edge.to) != back.end()) sent |= *edge.sent;
    }
    return table.round_trips[place] = sent;
  }

  void forget_past(State& state) {
    for (std::size_t i = 0; i < tables_.size(); ++i) {
      Known& known = tables_[i].known[state.at[i]];
      for (; known.past_known < packets_.size(); ++known.past_known) {
        const Packet& packet = packets_[known.past_known];
        known.past[known.past_known] = packet.to == i && known.node->is_past(packet);
      }
      state.network &= ~known.past;
    }
  }

  template <class What>
  static void for_each(const Network& network, What&& what) {
    for (std::size_t number = network._Find_first(); number < most_packets; number = network._Find_next(number)) {
      what(static_cast<std::uint16_t>(number));
    }
  }

  State initial() {
    State state;
    for (std::size_t i = 0; i < system_.nodes.size(); ++i) {
      tables_[i].ways = system_.nodes[i]->ways();
      state.at[i] = number_of(i, system_.nodes[i]->clone());
    }
    return state;
  }

  void explore(Exploration& result, std::uint64_t most_states, bool liveness) {
    std::unordered_map<Digest, std::vector<Network>, DigestHash> seen;  // by the states of the nodes
    struct Pending {
      State state;
      std::uint64_t id, depth;
    };
    std::deque<Pending> frontier;
    std::vector<std::byte> bytes;
    std::vector<std::pair<std::uint16_t, const Step*>> followed;
    const auto enter = [&](State state, std::uint64_t id, std::uint64_t depth) {
      if (shortcuts_ == Shortcuts::all) forget_past(state);
      bytes.clear();
      for (const std::uint32_t at : state.at) append_bytes(bytes, at);
      auto& networks = seen[digest_of(bytes)];
      if (networks.empty() && liveness) check_liveness(state);
      for (const Network& network : networks) {
        if (shortcuts_ == Shortcuts::none ? state.network == network : (state.network & ~network).none()) return false;
      }
      networks.push_back(state.network);
      frontier.push_back({state, id, depth});
      return true;
    };

    // It was reached again since, with a larger network.
    const auto is_covered = [&](const State& state) {
      bytes.clear();
      for (const std::uint32_t at : state.at) append_bytes(bytes, at);
      const auto& networks = seen[digest_of(bytes)];
      return std::any_of(networks.begin(), networks.end(), [&](const Network& network) {
        return network != state.network && (state.network & ~network).none();
      });
    };

    reached_ = {{0, {}}};
    at_ = 0;
    State first = initial();
    grow(first);
    enter(first, 0, 0);
    while (!frontier.empty() && reached_.size() <= most_states) {
      const Pending from = frontier.front();
      frontier.pop_front();
      if (shortcuts_ == Shortcuts::all && is_covered(from.state)) continue;
      ++result.states;
      result.depth = from.depth;
      at_ = from.id;
      followed.clear();
      const auto follow = [&](const Input& input) {
        const Step& made = step(from.state, input);
        if (!input.choice && made.next == from.state.at[input.node]) {  // grow() has what is sent for it
          if (shortcuts_ == Shortcuts::all || (made.sent & ~from.state.network).none()) return;
        }
        ++result.transitions;
        for (const auto& [node, step_there] : followed) {  // another packet may have done the same
          if (node == input.node && step_there->next == made.next && step_there->sent == made.sent) return;
        }
        followed.emplace_back(input.node, &made);
        State next = from.state;
        next.at[input.node] = made.next;
        next.network |= made.sent;
        at_ = reached_.size();
        reached_.push_back({from.id, input});
        grow(next);
        if (!enter(next, at_, from.depth + 1)) reached_.pop_back();
        at_ = from.id;
      };
      for (std::uint16_t node = 0; node < tables_.size(); ++node) {
        const std::size_t choices = tables_[node].known[from.state.at[node]].choices.size();
        for (std::uint16_t which = 0; which < choices; ++which) follow({node, true, which, 0});
      }
      for_each(from.state.network, [&](std::uint16_t number) {
        const std::uint16_t node = packets_[number].to;
        for (std::uint16_t way = 0; way < tables_[node].ways; ++way) follow({node, false, number, way});
      });
    }
    result.complete = frontier.empty();
    of_nodes_ = seen.size();
  }

  // If from now on every packet that is sent arrives, in order, and all that was sent before is lost, everybody finishes.
  // What the network holds has no part in this: once for each state of the nodes.
  void check_liveness(const State& state) {
    std::vector<std::unique_ptr<Node>> nodes;
    for (std::size_t i = 0; i < tables_.size(); ++i) nodes.push_back(tables_[i].known[state.at[i]].node->clone());
    std::vector<Packet> fresh;
    RecordingSink out;
    const auto collect = [&](std::size_t from) {
      for (auto& item : out.sent())
        fresh.push_back({static_cast<std::uint8_t>(from), item.to.address[15], std::move(item.bytes)});
      out.clear();
      nodes[from]->check();
    };
    const auto all_finished = [&] {
      return std::all_of(nodes.begin(), nodes.end(), [](const auto& n) { return n->finished(); });
    };
    Time now = Time{} + std::chrono::hours(100);  // after all that the nodes' clocks have said so far
    for (int turn = 0; turn < 1000 && !all_finished(); ++turn) {
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        nodes[i]->begin(now, out);
        collect(i);
      }
      if (fresh.empty()) {
        Time next = never;
        for (const auto& node : nodes) next = std::min(next, node->next_timeout());
        if (next == never) throw Wrong("nothing is under way, and not everybody has finished");
        now = std::max(now, next);
        for (std::size_t i = 0; i < nodes.size(); ++i) {
          nodes[i]->on_timer(now, out);
          collect(i);
        }
      }
      const std::vector<Packet> arriving = std::move(fresh);
      fresh.clear();
      for (const Packet& packet : arriving) {
        nodes[packet.to]->receive({packet.bytes, host(packet.from)}, now, out);
        collect(packet.to);
      }
    }
    if (!all_finished()) throw Wrong("the network behaves, and still not everybody finishes");
  }

  // ---- the way to what is wrong

  [[nodiscard]] std::string words(const Input& input, const State& state) const {
    if (input.choice)
      return system_.name(input.node) + " " + tables_[input.node].known[state.at[input.node]].choices[input.which];
    return system_.name(input.node) + (input.way == 0 ? " receives " : ", much later, receives ") +
           system_.words(packets_[input.which]);
  }

  std::vector<std::string> trace() {
    std::vector<Input> steps;
    for (std::uint64_t id = at_; id != 0; id = reached_[id].parent) steps.push_back(reached_[id].input);
    std::reverse(steps.begin(), steps.end());
    State state = initial();
    std::vector<std::string> lines;
    const auto last = doing_;
    for (const Input& input : steps) {
      lines.push_back(words(input, state));
      state.at[input.node] = step(state, input).next;
    }
    if (last) lines.push_back(words(*last, state));
    return lines;
  }

  System& system_;
  Shortcuts shortcuts_;
  std::vector<Table> tables_;
  std::deque<Step> steps_;
  std::vector<Packet> packets_;
  std::map<Packet, std::uint16_t> numbers_;
  std::vector<Reached> reached_;  // how each state was first reached
  std::uint64_t at_ = 0;
  std::size_t of_nodes_ = 0;
  std::optional<Input> doing_;
};

}  // namespace netsum::model
