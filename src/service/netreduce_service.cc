#include "service/netreduce_service.h"

#include <utility>

#include "netsum/error.h"
#include "protocol/netreduce/sealed_hops.h"
#include "service/stalled_chunks.h"
#include "session/installations.h"

namespace netsum::service {
namespace {

class RoceFormat final : public Format {
 public:
  // RoCE packets come from their IP header on, of either version.
  [[nodiscard]] bool takes(std::uint8_t first) const override { return first >> 4 == 4 || first >> 4 == 6; }
  void on_packets(std::span<const RxView> packets, bool, Time now, Sink& sink) override {
    machine.count_unbelieved(seal::through(
        hops, packets, sink, [&](std::span<const RxView> believed, Sink& out) { machine.on_packets(believed, now, out); }));
  }
  [[nodiscard]] std::uint64_t strangers() const override { return machine.counters().strangers(); }

  netreduce::Tunnel machine;
  seal::Hops hops = netreduce::no_hops();
};

}  // namespace

class NetReduceService::Job final : public ServedJob {
 public:
  using NeighboursOf = std::function<std::vector<seal::Neighbour>(std::size_t lane)>;

  Job(NetReduceService& service, std::uint64_t epoch) : service_(service), epoch_(epoch) {}
  ~Job() override { stop(); }

  // Later the job does not lack memory.
  void reserve(const std::vector<netreduce::TunnelRing>& rings) {
    if (service_.wire_ && service_.wire_->check) service_.wire_->check(rings.front().ring);
    for (std::size_t lane = 0; lane < rings.size(); ++lane) {
      memory_.push_back(service_.lanes_[lane]->allocate(netreduce::Accelerator::memory_bytes(rings[lane].ring)));
    }
  }

  // No effect if the job has its rings or has ended: a switch's sums are lost with its ring. The job's ranks are told of
  // their admission only afterwards, so no packet comes earlier.
  void add(const std::vector<netreduce::TunnelRing>& rings, PacketSecurity security, const NeighboursOf& neighbours_of) {
    if (placed_ != 0 || stopped_) return;
    for (; placed_ < rings.size(); ++placed_) add(placed_, rings[placed_], security, neighbours_of(placed_));
  }

  void stop() override {
    stopped_ = true;
    for (; placed_ > 0; --placed_) {
      const std::size_t lane = placed_ - 1;
      netreduce::Accelerator::RingState state;  // ends here, not on the lane
      service_.lanes_[lane]->run([&] {
        state = service_.tunnels_[lane]->remove_ring(jobs::incarnation_of(epoch_, lane));
        if (!service_.hops_.empty()) service_.hops_[lane]->remove(epoch_);
        if (state) service_.lanes_[lane]->expect_ring_no_more();
      });
    }
    memory_.clear();
  }

  void place(const session::StartJob& start, const session::SwitchLanes& switches) override {
    const session::SwitchEndpoint endpoint = session::switch_endpoints(switches);
    add(service_.rings_of(start, endpoint), start.admission.security,
        [&](std::size_t lane) { return jobs::ring_neighbours(start, lane, netreduce::at_root, endpoint); });
  }

  // All lanes' views merged; `missing` is the first stalled lane's.
  [[nodiscard]] session::JobView look() const override {
    session::JobView view;
    for (std::size_t lane = 0; lane < service_.lanes_.size(); ++lane) {
      service_.lanes_[lane]->run([&] { view.merge(jobs::view_of(service_.at(lane).accelerator(), epoch_, lane)); });
    }
    return view;
  }

  void report(std::size_t lane, session::JobReport& report) const override {
    const netreduce::Accelerator& accelerator = service_.at(lane).accelerator();
    const std::uint64_t incarnation = jobs::incarnation_of(epoch_, lane);
    const auto* const ring = accelerator.ring_counters(incarnation);
    report.counters.add(named(ring == nullptr ? netreduce::RingCounters{} : *ring));
    if (const auto stall = accelerator.stall(incarnation)) add_stalled(report, *stall);
  }

 private:
  void add(std::size_t lane, const netreduce::TunnelRing& ring, PacketSecurity security,
           const std::vector<seal::Neighbour>& neighbours) {
    netreduce::Accelerator::RingState state = netreduce::Accelerator::make_ring(ring.ring, memory_[lane]->bytes());
    bool added = false;
    service_.lanes_[lane]->run([&] {
      added = service_.tunnels_[lane]->add_ring(std::move(state), ring);
      if (added && !neighbours.empty()) service_.hops_[lane]->set(epoch_, security, neighbours, netreduce::marks_of(ring));
      if (added) service_.lanes_[lane]->expect_ring();
    });
    if (!added)
      throw Error(ErrorCode::internal, "the ring is installed already, or one of its queue pairs belongs to another rank");
    if (service_.wire_ && service_.wire_->record) service_.wire_->record(ring.ring);
  }

