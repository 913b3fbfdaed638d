// Every reply that a rank, an aggregator above switches, or `netsum status` receives, as bytes, through the border and at
// what it is used for: the configurations of a rank's lanes, the log of its operations, its supervisor, a report's table.
#include <optional>

#include "control/border.h"
#include "fuzz/control_messages.h"
#include "fuzz/registry_model.h"
#include "jobs/chip_profile.h"
#include "protocol/atp/worker.h"
#include "protocol/netreduce/roce_host.h"

namespace {

using namespace netsum;  // NOLINT(google-build-using-namespace): a program of one function

template <class Value>
bool passes(const encoding::Parsed<Value>& value) {
  return fuzz::passed(value, 4096);
}

// What a rank remembers of calls, of which it has had some results; and what it says of that when it joins.
struct Remembered {
  explicit Remembered(FuzzedDataProvider& input) {
    if (input.ConsumeBool()) return;
    static_cast<void>(log.resume({input.ConsumeIntegralInRange<std::uint64_t>(0, 8), {}}));
    for (int calls = input.ConsumeIntegralInRange<int>(0, 6); calls > 0; --calls) {
      stream::Operation call;
      call.number = log.next_issue();
      call.elements = tensor.size();
      call.data = reinterpret_cast<std::byte*>(tensor.data());
      static_cast<void>(log.issue(call));
      if (input.ConsumeIntegralInRange<int>(0, 3) != 0) log.finish(call.number);
    }
  }
  std::vector<float> tensor = std::vector<float>(4);
  stream::OperationLog log{32};
};

// As collective/join.cc makes of it.
void start_lanes(const session::Admission& admission, const session::JoinRequest& asked,
                 const std::vector<netreduce::Member>& members) {
  constexpr std::uint64_t most_elements = 1 << 16;
  const std::uint64_t elements = std::uint64_t{admission.slots} * admission.packet_elements;
  for (std::size_t lane = 0; lane < admission.lanes; ++lane) {
    if (asked.protocol == "atp") {
      const atp::WorkerConfig config =
          jobs::worker_config(admission, asked.rank, asked.endpoints[lane], asked.endpoints[lane]);
      if (elements <= most_elements) atp::Worker worker(config);
    } else if (asked.protocol == "netreduce") {
      const jobs::RingGrant grant = jobs::ring_grant(admission);
      const netreduce::RoceHostConfig config = jobs::host_config(admission, grant, asked.rank, lane);
      fuzz::check(config.self == members[lane], "a rank's queue pairs are its own");
      if (elements * grant.message_packets <= most_elements) netreduce::RoceHost host(config);
    } else {
      fuzz::check(wire::switchml::possible_packet(admission.packet_elements), "a packet that SwitchML has");
    }
  }
}

// The job's own reply, and what becomes of it on the way.
void on_join_reply(FuzzedDataProvider& input) {
  fuzz::CheckedRegistry registry(input.ConsumeBool() ? 2 : 0);
  Remembered remembered(input);
  jobs::RingAsk ring;
  session::JoinRequest request = fuzz::request_of(input, registry, ring);
  const auto members_of = [&](std::uint32_t rank) {
    std::vector<netreduce::Member> members = ring.members;
    for (netreduce::Member& member : members) member.address[3] = static_cast<std::uint8_t>(rank);
    return members;
  };
  request.progress = remembered.log.progress();
  request.former_epoch = 0;
  request.world_size = std::min(request.world_size, 3U);
  for (std::uint32_t rank = 0; rank < request.world_size; ++rank) {
    session::JoinRequest of_rank = request;
    of_rank.rank = rank;
    if (!ring.members.empty()) of_rank.own = jobs::own_part(jobs::RingAsk{ring.message_packets, members_of(rank)});
    registry.join(of_rank);
  }
  for (std::size_t i = 0; i < registry.tickets.size(); ++i) registry.poll(i);
  if (registry.lives.empty()) return;
  const auto& life = registry.lives[input.ConsumeIntegral<std::uint8_t>() % registry.lives.size()];
  const auto admission = control::parse_admission(control::view(fuzz::arrived(life.admission, input)), life.request,
                                                  fuzz::rules_of(life.request));
  if (!passes(admission)) return;
  start_lanes(*admission, life.request, members_of(life.rank));
  for (const stream::Operation& again : remembered.log.resume(admission->resumption)) {
    fuzz::check(again.number >= admission->resumption.first, "nothing is sent again that all have");
  }
}

void on_heartbeat_reply(FuzzedDataProvider& input) {
  session::HeartbeatReply reply;
  reply.state = input.PickValueInArray({session::HeartbeatReply::State::running, session::HeartbeatReply::State::failed});
  reply.reason = "rank 1 died";
  reply.lost = 1;
  reply.left = RankSet::first(2);
  const auto parsed = control::parse<session::HeartbeatReply>(control::view(fuzz::arrived(reply, input)));
  if (!passes(parsed)) return;
  session::Supervisor supervisor({"job", 0, {"aggregator"}, 2}, {});
  const auto error = supervisor.on_reply(0, *parsed, {});
  fuzz::check(error.has_value() == (parsed->state != session::HeartbeatReply::State::running), "an end has a reason");
  static_cast<void>(supervisor.check_left(session::Stall{0, 1, 2, {}, {}}));
}

void on_install_reply(FuzzedDataProvider& input) {
  const control::InstallReply seen{{"issued different calls", 0, 1, RankSet::first(3), "packets are merged"}, 1};
  const auto view = control::parse<control::InstallReply>(control::view(fuzz::arrived(seen, input)));
  if (!passes(view)) return;
  const session::Placement placement{{"a", "b"}, {1, session::Placement::at_server}, {0, 0, 1}};
  static_cast<void>(session::refined(RankSet::first(3), placement, "a", view->view.missing));
}

void on_status_reply(FuzzedDataProvider& input) {
  telemetry::Report report;
  telemetry::JobReport& job = report.jobs.emplace_back();
  job.job.job = "train";
  job.job.world_size = 3;
  job.job.joined = RankSet::first(3);
  job.counters = {{"packets", 7}};
  report.interfaces = {{"eth0", true, "XDP in the driver"}};
  control::StatusReply message{telemetry::to_json(report)};
  std::string& json = message.report_json;
  for (int changes = input.ConsumeIntegralInRange<int>(0, 4); changes > 0; --changes) {
    const std::size_t at = input.ConsumeIntegralInRange<std::size_t>(0, json.size());
    json.replace(
        at, std::min(json.size() - at, input.ConsumeIntegralInRange<std::size_t>(0, 8)),
        input.PickValueInArray<std::string>({"", "-1", "1025", "4294967296", "1e400", "[]", "{}", "\"\\u0007\"", "null"}));
  }
  const auto parsed = control::parse_report(control::view(fuzz::arrived(message, input)));
  if (!passes(parsed)) return;
  fuzz::check(!telemetry::to_table(*parsed).empty() && !telemetry::to_json(*parsed).empty(), "a report has a table");
}

void on_hello_reply(FuzzedDataProvider& input) {
  const Endpoint lane{.address = {0xfd, 1}, .port = 7170}, group{.address = {0xff, 2}, .port = 7170};
  const control::Hello said{{lane, lane},
                            1,
                            true,
                            "netsum-1",
                            {group, group},
                            false,
                            0,
                            false,
                            PacketSecurity::tag,
                            {jobs::said_profile(jobs::ChipProfile{}), jobs::pool_profile({1024, 256})}};
  const auto hello = control::parse<control::Hello>(control::view(fuzz::arrived(said, input)));
  if (!passes(hello)) return;
  try {
    const auto chip = jobs::chip_in(hello->profiles);
    if (chip) fuzz::check(jobs::check(*chip).empty(), "a chip is possible");
  } catch (const Error& error) {
    fuzz::check(session::printable(error.what()), "what is wrong with a chip is said in one line");
  }
  if (const auto pool = jobs::pool_in(hello->profiles)) {
    fuzz::check(pool->slots != 0 && jobs::atp_rules().check_packet(pool->elements).empty(), "a pool is possible");
  }
  for (const Endpoint& at : hello->lanes) fuzz::check(at.port != 0, "a lane has a port");
  fuzz::check(hello->groups.empty() || hello->groups.size() == hello->lanes.size(), "a group for each lane");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  while (input.remaining_bytes() > 0) {
    switch (input.ConsumeIntegralInRange<int>(0, 7)) {
      case 0:
        on_heartbeat_reply(input);
        break;
      case 1:
        on_install_reply(input);
        break;
      case 2:
        on_status_reply(input);
        break;
      case 3:
        on_hello_reply(input);
        break;
      default:
        on_join_reply(input);
    }
  }
  return 0;
}
