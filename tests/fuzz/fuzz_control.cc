// Every control message that an aggregator or a switch receives, as bytes, through the border and at what serves it: the
// registry, and what a switch makes of the jobs that it is told of.
#include <optional>

#include "control/border.h"
#include "fuzz/control_messages.h"
#include "fuzz/registry_model.h"
#include "protocol/atp/switch.h"
#include "protocol/netreduce/tunnel.h"
#include "protocol/switchml/chip_switch.h"
#include "jobs/chip_profile.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function

// The message after its way here, if it passed: then it is written as it was read, and else in few words refused.
template <class Message>
std::optional<Message> passed(const Message& sent, FuzzedDataProvider& input) {
  const auto value = control::parse<Message>(control::view(fuzz::arrived(sent, input)));
  if (!fuzz::passed(value, 2048)) return std::nullopt;
  const control::Bytes again = control::write(*value);
  const auto same = control::parse<Message>(control::view(again));
  fuzz::check(bool{same}, "what was accepted is accepted again");
  fuzz::check(control::write(*same) == again, "a message is read as it is written");
  return *value;
}

class Switch {
 public:
  void install(const jobs::AtpInstallation& installation) {
    for (std::size_t lane = 0; lane < installation.lanes.size(); ++lane) {
      const atp::SwitchJobConfig config = jobs::switch_job(installation, lane);
      atp::Switch& pool = pools_[lane % fuzz::CheckedRegistry::lanes];
      const bool known = pool.job_counters(config.epoch) != nullptr;
      fuzz::check(pool.add_job(config) == (!known && config.packet_elements <= shape.packet_elements),
                  "a job is added once");
    }
    uninstall(installation.job_epoch);
  }

  static void install(const jobs::TreeInstallation& installation) {
    if (installation.start.protocol == jobs::switchml_rules().name) return install_tree<switchml::Switch>(installation);
    if (installation.start.protocol == jobs::switchml_chip_rules().name) {
      return install_tree<switchml::ChipSwitch>(installation);
    }
    for (std::size_t lane = 0; lane < installation.root.size(); ++lane) {
      const netreduce::TunnelRing ring = jobs::tunnel_ring(installation, lane);
      fuzz::check(netreduce::check(ring.ring).empty(), "a ring can be made");
      const std::size_t bytes = netreduce::Accelerator::memory_bytes(ring.ring);
      if (bytes > most_bytes) continue;
      std::vector<fuzz::CacheLine> memory(bytes / sizeof(fuzz::CacheLine) + 1);
      netreduce::Tunnel tunnel;
      fuzz::check(tunnel.add_ring(ring, std::as_writable_bytes(std::span(memory)).first(bytes)), "a ring is added");
      static_cast<void>(tunnel.accelerator().stall(ring.ring.incarnation));
      tunnel.remove_ring(ring.ring.incarnation);
    }
  }

  template <class Machine>
  static void install_tree(const jobs::TreeInstallation& installation) {
    for (std::size_t lane = 0; lane < installation.root.size(); ++lane) {
      const switchml::SwitchJobConfig config = jobs::switchml_job(installation, lane);
      const std::size_t bytes = Machine::memory_bytes(config);
      if (bytes > most_bytes) continue;
      std::vector<fuzz::CacheLine> memory(bytes / sizeof(fuzz::CacheLine) + 1);
      Machine machine;
      fuzz::check(machine.add_job(config, std::as_writable_bytes(std::span(memory)).first(bytes)), "a job is added");
      static_cast<void>(machine.stalled(config.epoch, 1));
    }
  }

  void uninstall(std::uint64_t epoch) {
    for (atp::Switch& pool : pools_) pool.remove_job(epoch);
  }

 private:
  static constexpr std::size_t most_bytes = 1 << 20;
  static constexpr atp::SwitchConfig shape{4, 256};

  std::vector<fuzz::CacheLine> memory_{atp::Switch::memory_bytes(shape) / sizeof(fuzz::CacheLine)};
  atp::Switch pools_[fuzz::CheckedRegistry::lanes] = {{shape, std::as_writable_bytes(std::span(memory_))},
                                                      {shape, std::as_writable_bytes(std::span(memory_))}};
};

std::uint32_t a_switch_of(const session::StartJob& start, FuzzedDataProvider& input) {
  return static_cast<std::uint32_t>(input.ConsumeIntegral<std::uint8_t>() % start.admission.placement.switches.size());
}

void on_join(fuzz::CheckedRegistry& registry, FuzzedDataProvider& input) {
  const control::Join asked{fuzz::request_of(input, registry), std::chrono::milliseconds(1)};
  if (const auto join = passed(asked, input)) registry.join(join->request);
}

void on_life(fuzz::CheckedRegistry& registry, bool leaves, FuzzedDataProvider& input) {
  control::Life life;
  if (!registry.lives.empty()) {
    const auto& known = registry.lives[input.ConsumeIntegral<std::uint8_t>() % registry.lives.size()];
    life = {known.job_epoch, known.rank, known.rank_epoch, {}};
  }
  const auto at = [](const control::Life& of) {
    return fuzz::CheckedRegistry::Life{of.job_epoch, of.rank, of.rank_epoch, {}, {}};
  };
  if (leaves) {
    if (const auto left = passed(life, input)) registry.leave(at(*left));
  } else if (const auto beat = passed(control::Beat{life}, input)) {
    registry.heartbeat(at(beat->life));
  }
}

void on_install(const session::StartJob* start, Switch& a_switch, FuzzedDataProvider& input) {
  jobs::AtpInstallation told;
  if (start != nullptr) told = fuzz::CheckedRegistry::installation_for(*start, a_switch_of(*start, input));
  if (const auto installation = passed(told, input)) a_switch.install(*installation);
}

void on_install_ring(const session::StartJob* start, FuzzedDataProvider& input) {
  jobs::TreeInstallation told;
  if (start != nullptr) told = fuzz::CheckedRegistry::ring_for(*start, a_switch_of(*start, input));
  if (const auto installation = passed(told, input)) Switch::install(*installation);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  fuzz::CheckedRegistry registry;
  Switch a_switch;
  while (input.remaining_bytes() > 0) {
    const auto latest = [&](bool rings) -> const session::StartJob* {
      for (auto start = registry.starts.rbegin(); start != registry.starts.rend(); ++start) {
        if (!start->admission.placement.switches.empty() && fuzz::CheckedRegistry::is_atp(*start) != rings) return &*start;
      }
      return nullptr;
    };
    switch (input.ConsumeIntegralInRange<int>(0, 11)) {
      case 0:
      case 1:
      case 2:
      case 3:
        on_join(registry, input);
        break;
      case 4:
        on_life(registry, false, input);
        break;
      case 5:
        on_life(registry, true, input);
        break;
      case 6:
        on_install(latest(false), a_switch, input);
        break;
      case 7:
        on_install_ring(latest(true), input);
        break;
      case 8:
        if (const auto ended = passed(control::Uninstall{1}, input)) a_switch.uninstall(ended->job_epoch);
        break;
      case 9:
        static_cast<void>(passed(control::HelloRequest{"train"}, input));
        break;
      default:
        if (registry.tickets.empty()) break;
        const std::size_t index = input.ConsumeIntegral<std::uint8_t>() % registry.tickets.size();
        input.ConsumeIntegralInRange<int>(0, 3) != 0 ? registry.poll(index) : registry.cancel(index);
    }
  }
  registry.end();
  return 0;
}
