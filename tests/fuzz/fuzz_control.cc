// Every control message that an aggregator or a switch receives, as bytes, through the border and at what serves it: the
// registry, and what a switch makes of the jobs that it is told of.
#include <optional>

#include "control/border.h"
#include "fuzz/control_messages.h"
#include "fuzz/registry_model.h"
#include "jobs/chip_profile.h"
#include "protocol/atp/switch.h"
#include "protocol/netreduce/tunnel.h"
#include "protocol/switchml/chip_switch.h"

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

// What the protocol reads in the message's own part; none: it refuses the job in few words.
template <class Read>
auto read_own(const session::SwitchMessage& message, const Read& read) -> std::optional<decltype(read(message))> {
  try {
    return read(message);
  } catch (const Error& error) {
    const std::string why = error.what();
    fuzz::check(error.code() == ErrorCode::refused, "a message without sense is refused");
    fuzz::check(session::printable(why) && why.size() < 2048, "a refusal in one line");
  }
  return std::nullopt;
}

// The same job is read as it is written.
void check_again(const jobs::AtpInstallation& installation) {
  const session::SwitchMessage first = jobs::message_of(installation);
  const auto again = read_own(first, [](const auto& message) { return jobs::read_installation(message); });
  fuzz::check(again && jobs::message_of(*again).own == first.own, "what was accepted is accepted again");
}
template <class Read>
void check_again(const jobs::TreeInstallation& installation, const Read& read) {
  const auto message_of = [](const jobs::TreeInstallation& of) {
    return jobs::tree_message(of.start, of.switch_id, of.again, of.switches, of.root);
  };
  const session::SwitchMessage first = message_of(installation);
  const auto again = read_own(first, read);
  fuzz::check(again && message_of(*again).own == first.own, "what was accepted is accepted again");
}

// As a daemon's services do, to each of which a job of its protocol comes.
class Switch {
 public:
  void install(const session::SwitchMessage& message) {
    const auto atp = [](const auto& of) { return jobs::read_installation(of); };
    const auto ring = [](const auto& of) { return jobs::read_ring(of, jobs::netreduce_rules()); };
    const auto bump = [](const auto& of) { return jobs::read_ring(of, jobs::bump_rules(true)); };
    const auto tree = [](const auto& of) { return jobs::read_switchml(of, jobs::switchml_rules()); };
    const auto chip = [](const auto& of) { return jobs::read_switchml(of, jobs::switchml_chip_rules({2, {64, 256}})); };
    if (message.protocol == jobs::atp_rules().name) {
      if (const auto read = read_own(message, atp)) {
        check_again(*read);
        install(*read);
      }
    } else if (message.protocol == jobs::netreduce_rules().name) {
      if (const auto read = read_own(message, ring)) {
        check_again(*read, ring);
        install_rings(*read);
      }
      if (const auto read = read_own(message, bump)) install_bump(*read);
    } else if (message.protocol == jobs::switchml_rules().name) {
      if (const auto read = read_own(message, tree)) {
        check_again(*read, tree);
        install_tree<switchml::Switch>(*read);
      }
    } else if (message.protocol == jobs::switchml_chip_rules().name) {
      if (const auto read = read_own(message, chip)) {
        check_again(*read, chip);
        install_tree<switchml::ChipSwitch>(*read);
      }
    }
  }

  void install(const jobs::AtpInstallation& installation) {
    static_cast<void>(jobs::memory_bytes(installation));
    static_cast<void>(jobs::destinations(installation));
    for (std::size_t lane = 0; lane < installation.lanes.size(); ++lane) {
      static_cast<void>(jobs::switch_neighbours(installation.lanes[lane]));
      const atp::SwitchJobConfig config = jobs::switch_job(installation, lane);
      atp::Switch& pool = pools_[lane % fuzz::CheckedRegistry::lanes];
      const bool known = pool.job_counters(config.epoch) != nullptr;
      fuzz::check(pool.add_job(config) == (!known && config.packet_elements <= shape.packet_elements),
                  "a job is added once");
    }
    uninstall(installation.job_epoch);
  }

  static void install_rings(const jobs::TreeInstallation& installation) {
    static_cast<void>(jobs::memory_bytes(installation));
    static_cast<void>(jobs::known_as(installation));
    for (std::size_t lane = 0; lane < installation.root.size(); ++lane) {
      for (const seal::Neighbour& neighbour : jobs::ring_neighbours(installation, lane)) {
        static_cast<void>(jobs::destination(installation, lane, neighbour.endpoint));
      }
      add(jobs::tunnel_ring(installation, lane));
    }
  }
  static void install_bump(const jobs::TreeInstallation& installation) { add(jobs::bump_ring(installation)); }

