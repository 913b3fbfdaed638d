#include "runtime/switch_lane.h"

#include <utility>

#include "netsum/error.h"
#include "wire/atp.h"
#include "wire/roce.h"

namespace netsum::runtime {

SwitchLane::SwitchLane(std::unique_ptr<transport::Transport> transport, const atp::SwitchConfig& pool,
                       std::uint64_t mark_bytes, std::uint32_t index, const ThreadOptions& threads,
                       const EndpointCookies& cookies)
    : pool_(pool), mark_bytes_(mark_bytes), switch_(cookies) {
  loop_ = std::make_unique<PacketLoop>(std::move(transport), index, threads,
                                       [this](std::span<const RxView> packets, Time now, transport::Transport& from) {
                                         return on_packets(packets, now, from);
                                       });
}

void SwitchLane::add_job(const switchml::SwitchJobConfig& config) {
  const std::size_t bytes = switchml::Switch::memory_bytes(config.packet_elements, config.slots, config.members.size());
  memory_.add(config.epoch, bytes, [&](std::span<std::byte> memory) {
    switchml::Switch::JobState job = switchml::Switch::make_job(config, memory);
    bool added = false;
    loop_->call([&] {
      added = switch_.add_job(std::move(job));
      if (added) loop_->expect(config.epoch);
    });
    if (!added) throw Error(ErrorCode::internal, "a job epoch was issued twice");
  });
}

void SwitchLane::remove_job(std::uint64_t epoch) {
  switchml::Switch::JobState job;
  loop_->call([&] {
    job = switch_.remove_job(epoch);
    loop_->expect_no_more(epoch);
  });
  job.reset();
  memory_.remove(epoch);
}

void SwitchLane::install(const atp::SwitchJobConfig& config) {
  if (!has_pool_) {
    PacketMemory memory(atp::Switch::memory_bytes(pool_), Pages::now);
    atp::Switch made(pool_, memory.bytes());
    loop_->call([&] { atp_.emplace(std::move(made)); });
    pool_memory_ = std::move(memory);
    has_pool_ = true;
  }
  bool known = false, fits = true;
  loop_->call([&] {
    known = atp_->job_counters(config.epoch) != nullptr;
    fits = known ? atp_->move_job(config) : atp_->add_job(config);
    if (fits && !known) loop_->expect(config.epoch);
  });
  if (!fits && known)
    throw Error(ErrorCode::refused,
                "the installation differs from the job's earlier one: an epoch must not be used for two jobs");
  if (!fits) {
    throw Error(ErrorCode::refused, "this switch's slots hold " + std::to_string(pool_.packet_elements) +
                                        " elements, and the job's packets have " + std::to_string(config.packet_elements));
  }
}

void SwitchLane::uninstall(std::uint64_t epoch) {
  loop_->call([&] {
    if (atp_) atp_->remove_job(epoch);
    loop_->expect_no_more(epoch);
  });
}

void SwitchLane::add_ring(const netreduce::TunnelRing& ring) {
  ring_memory_.add(ring.ring.incarnation, netreduce::Accelerator::memory_bytes(ring.ring), [&](std::span<std::byte> memory) {
    netreduce::Accelerator::RingState state = netreduce::Accelerator::make_ring(ring.ring, memory);
    bool added = false;
    loop_->call([&] {
      added = tunnel_.add_ring(std::move(state), ring);
      if (added) loop_->expect_ring();
    });
    if (!added)
      throw Error(ErrorCode::internal, "the ring is installed already, or one of its queue pairs belongs to another rank");
  });
}

void SwitchLane::remove_ring(std::uint64_t incarnation) {
  netreduce::Accelerator::RingState state;
  loop_->call([&] {
    state = tunnel_.remove_ring(incarnation);
    if (state) loop_->expect_ring_no_more();
  });
  state.reset();
  ring_memory_.remove(incarnation);
}

void SwitchLane::inspect(const std::function<void(const State&)>& look) {
  loop_->call([&] { look({switch_, atp_ ? &*atp_ : nullptr, tunnel_, loop_->transport().counters()}); });
}

// Splits a batch into runs of one format: packets of one job come in trains.
std::uint64_t SwitchLane::on_packets(std::span<const RxView> packets, Time now, transport::Transport& transport) {
  enum class Format : std::uint8_t { switchml, atp, netreduce };
  const auto format_of = [&](const RxView& packet) {
    if (wire::roce::is_roce(packet.bytes)) return Format::netreduce;
    return atp_ && wire::atp::is_atp(packet.bytes) ? Format::atp : Format::switchml;
  };
  while (!packets.empty()) {
    const Format format = format_of(packets.front());
    std::size_t run = 1;
    while (run < packets.size() && format_of(packets[run]) == format) ++run;
    switch (format) {
      case Format::switchml:
        switch_.on_packets(packets.first(run), now, transport.sink());
        break;
      case Format::atp:
        atp_->on_packets(packets.first(run), transport.queued_bytes() > mark_bytes_, now, transport.sink());
        break;
      case Format::netreduce:
        tunnel_.on_packets(packets.first(run), now, transport.sink());
        break;
    }
    packets = packets.subspan(run);
  }
  return switch_.counters().strangers() + (atp_ ? atp_->counters().strangers() : 0) + tunnel_.counters().strangers();
}

}  // namespace netsum::runtime
