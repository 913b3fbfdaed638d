#include "sim/private_jobs.h"

#include <array>

#include "base/bytes.h"
#include "sim/labels.h"
#include "sim/random.h"

namespace netsum::sim {
namespace {

[[nodiscard]] std::uint64_t number_of(const Scenario& scenario, const JobPlan& plan) {
  return static_cast<std::uint64_t>(&plan - scenario.jobs.data());
}

[[nodiscard]] seal::Agreement agreement_of(const Scenario& scenario, const JobPlan& plan, std::uint32_t rank,
                                           std::uint32_t life) {
  Random random(
      derive(derive(scenario.seed, Label::of_privacy + number_of(scenario, plan)), std::uint64_t{life} << 16 | rank));
  std::array<std::byte, std::tuple_size_v<seal::PublicKey>> drawn{};
  for (std::size_t i = 0; i < drawn.size(); i += 8) store_le(drawn.data() + i, random.next());
  return {"the secret of " + plan.name, drawn};
}

void make_private(stream::Operation& call, bool floats) {
  call.wire = WireFormat::native;
  if (!stream::reduces(call)) return;
  if (call.op != ReduceOp::avg) call.op = ReduceOp::sum;
  if (!floats) {
    call.dtype = DType::int32;
  } else if (call.dtype == DType::boolean || call.dtype == DType::float64) {
    call.dtype = DType::float32;
  }
  call.fixed_point = is_float(call.dtype);
}

}  // namespace

void draw_private(Scenario& scenario, bool floats) {
  for (JobPlan& job : scenario.jobs) {
    job.private_sums = Random(derive(scenario.seed, Label::of_privacy + number_of(scenario, job))).chance(0.25);
    if (!job.private_sums) continue;
    for (stream::Operation& call : job.calls) make_private(call, floats);
    if (!job.mismatch) continue;
    stream::Operation& other = job.mismatch->call;
    make_private(other, floats);
    if (stream::signature_of(other, 0) == stream::signature_of(job.calls[other.number], 0)) other.tag += 3;
  }
}

jobs::PrivateAsk privacy_of(const Scenario& scenario, const JobPlan& plan, std::uint32_t rank, std::uint32_t life) {
  return plan.private_sums ? jobs::asked_by(agreement_of(scenario, plan, rank, life)) : jobs::PrivateAsk();
}

std::optional<seal::PadKeys> pads_of(const WorkerLanePlan& plan, std::span<const seal::PublicKey> all) {
  if (!plan.plan->private_sums) return std::nullopt;
  std::optional<seal::PadKeys> keys = agreement_of(*plan.scenario, *plan.plan, plan.number, plan.life).keys(all, plan.rank);
  if (!keys) throw Violation("a rank was told public keys that are none, or not its own");
  return keys;
}

}  // namespace netsum::sim
