#include "p4app/controller.h"

#include <algorithm>
#include <utility>

#include "wire/p4app.h"

namespace netsum::p4app {
namespace {

constexpr std::size_t most_waiting = 256, most_broadcasts = 16;

bool are_workers(std::uint32_t workers) {
  return workers >= 1 && workers <= wire::p4app::max_workers;
}

}  // namespace

void Controller::on_call(Call call, std::string_view path, std::string_view payload) {
  const auto with = [&](auto request, auto serve) {
    if (!request) return refuse(call, "the request is not a message of this call");
    (this->*serve)(call, *request);
  };
  if (path == udp_session_path) return with(from_bytes<UdpSessionRequest>(payload), &Controller::udp_session);
  if (path == barrier_path) return with(from_bytes<BarrierRequest>(payload), &Controller::barrier);
  if (path == broadcast_path) return with(from_bytes<BroadcastRequest>(payload), &Controller::broadcast);
  refuse(call,
         path == rdma_session_path ? "this switch has no RDMA sessions: use the DPDK back end" : "there is no such call",
         GrpcStatus::unimplemented);
}

void Controller::refuse(Call call, const std::string& why, GrpcStatus status) {
  answers_.push_back({call, status, why});
}

std::vector<Controller::Answer> Controller::take_answers() {
  return std::exchange(answers_, {});
}

void Controller::udp_session(Call call, const UdpSessionRequest& request) {
  const std::uint32_t elements = wire::p4app::elements_of(request.packet_size);
  if (elements == 0) return refuse(call, "packet_size is neither 1 nor 3: packets have 64 or 256 elements");
  if (!are_workers(request.workers)) return refuse(call, "num_workers is not from 1 to 32");
  if (request.rank >= request.workers) return refuse(call, "rank is not below num_workers");
  if (request.rank == 0) {
    session_ = Session{request.session, request.workers, request.packet_size, {}};
    session_->addresses.resize(request.workers);
    hooks_.begin(request.session, request.workers, elements);
  }
  if (!session_ || session_->number != request.session) return refuse(call, "rank 0 has not begun this session");
  if (session_->workers != request.workers) return refuse(call, "num_workers differs from rank 0's");
  if (session_->packet_size != request.packet_size) return refuse(call, "packet_size differs from rank 0's");
  auto& addresses = session_->addresses;
  const auto same = std::find(addresses.begin(), addresses.end(), request.station.ipv4);
  if (same != addresses.end() && same - addresses.begin() != request.rank)
    return refuse(call, "another rank has this ipv4, and packets show nothing else of their worker");
  // A session has as many addresses as workers, however often it is asked for.
  if (addresses[request.rank].value_or(request.station.ipv4) != request.station.ipv4)
    return refuse(call, "this rank has another ipv4 in this session: rank 0 begins a new one");
  addresses[request.rank] = request.station.ipv4;
  hooks_.worker(request.rank, request.station);
  answer(call, UdpSessionResponse{request.session, own_});
}

void Controller::barrier(Call call, const BarrierRequest& request) {
  if (!are_workers(request.workers)) return refuse(call, "num_workers is not from 1 to 32");
  if (at_barrier_.size() >= most_waiting)
    return refuse(call, "too many workers wait at the barrier", GrpcStatus::resource_exhausted);
  at_barrier_.push_back(call);
  if (at_barrier_.size() < request.workers) return;
  for (const Call each : std::exchange(at_barrier_, {})) answer(each, BarrierResponse());
}

// A worker's call belongs to the oldest broadcast that it has not called yet.
void Controller::broadcast(Call call, const BroadcastRequest& request) {
  if (!are_workers(request.workers)) return refuse(call, "num_workers is not from 1 to 32");
  if (request.rank >= request.workers || request.root >= request.workers)
    return refuse(call, "rank or root is not below num_workers");
  const auto fits = [&](const Broadcast& each) {
    return each.root == request.root && each.called.size() == request.workers && !each.called[request.rank];
  };
  auto found = std::find_if(broadcasts_.begin(), broadcasts_.end(), fits);
  if (found == broadcasts_.end()) {
    // What a job has left behind that ended in the middle.
    if (request.rank == request.root)
      std::erase_if(broadcasts_, [](const Broadcast& each) { return each.value.has_value(); });
    if (broadcasts_.size() >= most_broadcasts)
      return refuse(call, "too many broadcasts are unfinished", GrpcStatus::resource_exhausted);
    broadcasts_.push_back({request.root, std::vector<bool>(request.workers), {}, {}});
    found = std::prev(broadcasts_.end());
  }
  found->called[request.rank] = true;
  if (request.rank == request.root) {
    found->value = request.value;
    for (const Broadcast::Waiting& each : std::exchange(found->waiting, {}))
      answer(each.call, BroadcastResponse{request.value});
  }
  if (found->value) {
    answer(call, BroadcastResponse{*found->value});
  } else {
    found->waiting.push_back({call, request.rank});
  }
  if (std::find(found->called.begin(), found->called.end(), false) == found->called.end() && found->waiting.empty())
    broadcasts_.erase(found);
}

void Controller::on_gone(Call call) {
  std::erase(at_barrier_, call);
  for (Broadcast& each : broadcasts_) {
    std::erase_if(each.waiting, [&](const Broadcast::Waiting& waiting) {
      if (waiting.call == call) each.called[waiting.rank] = false;
      return waiting.call == call;
    });
  }
  std::erase_if(broadcasts_, [](const Broadcast& each) {
    return std::find(each.called.begin(), each.called.end(), true) == each.called.end();
  });
}

}  // namespace netsum::p4app
