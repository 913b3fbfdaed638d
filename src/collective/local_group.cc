#include "collective/local_group.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <new>
#include <utility>

#include "collective/local_messages.h"
#include "netsum/error.h"
#include "runtime/thread.h"

namespace netsum::collective {
namespace {

using runtime::SharedSegment;
using transport::LocalOutcome;

std::uint32_t processors() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  return static_cast<std::uint32_t>(std::max(1, CPU_COUNT(&allowed)));
}

// Waits for a message; false: the connection ended, or there was none in time.
bool receive(const transport::Descriptor& socket, LocalMessage& message, std::shared_ptr<transport::Descriptor>& attached,
             Time deadline) {
  while (true) {
    const LocalOutcome outcome = transport::receive_local(socket, message.writable(), attached);
    if (outcome == LocalOutcome::done) return message.magic == LocalMessage::expected_magic;
    if (outcome == LocalOutcome::closed || runtime::now() >= deadline) return false;
    pollfd descriptor{socket.number(), POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - runtime::now());
    ::poll(&descriptor, 1, static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1000)));
  }
}

}  // namespace

LocalGroup::LocalGroup(const Config& config, std::shared_ptr<transport::Descriptor> socket)
    : config_(config),
      socket_(std::move(socket)),
      memory_("netsum-rank" + std::to_string(config.rank), sizeof(SharedSegment)),
      own_(new (memory_.bytes().data()) SharedSegment),
      peers_(config.world_size) {
  own_->rank = config.rank;
  own_->world_size = config.world_size;
  own_->threads = std::max(1U, config.threads);
  own_->processors = processors();
}

LocalGroup::~LocalGroup() = default;

std::shared_ptr<LocalGroup> LocalGroup::reach(const Config& config, Time deadline, std::string& why_not) {
  if (config.broker.empty()) {
    why_not = "the aggregator has no shared memory";
    return nullptr;
  }
  auto socket = transport::connect_local(config.broker);
  if (!socket) {
    why_not = "the aggregator is on another host, or in another network namespace";
    return nullptr;
  }
  try {
    std::shared_ptr<LocalGroup> group(new LocalGroup(config, std::move(socket)));
    LocalMessage answer;
    std::shared_ptr<transport::Descriptor> nothing;
    if (transport::send_local(*group->socket_, LocalMessage().bytes(), group->memory_.descriptor().get()) ==
            LocalOutcome::done &&
        receive(*group->socket_, answer, nothing, deadline) && answer.type == LocalType::ticket) {
      group->ticket_ = answer.ticket;
      return group;
    }
    why_not = "the aggregator does not take this rank's shared memory";
  } catch (const Error& error) {
    why_not = error.what();
  }
  return nullptr;
}

void LocalGroup::gather(std::uint64_t job_epoch, Time deadline) {
  for (std::uint32_t missing = config_.world_size - 1; missing > 0; --missing) {
    LocalMessage message;
    std::shared_ptr<transport::Descriptor> attached;
    if (!receive(*socket_, message, attached, deadline)) {
      throw Error(ErrorCode::refused, "the aggregator did not hand over the shared memory of " + std::to_string(missing) +
                                          " ranks: one of them is gone again");
    }
    if (message.type != LocalType::member || message.job_epoch != job_epoch || message.rank >= config_.world_size ||
        message.rank == config_.rank || peers_[message.rank] || !attached) {
      throw Error(ErrorCode::internal, "the aggregator handed over shared memory that is not of this job");
    }
    auto memory = std::make_unique<transport::PeerMemory>(*attached, sizeof(SharedSegment));
    const auto* const segment = reinterpret_cast<const SharedSegment*>(memory->bytes().data());
    if (shared::once(segment->magic) != runtime::segment_magic || shared::once(segment->rank) != message.rank ||
        shared::once(segment->world_size) != config_.world_size) {
      throw Error(ErrorCode::refused,
                  "rank " + std::to_string(message.rank) +
                      "'s shared memory is not laid out as this rank's: install the same netsum for all");
    }
    peers_[message.rank] = std::move(memory);
  }
}

std::vector<const SharedSegment*> LocalGroup::segments() const {
  std::vector<const SharedSegment*> segments;
  for (const auto& peer : peers_) {
    segments.push_back(peer ? reinterpret_cast<const SharedSegment*>(peer->bytes().data()) : own_);
  }
  return segments;
}

}  // namespace netsum::collective
