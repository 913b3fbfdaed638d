// Three ranks and a switch for a page that shows them: the product's own worker and switch, or the published one in its
// place, and a network whose packets arrive, are lost, copied and delayed one by one, by hand or by a seed.
//
// A run is its rule, its seed and a list of actions: the same three make the same run.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "model/job.h"
#include "model/published.h"
#include "protocol/switchml/worker.h"
#include "sim/network.h"

namespace netsum::playground {

enum class Rule : std::uint8_t { netsum, published };

class Playground {
 public:
  static constexpr std::uint32_t ranks = 3, slots = 2, chunks = 4;

  // Seed 0: the network does no harm by itself.
  Playground(Rule rule, std::uint32_t seed);
  Playground(const Playground&) = delete;
  Playground& operator=(const Playground&) = delete;

  // "s": what comes next. "w20": what comes within 20 ms. And of the packet with the number 3: "d3" it arrives now; "x3" it
  // is lost; "c3" a copy of it is in flight, too; "l3" it arrives 50 ms later. Several have dots between them. False: one of
  // them did nothing, and those behind it were left out.
  bool act(std::string_view actions);

  // As actions, which depend on what has happened: the steps, from a new run on, after which a rank takes its own values
  // three times for the sum, by the published rule.
  static constexpr unsigned steps = 8;
  [[nodiscard]] std::string walk(unsigned step) const;

  // Times are in ms from the beginning. A rank's value for a chunk is one decimal digit: a sum shows which ranks are in it.
  [[nodiscard]] std::string state() const;                                     // JSON
  [[nodiscard]] std::optional<double> next() const;                            // when something comes; nothing: never
  [[nodiscard]] std::uint32_t sum(std::size_t rank, std::size_t chunk) const;  // that the rank has taken; 0: none yet
  [[nodiscard]] static std::uint32_t exact(std::size_t chunk);
  [[nodiscard]] bool complete() const;  // every rank has taken every sum

 private:
  struct Rank {
    explicit Rank(const switchml::WorkerConfig& config) : worker(config), tensor(chunks * model::packet_elements) {}
    switchml::Worker worker;
    std::vector<std::uint32_t> tensor;
  };
  struct Packet {
    std::uint32_t number = 0;
    sim::HostId from = 0, to = 0;
    Time sent{}, due{};
    bool lost = false;  // the seed's fault, on its way
    std::vector<std::byte> bytes;
  };
  struct About {  // what a packet says
    wire::switchml::Type type{};
    std::uint32_t chunk = 0, slot = 0, version = 0, value = 0;
  };
  struct View {  // of a slot's version, under either rule
    bool used = false, complete = false;
    std::uint32_t chunk = 0, sum = 0;
    std::array<bool, ranks> seen{};
    bool operator==(const View&) const = default;
  };
  struct Next {
    Time at = never;
    std::size_t which = 0;  // packet, or rank whose time is up
    bool is_packet = false;
  };

  [[nodiscard]] static About about(const Packet& packet);
  [[nodiscard]] static std::string words(const Packet& packet);
  [[nodiscard]] View view(std::size_t slot, std::size_t version) const;
  [[nodiscard]] Next find_next() const;
  [[nodiscard]] std::string find(sim::HostId from, sim::HostId to, wire::switchml::Type type, std::uint32_t chunk) const;
  [[nodiscard]] double ms(Time time) const;

  bool act_once(std::string_view action);
  bool step(Time limit);
  void arrive(const Packet& packet);
  void at_switch(const Packet& packet);
  void at_rank(const Packet& packet);
  void send(sim::HostId from, model::RecordingSink& out);
  void note(const std::string& what);

  sim::Tally tally_;
  std::optional<sim::Network> network_;
  std::variant<model::RealSwitch, model::Published<false>> switch_;
  std::vector<Rank> ranks_;
  std::vector<Packet> packets_;  // in flight, by number
  std::uint32_t packets_sent_ = 0;
  Time now_;
  std::deque<std::string> log_;
};

}  // namespace netsum::playground
