#include "runtime/switch_lane.h"

#include <utility>

#include "netsum/error.h"
#include "wire/atp.h"
#include "wire/roce.h"

namespace netsum::runtime {

SwitchLane::SwitchLane(std::unique_ptr<transport::Transport> transport, const atp::SwitchConfig& pool,
                       std::uint64_t mark_bytes, std::uint32_t index, const ThreadOptions& threads)
    : pool_(pool), mark_bytes_(mark_bytes) {
  loop_ = std::make_unique<PacketLoop>(
      std::move(transport), index, threads,
      [this](std::span<const RxView> packets, Time now, transport::Transport& from) { on_packets(packets, now, from); });
}

void SwitchLane::add_job(const switchml::SwitchJobConfig& config) {
  // Allocated by the caller's thread: the lane goes on with other jobs meanwhile.
  PacketMemory memory(switchml::Switch::memory_bytes(config.packet_elements, config.slots, config.members.size()));
  bool added = false;
  loop_->call([&] {
    auto& place = memory_[config.epoch] = std::move(memory);
    added = switch_.add_job(config, place.bytes());
  });
  if (!added) throw Error(ErrorCode::internal, "a job epoch was issued twice");
}

void SwitchLane::remove_job(std::uint64_t epoch) {
  loop_->call([&] {
    switch_.remove_job(epoch);
    memory_.erase(epoch);
  });
}

void SwitchLane::install(const atp::SwitchJobConfig& config) {
  bool first = false, fits = true;
  loop_->call([&] { first = !atp_; });
  PacketMemory memory(first ? atp::Switch::memory_bytes(pool_) : 0);
  loop_->call([&] {
    if (!atp_) {
      pool_memory_ = std::move(memory);
      atp_.emplace(pool_, pool_memory_.bytes());
    }
    if (atp_->job_counters(config.epoch) == nullptr) fits = atp_->add_job(config);
  });
  if (!fits) {
    throw Error(ErrorCode::refused, "this switch's slots hold " + std::to_string(pool_.packet_elements) +
                                        " elements, and the job's packets have " + std::to_string(config.packet_elements));
  }
}

void SwitchLane::uninstall(std::uint64_t epoch) {
  loop_->call([&] {
    if (atp_) atp_->remove_job(epoch);
  });
}

void SwitchLane::add_ring(const netreduce::TunnelRing& ring) {
  PacketMemory memory(netreduce::Accelerator::memory_bytes(ring.ring));
  bool added = false;
  loop_->call([&] {
    auto& place = ring_memory_[ring.ring.incarnation] = std::move(memory);
    added = tunnel_.add_ring(ring, place.bytes());
  });
  if (!added) throw Error(ErrorCode::internal, "a ring was made twice, or two ranks have the same queue pair");
}

void SwitchLane::remove_ring(std::uint64_t incarnation) {
  loop_->call([&] {
    tunnel_.remove_ring(incarnation);
    ring_memory_.erase(incarnation);
  });
}

void SwitchLane::inspect(const Look& look) {
  loop_->call([&] { look(switch_, atp_ ? &*atp_ : nullptr, tunnel_, loop_->transport().counters()); });
}

// Runs of one format each: packets of one job come in trains.
void SwitchLane::on_packets(std::span<const RxView> packets, Time now, transport::Transport& transport) {
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
}

}  // namespace netsum::runtime
