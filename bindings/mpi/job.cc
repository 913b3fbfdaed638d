#include "job.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <utility>

#include "agreement.h"
#include "base/failed_earlier.h"
#include "bindings/settings/reach.h"
#include "process.h"
#include "transport/system/random.h"

namespace netsum::mpi {
namespace {

using settings::LogLevel;
using settings::Mode;

// All ranks come at once: a daemon that does not answer for so long is not there.
constexpr std::chrono::milliseconds reach_patience{5000};

constexpr std::uint64_t bytes_worth_joining = std::uint64_t{1} << 20;

// More scratch memory is given back at the next call.
constexpr std::size_t most_kept = std::size_t{64} << 20;

bool is_within_world(MPI_Comm comm, int ranks) {
  MPI_Group group = MPI_GROUP_NULL;
  PMPI_Comm_group(comm, &group);
  std::vector<int> here(static_cast<std::size_t>(ranks)), there(here.size());
  std::iota(here.begin(), here.end(), 0);
  PMPI_Group_translate_ranks(group, ranks, here.data(), Process::get().world(), there.data());
  PMPI_Group_free(&group);
  return std::find(there.begin(), there.end(), MPI_UNDEFINED) == there.end();
}

// What each rank tells the others about itself where hosts run shards.
struct Place {
  std::uint64_t host = 0;
  std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
};

std::vector<Place> places_of(MPI_Comm comm, int ranks) {
  Place own;
  own.host = host_identity();
  int length = 0;
  PMPI_Get_processor_name(own.name.data(), &length);
  std::vector<Place> all(static_cast<std::size_t>(ranks));
  PMPI_Allgather(&own, sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, comm);
  return all;
}

// The address at which a shard is reached from all of these hosts.
std::string listening_address(const std::vector<Place>& places, int rank) {
  const std::string& chosen = Process::get().settings().common.address;
  if (!chosen.empty()) return chosen;
  const Place& own = places[static_cast<std::size_t>(rank)];
  const auto other = std::find_if(places.begin(), places.end(), [&](const Place& place) { return place.host != own.host; });
  if (other == places.end()) return "127.0.0.1";
  std::string address = own_address_towards(other->name.data());
  if (address.empty()) address = own_address_towards(own.name.data());
  if (!address.empty()) return address;
  throw Error(ErrorCode::unreachable, "found no address under which other hosts reach this one: set NETSUM_ADDRESS");
}

// Every host's lowest rank runs a shard. Their addresses, in the order of these ranks; on a complaint, none.
std::vector<std::string> shards_of(MPI_Comm comm, int rank, int ranks, std::optional<std::string>& complaint) {
  const std::vector<Place> places = places_of(comm, ranks);
  const auto leads = [&](std::size_t i) {
    return std::none_of(places.begin(), places.begin() + static_cast<std::ptrdiff_t>(i),
                        [&](const Place& place) { return place.host == places[i].host; });
  };
  using Address = std::array<char, 64>;
  Address own{};
  Complaint own_complaint;
  if (leads(static_cast<std::size_t>(rank))) {
    try {
      const std::string address = Process::get().shards().at(listening_address(places, rank));
      std::copy_n(address.begin(), std::min(address.size(), own.size() - 1), own.begin());
    } catch (const Error& error) {
      own_complaint.text = std::string("cannot run an aggregator: ") + error.what();
    }
  }
  std::vector<Address> all(static_cast<std::size_t>(ranks));
  PMPI_Allgather(own.data(), sizeof own, MPI_BYTE, all.data(), sizeof own, MPI_BYTE, comm);
  complaint = first_complaint(own_complaint, comm);
  std::vector<std::string> addresses;
  for (const Address& address : all) {
    if (address[0] != '\0') addresses.emplace_back(address.data());
  }
  return addresses;
}

}  // namespace

Job::Job(MPI_Comm comm) : comm_(comm) {
  PMPI_Comm_rank(comm, &rank_);
  PMPI_Comm_size(comm, &ranks_);
  const Settings& settings = Process::get().settings();
  int between = 0;
  PMPI_Comm_test_inter(comm, &between);
  if (settings.common.mode == Mode::off) {
    excluded_ = Path::off;
  } else if (between != 0) {
    excluded_ = Path::between_groups;
  } else if (ranks_ == 1) {
    excluded_ = Path::alone;
  } else if (static_cast<std::uint32_t>(ranks_) > settings::most_ranks(settings.common.options.protocol)) {
    excluded_ = Path::too_many_ranks;
  } else if (!is_within_world(comm, ranks_)) {
    excluded_ = Path::beyond_world;
  }
}

void Job::count(std::uint64_t bytes) {
  ++calls_;
  bytes_ += bytes;
}

bool Job::is_due() const {
  if (has_decided() || calls_ == 0) return false;
  const Settings& settings = Process::get().settings();
  return calls_ >= settings.join_calls || bytes_ >= bytes_worth_joining || settings.common.mode == Mode::force;
}

bool Job::has_joined() const {
  if (failure_) throw failed_earlier("the communicator", *failure_);
  return communicator_ != nullptr;
}

bool Job::join() {
  const auto why_not = try_to_join();
  Process& process = Process::get();
  const settings::Settings& settings = process.settings().common;
  const bool tells = settings.log == LogLevel::debug || (settings.log == LogLevel::info && rank_ == 0);
  if (!why_not) {
    if (tells && (process.first_joined() || settings.log == LogLevel::debug)) {
      say("a communicator of " + std::to_string(ranks_) + " ranks uses the switch: " + communicator_->placement());
    }
    return true;
  }
  if (settings.mode == Mode::force) {
    failure_ = Error(ErrorCode::unreachable, "NETSUM_MODE=force, but " + *why_not);
    throw Error(*failure_);
  }
  excluded_ = Path::not_joined;
  if (tells) say("a communicator of " + std::to_string(ranks_) + " ranks stays with MPI: " + *why_not);
  return false;
}

// All ranks make the same steps: after each, all know whether it succeeded everywhere.
std::optional<std::string> Job::try_to_join() {
  const MPI_Comm comm = comm_;
  Process& process = Process::get();
  const Settings& settings = process.settings();
  const bool has_place = process.take_place();
  const auto without_place = [&](std::optional<std::string> why) {
    if (has_place) process.leave(nullptr);
    return why;
  };
  std::string name = (settings.common.job.empty() ? "mpi" : settings.common.job) + ".";
  name = broadcast_text(rank_ == 0 ? name + std::to_string(transport::random_number()) : "", 0, comm);
  const bool is_devices = saw_device_ && settings.common.mode != Mode::force;
  auto complaint = first_complaint(
      {is_devices ? "calls with buffers in a GPU's memory stay with MPI (NETSUM_MODE=force copies them to and from the host)"
       : has_place ? ""
                   : "the process has joined jobs for as many communicators as it may"},
      comm);
  if (complaint) return without_place(complaint);

  settings::Settings common = settings.common;
  Options& options = common.options;
  options.job = name;
  options.rank = static_cast<std::uint32_t>(rank_);
  options.world_size = static_cast<std::uint32_t>(ranks_);
  if (settings.common.log == LogLevel::debug) {
    options.log = [rank = rank_](const std::string& line) { say("[" + std::to_string(rank) + "] " + line); };
  }
  if (options.aggregators.empty()) {
    options.aggregators = shards_of(comm, rank_, ranks_, complaint);
    if (complaint) return without_place(complaint);
    options.token = process.shards().token();
    if (common.tls_cert.empty()) options.tls_ca.clear();
  }
  Complaint own{settings::unreachable(common, std::min(reach_patience, options.connect_deadline))};
  if ((complaint = first_complaint(own, comm))) return without_place(complaint);

  std::unique_ptr<Communicator> joined;
  try {
    joined = std::make_unique<Communicator>(Communicator::connect(options));
  } catch (const Error& error) {
    own = {error.what(), error.code() == ErrorCode::deadline};
  }
  if ((complaint = first_complaint(own, comm))) {
    if (has_place) process.leave(std::move(joined));
    return complaint;
  }
  communicator_ = std::move(joined);
  return std::nullopt;
}

int Job::give_up(const std::string& call, const Error& why) {
  if (!failure_) failure_ = why;
  leave();
  return tell(call, why);
}

int Job::tell(const std::string& call, const Error& error) const {
  return Process::get().fail(comm_, call, error);
}

void Job::leave() {
  if (communicator_) Process::get().leave(std::move(communicator_));
}

std::byte* Job::scratch(std::size_t bytes) {
  if (bytes > scratch_.size() || scratch_.size() > most_kept) {
    scratch_ = {};
    scratch_ = CopiedMemory(Copied::into, bytes);
  }
  return scratch_.data();
}

}  // namespace netsum::mpi
