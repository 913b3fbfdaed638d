#include "collective/local_ranks.h"

#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "netsum/error.h"
#include "runtime/thread.h"
#include "transport/local/local_messages.h"

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

constexpr int poll_ms = 20;  // between checks of the engine and the clock
constexpr int retry_ms = 2;
constexpr Duration most_patience = std::chrono::seconds(5);  // to be let in; otherwise the network serves

// The reason for a rank that the aggregator disconnects.
std::string not_let_in(const transport::Descriptor& socket) {
  const auto user = transport::user_of(socket);
  if (!user || *user == ::geteuid() || ::geteuid() == 0) return "the aggregator refuses this rank's shared memory";
  return "the aggregator runs as user " + std::to_string(*user) + " and does not share memory with user " +
         std::to_string(::geteuid()) + " of this rank (--local-user)";
}

Error connection_lost() {
  return {ErrorCode::aggregator_lost, "allocate: the aggregator ended its connection to this rank"};
}

// Waits for a message; false: the connection ended, or there was none in time.
bool receive(const transport::Descriptor& socket, transport::LocalMessage& message,
             std::shared_ptr<transport::Descriptor>& attached, Time deadline) {
  while (true) {
    const LocalOutcome outcome = transport::receive_local(socket, message.writable(), attached);
    if (outcome == LocalOutcome::done) return message.magic == transport::LocalMessage::expected_magic;
    if (outcome == LocalOutcome::closed || runtime::now() >= deadline) return false;
    pollfd descriptor{socket.number(), POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - runtime::now());
    ::poll(&descriptor, 1, static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1000)));
  }
}

}  // namespace

Error too_many_allocations(std::uint32_t rank) {
  return {ErrorCode::bad_argument, "rank " + std::to_string(rank) + " has " + std::to_string(runtime::Arenas::most) +
                                       " tensors from allocate(), the most possible: free some first"};
}

LocalRanks::LocalRanks(const Config& config, std::shared_ptr<transport::Descriptor> socket)
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

LocalRanks::~LocalRanks() = default;

std::shared_ptr<LocalRanks> LocalRanks::reach(const Config& config, Time deadline, std::string& why_not) {
  if (config.broker.empty()) {
    why_not = "the aggregator has no shared memory";
    return nullptr;
  }
  std::shared_ptr<transport::Descriptor> socket;
  LocalOutcome outcome = LocalOutcome::later;
  // Others may be queued; they are soon let in, or sent away.
  const Time patience = std::min(deadline, runtime::now() + most_patience);
  while ((outcome = transport::connect_local(config.broker, socket)) == LocalOutcome::later && runtime::now() < patience) {
    ::poll(nullptr, 0, retry_ms);
  }
  if (outcome == LocalOutcome::later) {
    why_not = "too many ranks wait at the aggregator's local socket";
    return nullptr;
  }
  if (!socket) {
    why_not = "the aggregator is on another host, or in another network namespace";
    return nullptr;
  }
  return over(std::move(socket), config, patience, why_not);
}

std::shared_ptr<LocalRanks> LocalRanks::over(std::shared_ptr<transport::Descriptor> socket, const Config& config,
                                             Time deadline, std::string& why_not) {
  try {
    std::shared_ptr<LocalRanks> ranks(new LocalRanks(config, std::move(socket)));
    transport::LocalMessage answer;
    std::shared_ptr<transport::Descriptor> nothing;
    if (transport::send_local(*ranks->socket_, transport::LocalMessage().bytes(), ranks->memory_.descriptor().get()) ==
            LocalOutcome::done &&
        receive(*ranks->socket_, answer, nothing, deadline) && answer.type == transport::LocalType::ticket) {
      ranks->ticket_ = answer.ticket;
      ranks->memory_.close_descriptor();  // the broker has it
      return ranks;
    }
    why_not = not_let_in(*ranks->socket_);
  } catch (const Error& error) {
    why_not = error.what();
  }
  return nullptr;
}

void LocalRanks::gather(std::uint64_t job_epoch, Time deadline) {
  for (std::uint32_t missing = config_.world_size - 1; missing > 0; --missing) {
    transport::LocalMessage message;
    std::shared_ptr<transport::Descriptor> attached;
    if (!receive(*socket_, message, attached, deadline)) {
      throw Error(ErrorCode::refused, "the aggregator did not pass on the shared memory of " + std::to_string(missing) +
                                          " ranks: one of these ranks has ended: start the job again");
    }
    if (message.type != transport::LocalType::member || message.job_epoch != job_epoch ||
        message.rank >= config_.world_size || message.rank == config_.rank || peers_[message.rank].segment || !attached) {
      throw Error(ErrorCode::internal, "the aggregator passed on shared memory of another job");
    }
    auto memory = std::make_unique<transport::PeerMemory>(*attached, sizeof(SharedSegment));
    const auto* const segment = reinterpret_cast<const SharedSegment*>(memory->bytes().data());
    if (shared::once(segment->magic) != runtime::segment_magic || shared::once(segment->rank) != message.rank ||
        shared::once(segment->world_size) != config_.world_size) {
      throw Error(ErrorCode::refused,
                  "the shared memory of rank " + std::to_string(message.rank) +
                      " has another layout than this rank's: install the same netsum version on all ranks");
    }
    peers_[message.rank].segment = std::move(memory);
  }
}

