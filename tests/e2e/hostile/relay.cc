#include "relay.h"

#include <grpcpp/grpcpp.h>

#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "control/border.h"
#include "control/netsum.grpc.pb.h"
#include "transport/addresses.h"

namespace netsum::hostile {
namespace {

namespace proto = control::v1;

// A rank that is not heard from for 3 s is dead, and so is a switch: beats come every 0.5 s, and two in a row may fail.
constexpr int failures_in_a_row = 2;
constexpr auto longest_delay = std::chrono::milliseconds(400);
constexpr std::size_t remembered = 64;

}  // namespace

struct Relay::Impl final : proto::Aggregator::Service {
  Impl(std::uint64_t seed, double i, Flows& f, std::function<void(const std::string&)> s)
      : intensity(i), flows(f), say(std::move(s)), random(seed) {}

  template <class Request, class Reply>
  grpc::Status forward(grpc::ServerContext& from,
                       grpc::Status (proto::Aggregator::Stub::*call)(grpc::ClientContext*, const Request&, Reply*),
                       const Request& request, Reply& reply, bool wait_for_ready = false) {
    const auto context = grpc::ClientContext::FromServerContext(from);  // with its deadline, and cancelled with it
    context->set_wait_for_ready(wait_for_ready);
    return (stub.get()->*call)(context.get(), request, &reply);
  }

  // Every 1/probability-th call, beginning anywhere: calls are few, and each fault is to happen. With the mutex held.
  bool happens(Fault fault, double probability) {
    double& credit = credits.try_emplace(fault, random.unit()).first->second;
    credit += probability * intensity;
    if (credit < 1) return false;
    credit -= 1;
    ++counts[static_cast<std::size_t>(fault)];
    return true;
  }

  grpc::Status Hello(grpc::ServerContext* context, const proto::HelloRequest* request, proto::HelloReply* reply) override {
    // As a worker's own: a switch that starts a moment later is found.
    const grpc::Status status = forward(*context, &proto::Aggregator::Stub::Hello, *request, *reply, true);
    if (!status.ok()) return status;
    std::vector<std::size_t> opened;
    for (proto::Endpoint& lane : *reply->mutable_lanes()) {
      opened.push_back(flows.open(*control::parse(lane)));
      control::write(flows.for_worker(opened.back()), lane);
    }
    const std::lock_guard lock(mutex);
    flows_of[context->peer()] = std::move(opened);  // a worker joins over the connection over which it said hello
    return status;
  }

  grpc::Status Join(grpc::ServerContext* context, const proto::JoinRequest* request, proto::JoinReply* reply) override {
    std::vector<std::size_t> own;
    {
      const std::lock_guard lock(mutex);
      own = flows_of[context->peer()];
    }
    if (own.size() != static_cast<std::size_t>(request->endpoints_size())) {
      return {grpc::StatusCode::INTERNAL, "the proxy does not know this worker's sockets"};
    }
    proto::JoinRequest rewritten = *request;
    for (std::size_t lane = 0; lane < own.size(); ++lane) {
      control::write(flows.for_switch(own[lane]), *rewritten.mutable_endpoints(static_cast<int>(lane)));
    }
    const grpc::Status status = forward(*context, &proto::Aggregator::Stub::Join, rewritten, *reply);
    if (!status.ok()) return status;
    nlohmann::ordered_json line{{"job", request->job()},
                                {"job_epoch", reply->job_epoch()},
                                {"rank", request->rank()},
                                {"rank_epoch", reply->rank_epoch()},
                                {"packet_elements", reply->packet_elements()},
                                {"slots", reply->slots()},
                                {"worker", nlohmann::json::array()},
                                {"to_switch", nlohmann::json::array()}};
    for (std::size_t lane = 0; lane < own.size(); ++lane) {
      const Endpoint worker = *control::parse(request->endpoints(static_cast<int>(lane)));
      flows.admit(own[lane], worker,
                  {request->job(), reply->job_epoch(), request->rank(), static_cast<std::uint32_t>(lane)});
      line["worker"].push_back(transport::to_string(worker));
      line["to_switch"].push_back(transport::to_string(flows.for_switch(own[lane])));
    }
    say(line.dump());
    return status;
  }

