#include "session/protocol_rules.h"

namespace netsum::session {
namespace {

std::string check_none(const ProtocolRules& rules, const OwnPart& own) {
  return own.empty() ? "" : rules.name + " does not use protocol data in a join";
}

}  // namespace

std::string check_request(const ProtocolRules& rules, const JoinRequest& request) {
  return rules.own ? rules.own->check_request(request) : check_none(rules, request.own);
}
std::optional<Difference> compare(const ProtocolRules& rules, const JoinRequest& first, const JoinRequest& second) {
  return rules.own && rules.own->compare ? rules.own->compare(first, second) : std::nullopt;
}
Agreement agree(const ProtocolRules& rules, const Gathered& gathered) {
  if (rules.own) return rules.own->agree(gathered);
  Agreement agreement;
  agreement.slots = gathered.window;
  return agreement;
}
std::string check_terms(const ProtocolRules& rules, const Terms& terms) {
  return rules.own && rules.own->check_terms ? rules.own->check_terms(terms) : "";
}
std::vector<OwnPart> shares(const ProtocolRules& rules, const OwnPart& own, std::uint32_t ranks) {
  return rules.own && rules.own->shares ? rules.own->shares(own, ranks) : std::vector<OwnPart>();
}
std::string check_admission(const ProtocolRules& rules, const Admission& admission, const JoinRequest& asked) {
  return rules.own ? rules.own->check_admission(admission, asked) : check_none(rules, admission.own);
}

}  // namespace netsum::session
