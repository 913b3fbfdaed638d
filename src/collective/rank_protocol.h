// A protocol at the rank: the steps that joining (collective/join.cc) needs, from settings to lanes. The only place in the
// library that tells protocols apart is rank_protocol.cc, by the alternative that Options::protocol holds; connect.h takes
// any other protocol.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "collective/reach.h"
#include "jobs/public_keys.h"
#include "netsum/communicator.h"
#include "runtime/worker_engine.h"
#include "session/protocol_rules.h"
#include "session/registry.h"

namespace netsum::collective {

// The numbers of one of a rank's lanes.
struct LaneNumber {
  std::uint32_t of_rank = 0, lanes = 1;  // over all aggregators
  std::size_t of_site = 0;
};

// An admitted rank's properties, for the rest of its process.
struct RankTraits {
  const char* protocol = "";             // its name, for people
  std::string placement{};               // one line: which aggregators, and what to expect of them
  WireFormat wire = WireFormat::native;  // floats on the wire
  bool nearest = false;                  // those in blocks are rounded to nearest
  bool spin = false;                     // in shared memory, threads never sleep in an operation
  // Every operation on every type, or only sums and averages of 16-bit floats, float32 and int32.
  bool every_reduction = false;
  // reduce, reduce_scatter and all_gather are operations of their own; else others stand in for them.
  bool every_collective = false;
  bool in_place = false;      // results of an all-reduce come where its values are, and nowhere else
  bool private_sums = false;  // only what aggregators add as integers modulo 2^width: sums and averages, but of float64
  std::optional<std::uint32_t> successor{};  // the rank that may still need what this one has sent
};

class RankProtocol {
 public:
  explicit RankProtocol(const Options& options) : options_(options) {}
  virtual ~RankProtocol() = default;
  RankProtocol(const RankProtocol&) = delete;
  RankProtocol& operator=(const RankProtocol&) = delete;

  [[nodiscard]] virtual session::ProtocolRules rules() const = 0;
  // The protocol's own settings. Throws Error: bad_argument.
  virtual void check() const = 0;

  // The switch that the rank is at; empty: none.
  [[nodiscard]] virtual std::string switch_address() const { return {}; }
  virtual void pass_switch() {}  // recovery, if that does not answer: the rank joins without one

  // The only rank whose packets arrive here, if there is one.
  [[nodiscard]] virtual std::optional<std::uint32_t> predecessor() const { return std::nullopt; }

  // Connects to every aggregator, opens the lanes' sockets, and chooses the packet length unless options give it.
  [[nodiscard]] virtual Reach reach(Time deadline) = 0;
  // Sets each site's slots_measured, if options give no window.
  virtual void measure_windows(Reach& reach, Time deadline) = 0;
  // Adds to the request what is the protocol's own.
  virtual void complete(session::JoinRequest&, const Reach&, const Site&) const {}

  // A lane of the admitted rank, over the reached sites.
  [[nodiscard]] virtual runtime::LaneSetup make_lane(const session::Admission& admission, const Reach& reach, Site& site,
                                                     const LaneNumber& number) const = 0;
  // Packets per admitted slot.
  [[nodiscard]] virtual std::uint32_t packets_of_slot(const session::Admission&) const { return 1; }
  // `slots`: of each lane.
  [[nodiscard]] virtual RankTraits traits(const Reach& reach, const session::Admission& admission,
                                          std::uint32_t slots) const = 0;

 protected:
  [[nodiscard]] const Options& options() const { return options_; }
  // "1 aggregator (a:1)", "2 aggregators (a:1, b:1)".
  [[nodiscard]] std::string counted_aggregators(const std::string& what) const;
  // What the rank says of private sums as it joins, and its pads once it has been told all ranks' public keys. Throws Error:
  // refused.
  [[nodiscard]] jobs::PrivateAsk privacy_of(const Reach& reach) const;
  [[nodiscard]] std::optional<std::uint8_t> fixed_exponent() const;
  [[nodiscard]] seal::PadKeys pads_of(const seal::Agreement& agreement, const std::vector<seal::PublicKey>& all,
                                      const Site& site) const;

 private:
  const Options& options_;  // outlives this
};

// The options outlive the result.
using MakeRank = std::function<std::unique_ptr<RankProtocol>(const Options&)>;
// As Options::protocol says.
[[nodiscard]] std::unique_ptr<RankProtocol> rank_protocol(const Options& options);

[[nodiscard]] std::unique_ptr<RankProtocol> make_rank(const Options& options, const SwitchMl& settings);
[[nodiscard]] std::unique_ptr<RankProtocol> make_rank(const Options& options, const Atp& settings);
[[nodiscard]] std::unique_ptr<RankProtocol> make_rank(const Options& options, const NetReduce& settings);

}  // namespace netsum::collective
