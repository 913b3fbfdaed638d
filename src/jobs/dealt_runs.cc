#include "jobs/dealt_runs.h"

#include <optional>
#include <string>

#include "encoding/codec.h"
#include "jobs/own_layouts.h"
#include "jobs/own_part.h"

namespace netsum::jobs {

template <class Archive>
void fields(Archive& a, RunAsk& m) {
  a.number(1, "run_bytes", m.run_bytes);
}

std::string run_layout() {
  return encoding::Layout::of<RunAsk>();
}

session::OwnPart own_part(const RunAsk& ask) {
  return written(ask);
}

session::ProtocolRules::Own same_runs() {
  session::ProtocolRules::Own own;
  own.check_request = [](const session::JoinRequest& request) { return encoding::parsed<RunAsk>(request.own).why(); };
  own.compare = [](const session::JoinRequest& first, const session::JoinRequest& second) {
    const std::uint32_t theirs = checked_part<RunAsk>(first.own).run_bytes,
                        ours = checked_part<RunAsk>(second.own).run_bytes;
    return theirs == ours ? std::nullopt : std::optional<session::Difference>({"bytes in a run of stripes", theirs, ours});
  };
  own.agree = [](const session::Gathered& gathered) {
    session::Agreement agreement;
    agreement.slots = gathered.window;
    return agreement;
  };
  own.check_admission = [](const session::Admission& admission, const session::JoinRequest&) {
    return std::string(admission.own.empty() ? "" : "an admission to a SwitchML job has no protocol data");
  };
  return own;
}

}  // namespace netsum::jobs
