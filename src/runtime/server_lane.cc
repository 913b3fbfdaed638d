#include "runtime/server_lane.h"

#include <utility>

#include "netsum/error.h"
#include "wire/atp.h"

namespace netsum::runtime {

ServerLane::ServerLane(std::unique_ptr<transport::Transport> transport, std::uint64_t mark_bytes, std::uint32_t index,
                       const ThreadOptions& threads, const EndpointCookies& cookies)
    : mark_bytes_(mark_bytes), probe_answers_(cookies) {
  loop_ = std::make_unique<PacketLoop>(std::move(transport), index, threads,
                                       [this](std::span<const RxView> packets, Time now, transport::Transport& from) {
                                         return on_packets(packets, now, from);
                                       });
}

// Probes have SwitchML's format, whatever the joining rank's protocol.
std::uint64_t ServerLane::on_packets(std::span<const RxView> packets, Time now, transport::Transport& transport) {
  const auto is_probe = [](const RxView& packet, wire::switchml::Common& common) {
    return !wire::atp::is_atp(packet.bytes) &&
           wire::switchml::parse_common(packet.bytes, common) == wire::ParseError::none &&
           common.type == wire::switchml::Type::probe;
  };
  const bool congested = transport.queued_bytes() > mark_bytes_;
  while (!packets.empty()) {
    wire::switchml::Common common;
    std::size_t run = 0;
    while (run < packets.size() && !is_probe(packets[run], common)) ++run;
    if (run != 0) server_.on_packets(packets.first(run), congested, now, transport.sink());
    if (run == packets.size()) break;
    static_cast<void>(probe_answers_.answer(packets[run], common, transport.sink()));
    packets = packets.subspan(run + 1);
  }
  return server_.counters().strangers();
}

void ServerLane::add_job(const atp::ServerJobConfig& config) {
  const std::size_t bytes = atp::Server::memory_bytes(config.packet_elements, config.window, config.topology.world_size());
  memory_.add(config.epoch, bytes, [&](std::span<std::byte> memory) {
    atp::Server::JobState job = atp::Server::make_job(config, memory);
    bool added = false;
    loop_->call([&] {
      added = server_.add_job(std::move(job));
      if (added) loop_->expect(config.epoch);
    });
    if (!added) throw Error(ErrorCode::internal, "a job epoch was issued twice");
  });
}

void ServerLane::remove_job(std::uint64_t epoch) {
  atp::Server::JobState job;
  loop_->call([&] {
    job = server_.remove_job(epoch);
    loop_->expect_no_more(epoch);
  });
  job.reset();
  memory_.remove(epoch);
}

void ServerLane::move_roots(std::uint64_t epoch, const std::vector<Endpoint>& roots) {
  loop_->call([&] { server_.move_roots(epoch, roots); });
}

void ServerLane::inspect(const std::function<void(const atp::Server&, const transport::Counters&)>& look) {
  loop_->call([&] { look(server_, loop_->transport().counters()); });
}

}  // namespace netsum::runtime