  NetReduceService& service_;
  const std::uint64_t epoch_;
  std::vector<std::unique_ptr<Memory>> memory_;  // by lane
  std::size_t placed_ = 0;                       // the first lanes, which have their ring
  bool stopped_ = false;
};

NetReduceService::NetReduceService(const Lanes& lanes, OrderOf order_of) : lanes_(lanes), order_of_(std::move(order_of)) {
  for (Lane* const lane : lanes_) {
    RoceFormat* const format = serve<RoceFormat>(*lane);
    tunnels_.push_back(&format->machine);
    hops_.push_back(&format->hops);
  }
}

NetReduceService::NetReduceService(Lane& lane, Wire wire, OrderOf order_of)
    : lanes_{&lane}, wire_(std::move(wire)), order_of_(std::move(order_of)), tunnels_{&wire_->tunnel} {}

void NetReduceService::report(std::size_t lane, Counters& counters) const {
  const netreduce::Tunnel& tunnel = at(lane);
  counters.add(named(tunnel.counters()));
  counters.add("dropped_roce_malformed", malformed_packets(tunnel.counters()));
  counters.add("dropped_roce_known", tunnel.accelerator().counters().dropped_known);
}

std::vector<netreduce::TunnelRing> NetReduceService::rings_of(const session::StartJob& start,
                                                              const session::SwitchEndpoint& switches) const {
  if (wire_) return {jobs::bump_ring(start, switches, order_of(start))};
  std::vector<netreduce::TunnelRing> rings;
  for (std::size_t lane = 0; lane < session::lanes_of(start); ++lane) {
    rings.push_back(jobs::tunnel_ring(start, lane, netreduce::at_root, switches, order_of(start)));
  }
  return rings;
}

// Of each lane, at a switch below.
std::vector<netreduce::TunnelRing> NetReduceService::rings_of(const jobs::TreeInstallation& installation) const {
  if (wire_) return {jobs::bump_ring(installation, order_of(installation.start))};
  std::vector<netreduce::TunnelRing> rings;
  for (std::size_t lane = 0; lane < installation.root.size(); ++lane) {
    rings.push_back(jobs::tunnel_ring(installation, lane, order_of(installation.start)));
  }
  return rings;
}

std::unique_ptr<ServedJob> NetReduceService::start(const session::StartJob& start) {
  auto job = std::make_unique<Job>(*this, start.admission.job_epoch);
  const auto nowhere = [](std::uint32_t, std::size_t) { return Endpoint{}; };
  const std::vector<netreduce::TunnelRing> rings = rings_of(start, nowhere);
  job->reserve(rings);
  if (start.admission.placement.switches.empty()) {  // else place() does
    job->add(rings, start.admission.security,
             [&](std::size_t lane) { return jobs::ring_neighbours(start, lane, netreduce::at_root, nowhere); });
  }
  return job;
}

session::SwitchMessage NetReduceService::describe(const session::StartJob& start, std::uint32_t switch_id, bool again,
                                                  const session::SwitchLanes& switches,
                                                  std::span<const Endpoint> own) const {
  return jobs::tree_message(start, switch_id, again, switches, own);
}

session::InstallationCost NetReduceService::cost(const session::SwitchMessage& message) const {
  return {0, jobs::memory_bytes(jobs::read_ring(message, *rules()))};
}

InstalledJob NetReduceService::install(const session::SwitchMessage& message, ServedJob* former, const Prove& prove) {
  const jobs::TreeInstallation installation = jobs::read_ring(message, *rules());
  const session::Admission& admission = installation.start.admission;
  RankSet joined;
  const std::vector<netreduce::TunnelRing> rings = rings_of(installation);
  for (const netreduce::Line& line : rings.front().ring.lines) {
    if (line.way != netreduce::Way::arriving) joined = joined.united(line.ranks);
  }
  InstalledJob installed = installed_job(installation, joined);
  if (former != nullptr) return installed;
  jobs::refuse_again(installation);
  check_lanes(installation.root.size(), lanes_.size());
  std::vector<session::Destination> destinations;
  for (std::size_t lane = 0; lane < rings.size(); ++lane) {
    for (const netreduce::TunnelRoute& route : rings[lane].routes) {
      // What a bump sends to ranks leaves by the ports that it learns: only other bumps have endpoints.
      destinations.push_back(wire_ ? session::Destination{route.to, {}, 0}
                                   : jobs::destination(installation, lane, route.to));
    }
  }
  prove(destinations);
  auto job = std::make_unique<Job>(*this, admission.job_epoch);
  job->reserve(rings);
  job->add(rings, admission.security, [&](std::size_t lane) { return jobs::ring_neighbours(installation, lane); });
  installed.job = std::move(job);
  return installed;
}

}  // namespace netsum::service
