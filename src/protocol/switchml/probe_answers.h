// The responder to probe.h, for servers of any protocol: a reply is never longer than its probe, and carries the cookie of
// the endpoint that it is sent to.
#pragma once

#include "base/endpoint_cookies.h"
#include "base/packet_io.h"
#include "wire/switchml.h"

namespace netsum::switchml {

class ProbeAnswers {
 public:
  explicit ProbeAnswers(const EndpointCookies& cookies = {}) : cookies_(cookies) {}

  // Answers a packet whose type is a probe's.
  [[nodiscard]] wire::ParseError answer(const RxView& packet, const wire::switchml::Common& common, Sink& sink) const {
    wire::switchml::ProbePacket probe{};
    if (const auto error = wire::switchml::parse_probe(packet.bytes, common, probe); error != wire::ParseError::none)
      return error;
    probe.common.type = wire::switchml::Type::probe_reply;
    probe.cookie = cookies_.of(packet.source);
    wire::switchml::write_probe(sink.datagram(packet.source, wire::switchml::probe_reply_bytes), probe);
    return wire::ParseError::none;
  }

 private:
  EndpointCookies cookies_;
};

}  // namespace netsum::switchml
