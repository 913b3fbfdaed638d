#include "jobs/switchml_terms.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "encoding/codec.h"
#include "jobs/own_layouts.h"
#include "jobs/own_part.h"

namespace netsum::jobs {

struct SwitchMlGrant {
  std::vector<std::string> public_keys;  // by rank
};

template <class Archive>
void fields(Archive& a, SwitchMlAsk& m) {
  a.number(1, "run_bytes", m.run_bytes);
  a.message(2, "privacy", m.privacy);
}
template <class Archive>
void fields(Archive& a, SwitchMlGrant& m) {
  a.list(1, "public_keys", m.public_keys, seal::most_private_ranks);
}

std::string switchml_layout() {
  return encoding::Layout::of<SwitchMlAsk>() + encoding::Layout::of<SwitchMlGrant>();
}

session::OwnPart own_part(const SwitchMlAsk& ask) {
  return written(ask);
}

std::vector<seal::PublicKey> public_keys(const session::Admission& admission) {
  return keys_of(checked_part<SwitchMlGrant>(admission.own).public_keys);
}

session::ProtocolRules::Own switchml_terms() {
  session::ProtocolRules::Own own;
  own.check_request = [](const session::JoinRequest& request) {
    const auto ask = encoding::parsed<SwitchMlAsk>(request.own);
    return ask ? check(ask->privacy, request.world_size) : ask.why();
  };
  own.compare = [](const session::JoinRequest& first,
                   const session::JoinRequest& second) -> std::optional<session::Difference> {
    const SwitchMlAsk theirs = checked_part<SwitchMlAsk>(first.own), ours = checked_part<SwitchMlAsk>(second.own);
    if (theirs.run_bytes != ours.run_bytes)
      return session::Difference{"bytes in a run of stripes", theirs.run_bytes, ours.run_bytes};
    return compare(theirs.privacy, ours.privacy);
  };
  own.agree = [](const session::Gathered& gathered) {
    session::Agreement agreement;
    agreement.slots = gathered.window;
    SwitchMlGrant grant;
    for (const session::JoinRequest* const rank : gathered.ranks) {
      std::string key = checked_part<SwitchMlAsk>(rank->own).privacy.public_key;
      if (!key.empty()) grant.public_keys.push_back(std::move(key));
    }
    if (!grant.public_keys.empty()) agreement.own = written(grant);
    return agreement;
  };
  own.check_admission = [](const session::Admission& admission, const session::JoinRequest& asked) {
    const auto grant = encoding::parsed<SwitchMlGrant>(admission.own);
    if (!grant) return grant.why();
    return check_public_keys(grant->public_keys, checked_part<SwitchMlAsk>(asked.own).privacy, asked.rank, asked.world_size);
  };
  return own;
}

}  // namespace netsum::jobs
