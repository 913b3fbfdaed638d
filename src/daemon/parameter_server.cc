#include "netsum/parameter_server.h"

#include <utility>
#include <vector>

#include "daemon/node.h"
#include "service/atp_server_service.h"
#include "service/probe_service.h"

namespace netsum {
namespace {

void check_chip(const ParameterServerOptions& options) {
  const bool chip = options.rules == "chip";
  if (chip == options.allow_fcs_only) return;
  throw Error(ErrorCode::bad_argument,
              chip ? "packets of --rules chip have no checksum except Ethernet's frame check: pass --allow-fcs-only if that "
                     "suffices on this network, or use --rules netsum"
                   : "--allow-fcs-only requires --rules chip");
}

// A chip has no keys.
ParameterServerOptions without_keys(ParameterServerOptions options) {
  if (options.rules != "chip") return options;
  if (options.require_keys || options.packet_security.value_or(PacketSecurity::none) != PacketSecurity::none) {
    throw Error(ErrorCode::bad_argument, "--rules chip has no packet keys: omit --packet-security and --require-keys");
  }
  options.packet_security = PacketSecurity::none;
  return options;
}

jobs::AtpSettings settings_of(const ParameterServerOptions& options) {
  jobs::AtpSettings settings;
  if (options.indexing == "rehash") {
    settings.indexing = atp::Indexing::rehash;
  } else if (options.indexing == "hash") {
    settings.indexing = atp::Indexing::hash;
  } else if (options.indexing == "linear") {
    settings.indexing = atp::Indexing::linear;
  } else {
    throw Error(ErrorCode::bad_argument, "indexing is rehash, hash or linear, not '" + options.indexing + "'");
  }
  if (options.overflow != "exact" && options.overflow != "saturating") {
    throw Error(ErrorCode::bad_argument, "overflow is exact or saturating, not '" + options.overflow + "'");
  }
  if (options.overflow == "saturating") settings.overflow = atp::Overflow::saturating;
  if (options.rules != "netsum" && options.rules != "paper" && options.rules != "chip") {
    throw Error(ErrorCode::bad_argument, "--rules must be netsum, paper or chip, not '" + options.rules + "'");
  }
  if (options.rules == "paper") settings.rules = atp::Rules::paper;
  if (options.rules == "chip") settings.rules = atp::Rules::chip;
  check_chip(options);
  if (options.scaling != "fixed" && options.scaling != "dynamic") {
    throw Error(ErrorCode::bad_argument, "scaling is fixed or dynamic, not '" + options.scaling + "'");
  }
  if (options.scaling == "dynamic") settings.scaling = atp::Scaling::dynamic;
  return settings;
}

jobs::AtpParts parts_of(const ParameterServerOptions& options) {
  if (options.parts != 0 &&
      (options.first_part >= options.parts || options.own_parts > options.parts - options.first_part)) {
    throw Error(ErrorCode::bad_argument, "slot parts out of range: first " + std::to_string(options.first_part) +
                                             ", count " + std::to_string(options.own_parts) + "; parts are numbered 0 to " +
                                             std::to_string(options.parts - 1));
  }
  return {options.parts, options.first_part, options.own_parts};
}

}  // namespace

struct ParameterServer::Impl {
  Impl(const ParameterServerOptions& options, daemon::NodeOptions of_node)
      : Impl(settings_of(options), parts_of(options), std::move(of_node)) {}
  Impl(const jobs::AtpSettings& settings, const jobs::AtpParts& parts, daemon::NodeOptions of_node)
      : node(std::move(of_node)) {
    const service::Lanes lanes = node.lanes();
    std::vector<std::unique_ptr<service::Service>> services;
    services.push_back(std::make_unique<service::AtpServerService>(
        lanes, [settings](const std::string&) { return settings; }, parts));
    services.push_back(std::make_unique<service::ProbeService>(lanes, node.cookies()));
    node.serve(std::move(services), {});
  }

  daemon::Node node;
};

ParameterServer::ParameterServer(const ParameterServerOptions& options)
    : impl_(
          std::make_unique<Impl>(options, daemon::node_options(without_keys(options), options.slots, "parameter server"))) {}

ParameterServer::ParameterServer(ParameterServer&&) noexcept = default;

ParameterServer::~ParameterServer() {
  if (impl_ && impl_->node.is_another_process()) static_cast<void>(impl_.release());
}

void ParameterServer::set_tenants(std::vector<Tenant> tenants) {
  impl_->node.set_tenants(std::move(tenants));
}

void ParameterServer::reload_certificate() {
  impl_->node.reload_certificate();
}

bool ParameterServer::alive() {
  return impl_->node.alive();
}

std::string ParameterServer::address() const {
  return impl_->node.address();
}

}  // namespace netsum
