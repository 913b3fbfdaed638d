#include "service/switchml_service.h"

#include "jobs/switchml_job.h"

namespace netsum::service {
namespace {

class ChunkFormat final : public Format {
 public:
  explicit ChunkFormat(const EndpointCookies& cookies) : machine(cookies) {}

  [[nodiscard]] bool takes(std::uint8_t first) const override { return first == wire::switchml::version; }
  void on_packets(std::span<const RxView> packets, bool, Time now, Sink& sink) override {
    machine.on_packets(packets, now, sink);
  }
  [[nodiscard]] std::uint64_t strangers() const override { return machine.counters().strangers(); }

  switchml::Switch machine;
};

std::vector<switchml::Switch*> machines_on(const Lanes& lanes, const EndpointCookies& cookies) {
  std::vector<switchml::Switch*> machines;
  for (Lane* const lane : lanes) machines.push_back(&serve<ChunkFormat>(*lane, cookies)->machine);
  return machines;
}

}  // namespace

SwitchMlService::SwitchMlService(const Lanes& lanes, const Surroundings& surroundings)
    : SwitchMlJobs(jobs::switchml_rules(), lanes, machines_on(lanes, surroundings.cookies), surroundings) {}

}  // namespace netsum::service