  grpc::Status Heartbeat(grpc::ServerContext* context, const proto::Membership* request,
                         proto::HeartbeatReply* reply) override {
    Duration delay{};
    bool unanswered = false, repeated = false;
    std::unique_ptr<proto::Membership> stale, forged;
    {
      const std::lock_guard lock(mutex);
      int& failures = failures_of[{request->job_epoch(), request->rank()}];
      if (failures < failures_in_a_row && happens(Fault::beat_lost, 0.2)) {
        ++failures;
        return {grpc::StatusCode::UNAVAILABLE, "lost on the way there"};
      }
      unanswered = failures < failures_in_a_row && happens(Fault::beat_unanswered, 0.2);
      failures = unanswered ? failures + 1 : 0;
      repeated = happens(Fault::beat_repeated, 0.3);
      if (happens(Fault::beat_delayed, 0.2)) delay = random.between(Duration(0), longest_delay);
      if (!past.empty() && happens(Fault::beat_stale, 0.3)) {
        stale = std::make_unique<proto::Membership>(past[random.below(past.size())]);
      }
      if (happens(Fault::leave_forged, 0.3)) {
        forged = std::make_unique<proto::Membership>(*request);
        forged->set_rank_epoch(request->rank_epoch() ^ static_cast<std::uint32_t>(random.between(1, 0xffffffff)));
      }
      if (past.size() < remembered)
        past.push_back(*request);
      else
        past[random.below(past.size())] = *request;
    }
    proto::LeaveReply ignored;
    proto::HeartbeatReply other;
    std::this_thread::sleep_for(delay);
    if (forged) static_cast<void>(forward(*context, &proto::Aggregator::Stub::Leave, *forged, ignored));
    if (stale) static_cast<void>(forward(*context, &proto::Aggregator::Stub::Heartbeat, *stale, other));
    if (repeated) static_cast<void>(forward(*context, &proto::Aggregator::Stub::Heartbeat, *request, other));
    const grpc::Status status = forward(*context, &proto::Aggregator::Stub::Heartbeat, *request, *reply);
    return unanswered ? grpc::Status{grpc::StatusCode::UNAVAILABLE, "lost on the way back"} : status;
  }

  grpc::Status Leave(grpc::ServerContext* context, const proto::Membership* request, proto::LeaveReply* reply) override {
    bool repeated = false, unanswered = false;
    {
      const std::lock_guard lock(mutex);
      repeated = happens(Fault::leave_repeated, 0.5);
      unanswered = happens(Fault::leave_unanswered, 0.3);
    }
    if (repeated) static_cast<void>(forward(*context, &proto::Aggregator::Stub::Leave, *request, *reply));
    const grpc::Status status = forward(*context, &proto::Aggregator::Stub::Leave, *request, *reply);
    return unanswered ? grpc::Status{grpc::StatusCode::UNAVAILABLE, "lost on the way back"} : status;
  }

  grpc::Status Status(grpc::ServerContext* context, const proto::StatusRequest* request,
                      proto::StatusReply* reply) override {
    return forward(*context, &proto::Aggregator::Stub::Status, *request, *reply);
  }

  const double intensity;
  Flows& flows;
  const std::function<void(const std::string&)> say;
  std::unique_ptr<proto::Aggregator::Stub> stub;
  mutable std::mutex mutex;  // of all below
  Random random;
  Counts counts{};
  std::map<Fault, double> credits;
  std::map<std::string, std::vector<std::size_t>> flows_of;  // by the connection
  std::map<std::pair<std::uint64_t, std::uint32_t>, int> failures_of;
  std::vector<proto::Membership> past;
  std::string address;
  std::unique_ptr<grpc::Server> server;
};

Relay::Relay(const std::string& aggregator, std::uint64_t seed, double intensity, Flows& flows,
             std::function<void(const std::string&)> say)
    : impl_(std::make_unique<Impl>(seed, intensity, flows, std::move(say))) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  impl_->stub =
      proto::Aggregator::NewStub(grpc::CreateCustomChannel(aggregator, grpc::InsecureChannelCredentials(), arguments));
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(impl_.get());
  impl_->server = builder.BuildAndStart();
  if (!impl_->server || port == 0) throw std::runtime_error("the proxy cannot listen");
  impl_->address = "127.0.0.1:" + std::to_string(port);
}

Relay::~Relay() {
  impl_->server->Shutdown(std::chrono::system_clock::now());
  impl_->server->Wait();
}

std::string Relay::address() const {
  return impl_->address;
}

Counts Relay::counts() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->counts;
}

}  // namespace netsum::hostile