  static void add(const netreduce::TunnelRing& ring) {
    fuzz::check(netreduce::check(ring.ring).empty(), "a ring can be made");
    const std::size_t bytes = netreduce::Accelerator::memory_bytes(ring.ring);
    if (bytes > most_bytes) return;
    std::vector<fuzz::CacheLine> memory(bytes / sizeof(fuzz::CacheLine) + 1);
    netreduce::Tunnel tunnel;
    fuzz::check(tunnel.add_ring(ring, std::as_writable_bytes(std::span(memory)).first(bytes)), "a ring is added");
    static_cast<void>(tunnel.accelerator().stall(ring.ring.incarnation));
    tunnel.remove_ring(ring.ring.incarnation);
  }

  template <class Machine>
  static void install_tree(const jobs::TreeInstallation& installation) {
    static_cast<void>(jobs::switchml_memory_bytes(installation));
    static_cast<void>(jobs::known_as(installation));
    for (std::size_t lane = 0; lane < installation.root.size(); ++lane) {
      for (const Endpoint& to : jobs::receivers(installation, lane)) {
        static_cast<void>(jobs::destination(installation, lane, to));
      }
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

session::ProtocolRules any_rules(FuzzedDataProvider& input) {
  switch (input.ConsumeIntegralInRange<int>(0, 4)) {
    case 0:
      return jobs::atp_rules();
    case 1:
      return jobs::netreduce_rules();
    case 2:
      return jobs::bump_rules(true);
    case 3:
      return jobs::switchml_rules();
    default:
      return jobs::switchml_chip_rules();
  }
}

// Own parts of requests that pass the border, at any protocol.
void check_own(const session::JoinRequest& request, FuzzedDataProvider& input) {
  const session::ProtocolRules rules = any_rules(input);
  if (!rules.check_packet(request.packet_elements).empty()) return;
  const std::string why = session::check_request(rules, request);
  fuzz::check(session::printable(why) && why.size() < 2048, "a refusal in one line");
}

void on_join(fuzz::CheckedRegistry& registry, FuzzedDataProvider& input) {
  control::Join asked{fuzz::request_of(input, registry), std::chrono::milliseconds(1)};
  if (input.ConsumeIntegralInRange<int>(0, 15) == 0) asked.request.own = input.ConsumeRandomLengthString(64);
  const auto join = passed(asked, input);
  if (!join) return;
  check_own(join->request, input);
  registry.join(join->request);
}

// What a rank makes of any own part in its admission.
void on_admission(const fuzz::CheckedRegistry& registry, FuzzedDataProvider& input) {
  if (registry.lives.empty()) return;
  const auto& life = registry.lives[input.ConsumeIntegral<std::uint8_t>() % registry.lives.size()];
  session::Admission admission = life.admission;
  admission.own = input.ConsumeBool() ? fuzz::spoiled_part(admission.own, input) : input.ConsumeRandomLengthString(64);
  const session::ProtocolRules rules =
      input.ConsumeIntegralInRange<int>(0, 3) == 0 ? any_rules(input) : fuzz::rules_of(life.request);
  if (!rules.check_packet(life.request.packet_elements).empty()) return;
  if (!session::check_request(rules, life.request).empty()) return;  // a rank asks for what its protocol has
  const auto parsed = control::parse_admission(control::view(control::write(admission)), life.request, rules);
  if (!fuzz::passed(parsed, 4096)) return;
  fuzz::check(parsed->own == admission.own, "an own part is handed on as it is");
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

// Of a job that began here, or of none.
void on_install(const session::StartJob* start, Switch& node, FuzzedDataProvider& input) {
  session::SwitchMessage told{"atp", "train", 1, false, {}};
  if (start != nullptr) told = fuzz::CheckedRegistry::message_for(*start, a_switch_of(*start, input));
  if (start == nullptr || input.ConsumeIntegralInRange<int>(0, 7) == 0) told.protocol = any_rules(input).name;
  if (input.ConsumeIntegralInRange<int>(0, 7) == 0) {
    const std::string any = input.ConsumeRandomLengthString(512);
    told.own.assign(any.begin(), any.end());
  }
  if (const auto message = passed(told, input)) node.install(*message);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  fuzz::CheckedRegistry registry;
  Switch node;
  while (input.remaining_bytes() > 0) {
    const auto latest = [&](bool trees) -> const session::StartJob* {
      for (auto start = registry.starts.rbegin(); start != registry.starts.rend(); ++start) {
        if (!start->admission.placement.switches.empty() && fuzz::CheckedRegistry::is_atp(*start) != trees) return &*start;
      }
      return nullptr;
    };
    switch (input.ConsumeIntegralInRange<int>(0, 12)) {
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
        on_install(latest(false), node, input);
        break;
      case 7:
        on_install(latest(true), node, input);
        break;
      case 8:
        if (const auto ended = passed(control::Uninstall{1}, input)) node.uninstall(ended->job_epoch);
        break;
      case 9:
        static_cast<void>(passed(control::HelloRequest{"train"}, input));
        break;
      case 10:
        on_admission(registry, input);
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
