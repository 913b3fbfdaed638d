#include "collective/rank_protocol.h"

#include <optional>
#include <utility>
#include <variant>

#include "kernels/kernels.h"

namespace netsum {

Protocol protocol_named(const std::string& name) {
  if (name == "switchml") return SwitchMl{};
  if (name == "atp") return Atp{};
  if (name == "netreduce") return NetReduce{};
  throw Error(ErrorCode::bad_argument, "unknown protocol '" + name + "': it must be switchml, atp or netreduce");
}

namespace collective {

std::unique_ptr<RankProtocol> rank_protocol(const Options& options) {
  return std::visit([&](const auto& settings) { return make_rank(options, settings); }, options.protocol);
}

std::string RankProtocol::counted_aggregators(const std::string& what) const {
  const std::size_t count = options().aggregators.size();
  std::string text = std::to_string(count) + " " + what + (count == 1 ? " (" : "s (");
  for (std::size_t i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + options().aggregators[i];
  return text;
}

jobs::PrivateAsk RankProtocol::privacy_of(const Reach& reach) const {
  return reach.agreement ? jobs::asked_by(*reach.agreement, fixed_exponent()) : jobs::PrivateAsk();
}

std::optional<std::uint8_t> RankProtocol::fixed_exponent() const {
  if (!options().private_sums || !options().private_sums->fixed_scale) return std::nullopt;
  return static_cast<std::uint8_t>(*options().private_sums->fixed_scale + kernels::exponent_bias);
}

seal::PadKeys RankProtocol::pads_of(const seal::Agreement& agreement, const std::vector<seal::PublicKey>& all,
                                    const Site& site) const {
  if (std::optional<seal::PadKeys> keys = agreement.keys(all, options().rank)) return std::move(*keys);
  throw Error(ErrorCode::refused, "aggregator " + site.address + " told rank " + std::to_string(options().rank) +
                                      " an invalid public key of its neighbour: private sums are not possible there");
}

}  // namespace collective
}  // namespace netsum
