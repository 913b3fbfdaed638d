#include "p4app/switch_daemon.h"

#include <optional>
#include <utility>

#include "base/counters.h"
#include "control/fingerprint.h"
#include "netsum/error.h"
#include "p4app/control_server.h"
#include "p4app/stations.h"
#include "protocol/p4app/switch.h"
#include "runtime/packet_loop.h"
#include "telemetry/metrics_server.h"
#include "transport/addresses/addresses.h"
#include "transport/addresses/interfaces.h"
#include "transport/addresses/neighbour_entries.h"
#include "transport/addresses/next_hop.h"
#include "transport/datagram/lossy.h"
#include "transport/datagram/udp.h"

namespace netsum::p4app {
namespace {

constexpr const char* hole =
    "warning: a packet of p4app names its round by a slot and one bit. The switch adds a packet that arrives two rounds "
    "late "
    "once more, so sums may be wrong where the network reorders packets (docs/protocol-p4app.md)";

std::string in_words(const SwitchCounters& counters) {
  return std::to_string(counters.packets) + " packets, " + std::to_string(counters.completed) + " sums, " +
         std::to_string(counters.repeats_answered + counters.repeats_ignored) + " repeats; added twice " +
         std::to_string(counters.added_twice) + ", to another packet's sum " + std::to_string(counters.added_to_another) +
         ", answered with another packet's sum " + std::to_string(counters.answered_by_another);
}

std::uint64_t wrong_in(const SwitchCounters& counters) {
  return counters.added_twice + counters.added_to_another + counters.answered_by_another;
}

}  // namespace

struct SwitchDaemon::Impl {
  SwitchDaemonOptions options;
  Endpoint at;
  std::string interface_name;
  transport::EthernetInterface interface;  // of the loopback device: zeros
  const Time started = runtime::now();
  Switch lane_switch;                         // the loop's
  std::unique_ptr<runtime::PacketLoop> loop;  // its thread uses what is above
  // The control server's thread alone.
  std::optional<transport::NeighbourEntries> neighbours;
  std::uint64_t wrong = 0;
  std::unique_ptr<ControlServer> server;
  std::unique_ptr<telemetry::MetricsServer> metrics;

  void log(const std::string& line) const {
    if (options.log) options.log(line);
  }

  [[nodiscard]] SwitchCounters counters() const {
    SwitchCounters counters;
    loop->call([&] { counters = lane_switch.counters(); });
    return counters;
  }

  void open() {
    at = transport::resolve(options.listen);
    if (!transport::is_ipv4(at) || transport::is_unspecified(at))
      throw Error(ErrorCode::bad_argument,
                  "--listen " + options.listen + ": p4app needs one IPv4 address, which workers are told");
    if (!transport::is_loopback(at)) {
      const auto of = transport::interface_of(at);
      if (!of)
        throw Error(ErrorCode::bad_argument,
                    "--listen " + options.listen + " is an address of no interface of this host: give one of this host");
      interface_name = of->name;
      interface = transport::ethernet_interface(interface_name);
      neighbours.emplace(interface.index);
    }
    transport::UdpOptions udp;
    udp.bind = at;
    udp.bind.port = wire::p4app::switch_port;
    auto socket = std::make_unique<transport::Udp>(udp);
    if (const std::string warning = socket->buffer_warning(); !warning.empty()) log("warning: " + warning);
    std::unique_ptr<transport::Transport> transport = std::move(socket);
    if (options.loss > 0)
      transport = std::make_unique<transport::Lossy>(std::move(transport), options.loss, options.loss_seed, 0);
    loop =
        std::make_unique<runtime::PacketLoop>(std::move(transport), 0, runtime::ThreadOptions(),
                                              [this](std::span<const RxView> packets, Time now, transport::Transport& from) {
                                                lane_switch.on_packets(packets, now, from.sink());
                                                return 0;
                                              });
  }

  void serve() {
    Controller::Hooks hooks;
    hooks.begin = [this](std::uint64_t session, std::uint32_t workers, std::uint32_t elements) {
      if (neighbours) neighbours.emplace(interface.index);
      loop->call([&] { lane_switch.begin(workers, elements); });
      log("session " + std::to_string(session) + ": " + std::to_string(workers) + " workers, packets of " +
          std::to_string(elements) + " elements; so far " + in_words(counters()));
    };
    hooks.worker = [this](std::uint32_t rank, const Station& station) { begin_worker(rank, station); };
    auto controller = std::make_unique<Controller>(Station{number_of_mac(interface.address), ipv4_of(at)}, std::move(hooks));
    server = std::make_unique<ControlServer>(at, std::move(controller), [this] { look(); });
    if (!options.metrics.empty()) {
      metrics = std::make_unique<telemetry::MetricsServer>(telemetry::metrics_address(options.metrics, options.listen),
                                                           [this] { return report(); });
    }
    log(hole);
  }

  void begin_worker(std::uint32_t rank, const Station& station) {
    const Endpoint address = endpoint_of_ipv4(station.ipv4);
    loop->call([&] { lane_switch.set_worker(rank, address); });
    // Their clients have network cards of their own, and answer no ARP.
    const auto mac = mac_of(station.mac);
    if (!neighbours || station.mac == 0 || transport::is_of_this_host(address) || neighbours->set(address, mac)) return;
    log("warning: the kernel refuses the MAC of rank " + std::to_string(rank) +
        " from this process, so that rank must answer ARP: run the switch as root, or `ip neigh replace` for its address "
        "on " +
        interface_name);
  }

  void look() {
    const SwitchCounters now = counters();
    if (wrong_in(now) == wrong) return;
    wrong = wrong_in(now);
    log("warning: the switch has sent wrong sums, as it added packets that netsum's own protocol refuses: " + in_words(now));
  }

  [[nodiscard]] telemetry::Report report() const {
    telemetry::Report report;
    report.version = control::version();
    report.daemon = "p4app switch";
    report.address = server->address();
    report.threads = report.lanes = 1;
    report.slots = report.slots_free = wire::p4app::max_slots;
    report.uptime_seconds = std::chrono::duration<double>(runtime::now() - started).count();
    loop->call([&] {
      report.counters = named(lane_switch.counters());
      for (std::size_t kind = 1; kind < wire::parse_error_kinds; ++kind)
        report.counters.add(wire::malformed_counter(static_cast<wire::ParseError>(kind)),
                            lane_switch.counters().malformed[kind]);
      const transport::Counters of_socket = loop->transport().counters();
      report.counters.add("dropped_injected", of_socket.dropped_injected);
      report.counters.add("dropped_kernel", of_socket.dropped_kernel);
      report.counters.add("send_failures", of_socket.send_failures);
    });
    return report;
  }

  ~Impl() {
    metrics.reset();
    server.reset();
    loop.reset();
  }
};

SwitchDaemon::SwitchDaemon(const SwitchDaemonOptions& options) : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  impl_->open();
  impl_->serve();
}

SwitchDaemon::SwitchDaemon(SwitchDaemon&&) noexcept = default;

SwitchDaemon::~SwitchDaemon() = default;

std::string SwitchDaemon::address() const {
  return impl_->server->address();
}

std::string SwitchDaemon::summary() const {
  return in_words(impl_->counters());
}

}  // namespace netsum::p4app
