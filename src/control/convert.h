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

inline constexpr char token_key[] = "netsum-token";

}  // namespace netsum::control
