#include "daemon/bump_report.h"

#include "base/counters.h"
#include "service/stalled_chunks.h"

namespace netsum::daemon {

using netreduce::Bump;

namespace {

// Of frames.
Counters counters_of(const Bump& bump) {
  const netreduce::BridgeCounters& bridge = bump.bridge().counters();
  const netreduce::AcceleratorCounters& accelerator = bump.accelerator().counters();
  std::uint64_t unreadable = 0, misfits = 0;
  for (const std::uint64_t count : bump.counters().unreadable) unreadable += count;
  for (const std::uint64_t count : accelerator.dropped_misfit) misfits += count;
  return {{"frames_forwarded", bridge.forwarded},
          {"frames_flooded", bridge.flooded},
          {"frames_filtered", bridge.filtered},
          {"dropped_frame_malformed", bridge.malformed},
          {"addresses_moved", bridge.moved},
          {"addresses_not_learned", bridge.not_learned},
          {"frames_not_roce", bump.counters().others},
          {"roce_trains", bump.counters().trains},
          {"roce_unreadable", unreadable},
          {"roce_passed", accelerator.passed},
          {"roce_passed_on_rings", accelerator.passed_other},
          {"roce_unmarked", accelerator.unmarked},
          {"dropped_roce_known", accelerator.dropped_known},
          {"dropped_roce_nowhere", accelerator.dropped_nowhere},
          {"dropped_roce_unmatched", misfits},
          {"dropped_roce_restart", accelerator.dropped_restart},
          {"dropped_roce_damaged", accelerator.dropped_damaged},
          {"dropped_roce_trains", bump.counters().dropped_trains},
          {"dropped_roce_unreadable", bump.counters().dropped_unreadable},
          {"dropped_roce_virtual", bump.counters().dropped_virtual}};
}

// Of datagrams.
Counters counters_of(const netreduce::TunnelCounters& tunnel) {
  return {{"datagrams_taken", tunnel.taken},
          {"dropped_datagram_unknown", tunnel.strangers() - tunnel.dropped_source},
          {"dropped_datagram_source", tunnel.dropped_source}};
}

Counters counters_of(const netreduce::LearnedRacksCounters& racks) {
  return {{"agreements_ready", racks.ready},
          {"agreements_begin", racks.begin},
          {"agreements_over", racks.over},
          {"agreements_ask", racks.ask},
          {"ring_lives", racks.lives},
          {"dropped_agreement_malformed", racks.malformed},
          {"dropped_agreement_unknown", racks.strangers},
          {"dropped_agreement_differing", racks.differing}};
}

}  // namespace

Counters counters_of(const Bump& bump, bool racks) {
  Counters counters = counters_of(bump);
  if (racks) {
    counters.add(counters_of(bump.tunnel().counters()));
    counters.add(counters_of(bump.learned_racks().counters()));
  }
  return counters;
}

Counters counters_of(std::size_t number, const transport::PortCounters& port) {
  const std::string name = "port" + std::to_string(number) + "_";
  return {{name + "frames_received", port.frames_received},
          {name + "frames_sent", port.frames_sent},
          {name + "dropped_overrun", port.dropped_overrun},
          {name + "dropped_unreadable", port.dropped_unreadable},
          {name + "dropped_full", port.dropped_full},
          {name + "dropped_refused", port.dropped_refused},
          {name + "dropped_train", port.dropped_train},
          {name + "dropped_malformed", port.dropped_malformed},
          {name + "marked", port.marked}};
}

telemetry::JobReport report_of(const netreduce::RingConfig& ring, bool running, const netreduce::Accelerator& accelerator) {
  telemetry::JobReport report;
  report.job.job = "ring " + std::to_string(ring.ring);
  report.job.job_epoch = ring.incarnation;
  report.job.world_size = ring.members;
  report.job.packet_elements = ring.mtu / static_cast<std::uint32_t>(bytes_of(ring.dtype));
  report.job.slots = 2 * ring.window;
  report.job.joined = accelerator.bound(ring.incarnation);
  report.job.running = running;
  describe_ring(report, ring.incarnation, accelerator);
  return report;
}

void describe_ring(telemetry::JobReport& report, std::uint64_t incarnation, const netreduce::Accelerator& accelerator) {
  const netreduce::RingCounters* const counters = accelerator.ring_counters(incarnation);
  report.counters = named(counters == nullptr ? netreduce::RingCounters{} : *counters);
  if (const auto stall = accelerator.stall(incarnation)) service::add_stalled(report, *stall);
}

std::string summary_of(const telemetry::Report& report) {
  std::uint64_t received = 0, sent = 0, dropped = 0, sums = 0;
  const auto is_drop = [](const std::string& name) { return name.find("dropped_") != std::string::npos; };
  for (const auto& [name, value] : report.counters) {
    if (name == "packets_received") received = value;
    if (name == "packets_sent") sent = value;
    if (is_drop(name)) dropped += value;
  }
  for (const telemetry::JobReport& ring : report.jobs) {
    for (const auto& [name, value] : ring.counters) {
      if (name == "sums") sums += value;
      if (is_drop(name)) dropped += value;
    }
  }
  return std::to_string(received) + " frames received, " + std::to_string(sent) + " sent, " + std::to_string(sums) +
         " packets summed, " + std::to_string(dropped) + " frames dropped";
}

}  // namespace netsum::daemon