std::vector<const SharedSegment*> LocalRanks::segments() const {
  std::vector<const SharedSegment*> segments;
  for (const Peer& peer : peers_) {
    segments.push_back(peer.segment ? reinterpret_cast<const SharedSegment*>(peer.segment->bytes().data()) : own_);
  }
  return segments;
}

// ---- memory for tensors

// The memory behind a TensorMemory.
struct LocalRanks::Shown {
  Shown(std::shared_ptr<runtime::Arenas> among, std::uint32_t rank, std::size_t bytes)
      : arenas(std::move(among)), memory("netsum-tensors" + std::to_string(rank), bytes, true), arena(arenas->reserve()) {
    if (arena == 0) throw too_many_allocations(rank);
  }
  ~Shown() {
    // A child of fork() has no peers to tell, and another thread may have held the lock.
    if (arena != 0 && ::getpid() == owner) arenas->hide(arena);
  }
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;

  const pid_t owner = ::getpid();
  const std::shared_ptr<runtime::Arenas> arenas;
  transport::OwnMemory memory;
  const std::uint32_t arena;
};

TensorMemory LocalRanks::allocate(std::size_t bytes, Time deadline, runtime::SharedEngine& engine,
                                  const std::function<void()>& meet) {
  transport::LocalMessage message;
  message.type = transport::LocalType::arena_gone;
  for (const std::uint32_t hidden : arenas_->take_hidden()) {
    message.arena = hidden;
    send(message, nullptr, deadline);
  }
  const auto shown = std::make_shared<Shown>(arenas_, config_.rank, bytes);
  message.type = transport::LocalType::arena;
  message.arena = shown->arena;
  send(message, shown->memory.descriptor().get(), deadline);
  shown->memory.close_descriptor();
  // After this all have sent theirs, and the missing ones are in flight through the broker.
  meet();
  ++allocations_;
  take_arenas(deadline, engine);
  arenas_->show(shown->arena, shown->memory.bytes(), shown);
  return {std::shared_ptr<std::byte>(shown, shown->memory.bytes().data()), bytes};
}

void LocalRanks::send(const transport::LocalMessage& message, const transport::Descriptor* attached, Time deadline) {
  while (true) {
    const LocalOutcome outcome = transport::send_local(*socket_, message.bytes(), attached);
    if (outcome == LocalOutcome::done) return;
    if (outcome == LocalOutcome::closed) throw connection_lost();
    if (runtime::now() >= deadline) {
      throw Error(ErrorCode::deadline,
                  "allocate: the aggregator did not accept this rank's memory in time: is it busy, or stopped?");
    }
    pollfd descriptor{socket_->number(), POLLOUT, 0};
    ::poll(&descriptor, 1, poll_ms);
  }
}

void LocalRanks::take_arenas(Time deadline, runtime::SharedEngine& engine) {
  while (true) {
    RankSet missing;
    for (std::uint32_t rank = 0; rank < config_.world_size; ++rank) {
      if (rank != config_.rank && peers_[rank].taken < allocations_) missing.insert(rank);
    }
    if (missing.empty()) return;
    transport::LocalMessage message;
    std::shared_ptr<transport::Descriptor> attached;
    switch (transport::receive_local(*socket_, message.writable(), attached)) {
      case LocalOutcome::done:
        take_arena(message, attached, engine);
        continue;
      case LocalOutcome::closed:
        throw connection_lost();
      case LocalOutcome::later:
        break;
    }
    if (const auto failure = engine.failure()) throw Error(*failure);
    if (runtime::now() >= deadline) {
      throw Error(ErrorCode::deadline, "allocate: the aggregator did not pass on the memory of rank " +
                                           std::to_string(missing.front()) + " in time");
    }
    pollfd descriptor{socket_->number(), POLLIN, 0};
    ::poll(&descriptor, 1, poll_ms);
  }
}

void LocalRanks::take_arena(const transport::LocalMessage& message, const std::shared_ptr<transport::Descriptor>& attached,
                            runtime::SharedEngine& engine) {
  const bool comes = message.type == transport::LocalType::arena && attached;
  if (message.magic != transport::LocalMessage::expected_magic ||
      (!comes && message.type != transport::LocalType::arena_gone) || message.rank >= config_.world_size ||
      message.rank == config_.rank || message.arena == 0 || message.arena > runtime::Arenas::most) {
    throw Error(ErrorCode::internal, "allocate: the aggregator passed on memory that does not belong to this job");
  }
  Peer& peer = peers_[message.rank];
  const auto arena = static_cast<std::uint32_t>(message.arena);
  if (peer.arenas.size() < arena) peer.arenas.resize(arena);
  std::unique_ptr<transport::PeerMemory> memory;
  if (comes) {
    memory = std::make_unique<transport::PeerMemory>(*attached, 1);
    ++peer.taken;
  }
  engine.set_arena(message.rank, arena, memory ? memory->bytes() : std::span<const std::byte>());
  peer.arenas[arena - 1] = std::move(memory);  // the former one has no readers any more
}

}  // namespace netsum::collective
