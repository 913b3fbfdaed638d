// Protocol buffers <-> the structures of session/.
#pragma once

#include <algorithm>
#include <optional>

#include "base/endpoint.h"
#include "control/netsum.pb.h"
#include "session/registry.h"

namespace netsum::control {

namespace proto = v1;

inline void to_proto(const Endpoint& endpoint, proto::Endpoint& out) {
  out.set_address(endpoint.address.data(), endpoint.address.size());
  out.set_port(endpoint.port);
  out.set_scope(endpoint.scope);
}

// Nothing if the message is not an endpoint.
inline std::optional<Endpoint> from_proto(const proto::Endpoint& in) {
  Endpoint endpoint;
  if (in.address().size() != endpoint.address.size() || in.port() > 0xffff) return std::nullopt;
  std::copy(in.address().begin(), in.address().end(), endpoint.address.begin());
  endpoint.port = static_cast<std::uint16_t>(in.port());
  endpoint.scope = in.scope();
  return endpoint;
}

// Nothing if a data endpoint is none; whether the rest makes sense is the registry's to say.
inline std::optional<session::JoinRequest> from_proto(const proto::JoinRequest& in) {
  session::JoinRequest request{
      in.protocol_version(), in.protocol(),       in.job(), in.rank(), in.world_size(), in.packet_elements(),
      in.slots_fixed(),      in.slots_measured(), {}};
  for (const auto& endpoint : in.endpoints()) {
    const auto parsed = from_proto(endpoint);
    if (!parsed) return std::nullopt;
    request.endpoints.push_back(*parsed);
  }
  return request;
}

inline constexpr char token_key[] = "netsum-token";

}  // namespace netsum::control
