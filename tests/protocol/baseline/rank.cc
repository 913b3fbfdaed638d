#include "protocol/baseline/rank.h"

#include "protocol/baseline/joining.h"
#include "protocol/baseline/service.h"
#include "protocol/baseline/worker.h"

namespace netsum::baseline {
namespace {

constexpr std::uint32_t default_elements = 256, default_window = 64;

class Rank final : public collective::RankProtocol {
 public:
  Rank(const Options& options, const Patience& patience) : RankProtocol(options), patience_(patience) {}

  [[nodiscard]] session::ProtocolRules rules() const override { return baseline::rules(); }
  void check() const override {}

  [[nodiscard]] collective::Reach reach(Time deadline) override {
    collective::Reach reach;
    for (const std::string& address : options().aggregators) {
      reach.sites.push_back(collective::reach_site(options(), address, deadline));
    }
    reach.packet_elements = options().packet_elements != 0 ? options().packet_elements : default_elements;
    return reach;
  }

  void measure_windows(collective::Reach& reach, Time) override {
    for (collective::Site& site : reach.sites) site.slots_measured = default_window;
  }

  void complete(session::JoinRequest& request, const collective::Reach&, const collective::Site&) const override {
    request.own = jobs::written(patience_);
  }

  [[nodiscard]] runtime::LaneSetup make_lane(const session::Admission& admission, const collective::Reach&,
                                             collective::Site& site, const collective::LaneNumber& number) const override {
    collective::Lane& lane = site.lanes[number.of_site];
    return {lane.take_transport(), std::make_unique<Worker>(worker_config(admission, options().rank, number.of_rank,
                                                                          number.lanes, lane.aggregator))};
  }

  [[nodiscard]] collective::RankTraits traits(const collective::Reach&, const session::Admission& admission,
                                              std::uint32_t) const override {
    collective::RankTraits traits;
    traits.protocol = "the baseline";
    traits.placement = "ps over " + counted_aggregators("parameter server") + "), " +
                       std::to_string(admission.packet_elements) + " elements per packet, patience " +
                       std::to_string(jobs::checked_part<Patience>(admission.own).milliseconds) + " ms";
    return traits;
  }

 private:
  const Patience patience_;
};

}  // namespace

std::unique_ptr<collective::RankProtocol> make_rank(const Options& options) {
  return std::make_unique<Rank>(options, Patience());
}

collective::MakeRank ranks_with(std::chrono::milliseconds patience) {
  return [asked = Patience{static_cast<std::uint32_t>(patience.count())}](const Options& options) {
    return std::make_unique<Rank>(options, asked);
  };
}

}  // namespace netsum::baseline
