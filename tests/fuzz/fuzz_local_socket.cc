// Both ends of an aggregator's local socket: any messages, with any descriptors, in any order, at its table of peers; and at
// a rank that takes what an aggregator hands over. Neither keeps a descriptor, or more of them than it may.
#include <fuzzer/FuzzedDataProvider.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <utility>

#include "collective/local_ranks.h"
#include "daemon/local_peers.h"
#include "fuzz/harness.h"
#include "runtime/thread.h"

namespace {

using namespace netsum;              // NOLINT(google-build-using-namespace): a program of one function
using namespace netsum::collective;  // NOLINT(google-build-using-namespace)
using transport::Descriptor;
using transport::LocalOutcome;
using Socket = std::shared_ptr<Descriptor>;

std::pair<Socket, Socket> socket_pair() {
  int ends[2];
  fuzz::check(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0, "a pair of sockets");
  return {std::make_shared<Descriptor>(ends[0]), std::make_shared<Descriptor>(ends[1])};
}

int lowest_free_descriptor() {
  return Descriptor(::dup(STDERR_FILENO)).number();
}

const transport::OwnMemory& segment_of(std::uint32_t rank) {
  static const auto make = [](std::uint32_t of) {
    auto made = std::make_unique<transport::OwnMemory>("fuzz", sizeof(runtime::SharedSegment));
    auto* const segment = new (made->bytes().data()) runtime::SharedSegment;
    segment->rank = of;
    segment->world_size = 3;
    return made;
  };
  static const std::unique_ptr<transport::OwnMemory> segments[] = {make(0), make(1), make(2)};
  return *segments[rank % 3];
}

// One or two descriptors of memory, or of what is none; or nothing.
void send(FuzzedDataProvider& input, const Descriptor& socket, const transport::LocalMessage& message) {
  static const transport::OwnMemory short_one("fuzz", 4096);
  static const Descriptor loose(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int segment = segment_of(message.rank).descriptor()->number();
  const int numbers[] = {input.PickValueInArray({segment, segment, short_one.descriptor()->number(), loose.number(), 2}), 2};
  const auto count = input.PickValueInArray<std::size_t>({1, 1, 1, 0, 2});
  std::byte bytes[sizeof message + 8] = {};
  std::memcpy(bytes, &message, sizeof message);
  iovec part{bytes,
             input.PickValueInArray<std::size_t>({sizeof message, sizeof message, sizeof message, 0, 1, sizeof bytes})};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::byte room[CMSG_SPACE(sizeof numbers)] = {};
  if (count != 0) {
    header.msg_control = room;
    header.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(rights), numbers, count * sizeof(int));
  }
  static_cast<void>(::sendmsg(socket.number(), &header, MSG_NOSIGNAL | MSG_DONTWAIT));
}

transport::LocalMessage message_of(FuzzedDataProvider& input, transport::LocalType likely, std::uint64_t epoch) {
  transport::LocalMessage message;
  if (input.ConsumeIntegralInRange(0, 31) == 0) message.magic = input.ConsumeIntegral<std::uint64_t>();
  message.type = input.ConsumeBool() ? likely : static_cast<transport::LocalType>(input.ConsumeIntegralInRange(0, 6));
  message.rank = input.PickValueInArray<std::uint32_t>({1, 2, 1, 2, 0, 3, 0xffffffff});
  message.ticket = input.ConsumeIntegral<std::uint8_t>();
  message.job_epoch = input.ConsumeIntegralInRange(0, 15) == 0 ? 1 : epoch;
  message.arena = input.PickValueInArray<std::uint64_t>({1, 1, 2, 0, 4096, 4097, std::uint64_t{1} << 32 | 1});
  return message;
}

void at_the_table(FuzzedDataProvider& input) {
  constexpr std::size_t most_pending = 6;
  std::set<std::pair<std::uint64_t, std::uint32_t>> members;
  daemon::LocalPeers peers(most_pending, [&](std::uint64_t epoch, std::uint32_t rank) {
    fuzz::check(members.erase({epoch, rank}) == 1, "a member is lost once");
  });
  struct Rank {
    Socket socket;
    std::uint64_t ticket = 0;
  };
  std::vector<Rank> ranks;
  Time now{};
  std::uint64_t epoch = 0;
  std::size_t in_jobs = 0;
  while (input.remaining_bytes() > 0) {
    Rank* const rank = ranks.empty() ? nullptr : &ranks[input.ConsumeIntegral<std::uint8_t>() % ranks.size()];
    switch (input.ConsumeIntegralInRange(0, 9)) {
      case 0:
        if (ranks.size() < 16) {
          auto [here, there] = socket_pair();
          peers.add({std::move(here), input.PickValueInArray<uid_t>({0, 4711, 4712})}, now);
          ranks.push_back({std::move(there), 0});
        }
        break;
      case 1:
        if (rank != nullptr) *rank = {};
        std::erase_if(ranks, [](const Rank& each) { return !each.socket; });
        break;
      case 2: {
        std::vector<std::uint64_t> tickets;
        ++epoch;
        for (const Rank& each : ranks) {
          if (input.ConsumeBool()) tickets.push_back(each.ticket);
        }
        if (tickets.empty()) break;
        for (std::uint32_t i = 0; i < tickets.size(); ++i) members.emplace(epoch, i);
        in_jobs += tickets.size();
        peers.start_job(epoch, tickets);
        break;
      }
      case 3:
        if (epoch > 0) {
          const std::uint64_t ended = 1 + input.ConsumeIntegral<std::uint8_t>() % epoch;
          peers.stop_job(ended);
          std::erase_if(members, [&](const auto& member) { return member.first == ended; });
        }
        break;
      case 4:
        now += std::chrono::milliseconds(input.ConsumeIntegralInRange(0, 6000));
        break;
      case 5:
        if (rank != nullptr) {
          transport::LocalMessage message;
          Socket attached;
          while (transport::receive_local(*rank->socket, message.writable(), attached) == LocalOutcome::done) {
            fuzz::check(message.magic == transport::LocalMessage::expected_magic, "a message of the table's");
            fuzz::check((message.type == transport::LocalType::member || message.type == transport::LocalType::arena) ==
                            (attached != nullptr),
                        "memory comes with the messages that say so");
            if (message.type == transport::LocalType::ticket) rank->ticket = message.ticket;
          }
        }
        break;
      case 6:
      case 7:
        if (rank != nullptr) send(input, *rank->socket, message_of(input, transport::LocalType::hello, epoch));
        break;
      default:
        if (rank != nullptr) send(input, *rank->socket, message_of(input, transport::LocalType::arena, epoch));
    }
    std::vector<pollfd> polled;
    peers.poll_for(polled);
    fuzz::check(polled.size() <= most_pending + in_jobs, "no more connections than may be");
    ::poll(polled.data(), polled.size(), 0);
    peers.serve(polled, now);
    fuzz::check(peers.most_wait_ms(now) >= -1, "a time to wait");
  }
}

// What an aggregator hands over may be anything; what comes of it is a group, or an error.
void at_a_rank(FuzzedDataProvider& input) {
  constexpr std::uint64_t epoch = 77;
  const auto ends = socket_pair();
  const Socket& aggregator = ends.first;
  const auto hand_over = [&](transport::LocalType likely, int most) {
    const int count = input.ConsumeIntegralInRange(0, most);
    for (int i = 0; i < count; ++i) send(input, *aggregator, message_of(input, likely, epoch));
  };
  if (input.ConsumeIntegralInRange(0, 7) == 0) {
    hand_over(transport::LocalType::ticket, 1);
  } else {
    transport::LocalMessage ticket;
    ticket.type = transport::LocalType::ticket;
    static_cast<void>(transport::send_local(*aggregator, ticket.bytes()));
  }
  hand_over(transport::LocalType::member, 4);
  std::string why_not;
  const auto group = LocalRanks::over(ends.second, {"", 0, 3, 1}, Time{}, why_not);
  fuzz::check((group != nullptr) == why_not.empty(), "a group, or why there is none");
  if (!group) return;
  try {
    group->gather(epoch, Time{});
    runtime::SharedEngineConfig config;
    config.world_size = 3;
    config.own = &group->own();
    config.peers = group->segments();
    config.arenas = group->arenas();
    runtime::SharedEngine engine(config, [](std::uint32_t, const protocol::LaneFailure&) {});
    for (int i = 0; i < 3; ++i) {
      hand_over(transport::LocalType::arena, 6);
      static_cast<void>(group->allocate(5000, Time{}, engine, [] {}));
    }
  } catch (const Error& error) {
    fuzz::check(error.code() == ErrorCode::refused || error.code() == ErrorCode::internal ||
                    error.code() == ErrorCode::deadline || error.code() == ErrorCode::aggregator_lost,
                "an error of the aggregator's");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  static_cast<void>(segment_of(0));
  const int lowest = lowest_free_descriptor();
  input.ConsumeIntegralInRange(0, 3) == 0 ? at_a_rank(input) : at_the_table(input);
  static bool warm = false;  // the first input also makes what lives for ever
  fuzz::check(lowest_free_descriptor() == lowest || !std::exchange(warm, true), "no descriptor is left open");
  return 0;
}
