#include "service/probe_service.h"

#include "protocol/switchml/probe_answers.h"
#include "protocol/switchml/switch.h"
#include "service/counters.h"

namespace netsum::service {

class ProbeService::ProbeFormat final : public Format {
 public:
  explicit ProbeFormat(const EndpointCookies& cookies) : answers_(cookies) {}

  [[nodiscard]] bool takes(std::uint8_t first) const override { return first == wire::switchml::version; }
  void on_packets(std::span<const RxView> packets, bool, Time, Sink& sink) override {
    for (const RxView& packet : packets) {
      wire::switchml::Common common;
      wire::ParseError error = wire::switchml::parse_common(packet.bytes, common);
      if (error == wire::ParseError::none && common.type != wire::switchml::Type::probe) {
        ++counters.unexpected_type;
        continue;
      }
      if (error == wire::ParseError::none) error = answers_.answer(packet, common, sink);
      ++(error == wire::ParseError::none ? counters.probes : counters.malformed[static_cast<std::size_t>(error)]);
    }
  }
  [[nodiscard]] std::uint64_t strangers() const override { return counters.strangers(); }

  switchml::SwitchCounters counters;

 private:
  const switchml::ProbeAnswers answers_;
};

ProbeService::ProbeService(const Lanes& lanes, const EndpointCookies& cookies) {
  for (Lane* const lane : lanes) formats_.push_back(serve<ProbeFormat>(*lane, cookies));
}

void ProbeService::report(std::size_t lane, Counters& counters) const {
  counters.add(counters_of_format(formats_[lane]->counters));
}

}  // namespace netsum::service
