#include "process.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "agreement.h"
#include "job.h"
#include "transport/system/random.h"

namespace netsum::mpi {
namespace {

// Each has threads, sockets, and slots at the switch.
constexpr int most_places = 32;

bool is_built_for_this_mpi() {
  std::array<char, 16384> text{};  // MPI_MAX_LIBRARY_VERSION_STRING is this MPI's; the other one's text may be longer
  int length = 0;
  PMPI_Get_library_version(text.data(), &length);
  return std::string_view(text.data()).find(NETSUM_MPI_LIBRARY) != std::string_view::npos;
}

bool packing_adds_nothing() {
  const std::array<int, 2> values = {1, 2};
  std::array<int, 8> packed{};
  int position = 0;
  PMPI_Pack(values.data(), 2, MPI_INT, packed.data(), sizeof packed, &position, MPI_COMM_SELF);
  return position == sizeof values && std::equal(values.begin(), values.end(), packed.begin());
}

std::string random_name() {
  std::array<char, 33> text{};
  std::snprintf(text.data(), text.size(), "%016llx%016llx", static_cast<unsigned long long>(transport::random_number()),
                static_cast<unsigned long long>(transport::random_number()));
  return text.data();
}

bool all_on_one_host() {
  const std::uint64_t own = host_identity();
  std::array<std::uint64_t, 2> extremes = {own, ~own};
  PMPI_Allreduce(MPI_IN_PLACE, extremes.data(), 2, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
  return extremes[0] == ~extremes[1];
}

// "NAME=value" lines.
std::string lines_of(const std::vector<std::pair<std::string, std::string>>& values) {
  std::string text;
  for (const auto& [name, value] : values) text += name + "=" + value + "\n";
  return text;
}

// The first line of `own` that is not in `first`, and what is there in its place.
std::string difference(std::string_view first, std::string_view own) {
  while (!own.empty()) {
    const std::string_view a = first.substr(0, first.find('\n')), b = own.substr(0, own.find('\n'));
    if (a != b) {
      return "has " + std::string(b) + ", and rank 0 has " + std::string(a) +
             "; set the NETSUM_* variables alike on all ranks";
    }
    first.remove_prefix(std::min(a.size() + 1, first.size()));
    own.remove_prefix(std::min(b.size() + 1, own.size()));
  }
  return "";
}

}  // namespace

void say(const std::string& text) {
  std::fprintf(stderr, "netsum: %s\n", text.c_str());
}

Process& Process::get() {
  static Process& process = *new Process;  // other threads may be inside calls when the process exits
  return process;
}

std::string Process::agree_on_settings() {
  Complaint complaint;
  try {
    settings_ = settings_from_environment();
  } catch (const Error& error) {
    complaint.text = error.what();
  }
  if (const auto first = first_complaint(complaint, MPI_COMM_WORLD)) return *first;
  packs_bytes_ = packing_adds_nothing();
  const std::string own = lines_of(settings_.shared()) + "packing=" + (packs_bytes_ ? "plain" : "tagged") + "\n";
  complaint.text = difference(broadcast_text(own, 0, MPI_COMM_WORLD), own);
  return first_complaint(complaint, MPI_COMM_WORLD).value_or("");
}

void Process::check_mpi() {
  if (is_built_for_this_mpi()) return;
  say("this libnetsum-mpi.so was built for " NETSUM_MPI_LIBRARY
      ", and the program runs another MPI: preload the one that was built "
      "for it");
  std::_Exit(1);
}

int Process::begin() {
  int error_class = MPI_ERR_OTHER;
  PMPI_Add_error_class(&error_class);
  PMPI_Add_error_string(error_class, "netsum: the switch could not be used; a line on stderr says why");
  for (int& code : error_codes_) PMPI_Add_error_code(error_class, &code);
  if (const std::string why = agree_on_settings(); !why.empty()) {
    return fail(MPI_COMM_WORLD, "MPI_Init", Error(ErrorCode::bad_argument, why));
  }

  int rank = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  shards_ = std::make_unique<Shards>(broadcast_text(rank == 0 ? random_name() : "", 0, MPI_COMM_WORLD), settings_.common);
  on_one_host_ = all_on_one_host();
  PMPI_Comm_group(MPI_COMM_WORLD, &world_);
  PMPI_Comm_dup(MPI_COMM_WORLD, &quiet_);
  requests_.begin();
  PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &Process::forget, &key_, nullptr);
  running_ = true;
  return MPI_SUCCESS;
}

void Process::end() {
  if (!running_) return;
  running_ = false;
  requests_.end();
  PMPI_Barrier(MPI_COMM_WORLD);  // no rank is inside a call that needs this one
  for (const auto& [known, job] : jobs_) job->leave();
  for (const std::future<void>& each : leaving_) each.wait();
  PMPI_Barrier(MPI_COMM_WORLD);  // no rank needs this one's shard any more
  shards_.reset();
  PMPI_Comm_free(&quiet_);
  PMPI_Group_free(&world_);
  PMPI_Comm_free_keyval(&key_);

  int rank = 0, ranks = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  PMPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const bool wanted =
      settings_.report == Report::always ||
      (settings_.report == Report::mostly_mpi && settings_.common.mode != settings::Mode::off && counts_.mostly_mpi());
  if (rank == 0 && wanted) std::fputs(counts_.report(rank, ranks).c_str(), stderr);
}

Job* Process::job_of(MPI_Comm comm) {
  if (!running_) return nullptr;
  void* known = nullptr;
  int found = 0;
  if (PMPI_Comm_get_attr(comm, key_, static_cast<void*>(&known), &found) != MPI_SUCCESS) return nullptr;
  if (found != 0) return static_cast<Job*>(known);
  const auto job = std::make_shared<Job>(comm);
  if (PMPI_Comm_set_attr(comm, key_, job.get()) != MPI_SUCCESS) return nullptr;
  const std::lock_guard lock(mutex_);
  jobs_.emplace(job.get(), job);
  return job.get();
}

int Process::forget(MPI_Comm, int, void* known, void*) {
  Process& process = get();
  std::shared_ptr<Job> job;  // its requests may have it too: it leaves with the last of them
  {
    const std::lock_guard lock(process.mutex_);
    job = process.jobs_.extract(static_cast<Job*>(known)).mapped();
  }
  job->lose_communicator();
  return MPI_SUCCESS;
}

bool Process::take_place() {
  const std::lock_guard lock(mutex_);
  if (places_ == most_places) return false;
  ++places_;
  return true;
}

void Process::leave(std::unique_ptr<Communicator> communicator) {
  const std::lock_guard lock(mutex_);
  --places_;
  std::erase_if(leaving_, [](const std::future<void>& each) {
    return each.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  });
  if (!communicator) return;
  leaving_.push_back(std::async(std::launch::async, [leaver = std::move(communicator)]() mutable { leaver.reset(); }));
}

void Process::progress() const {
  int flag = 0;
  PMPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, quiet_, &flag, MPI_STATUS_IGNORE);
}

int Process::fail(MPI_Comm comm, const std::string& call, const Error& error) {
  std::array<char, MPI_MAX_OBJECT_NAME> name{};
  int length = 0, rank = 0;
  PMPI_Comm_get_name(comm, name.data(), &length);
  PMPI_Comm_rank(comm, &rank);
  say("rank " + std::to_string(rank) + " of " + (length > 0 ? name.data() : "an unnamed communicator") + ": " + call + ": " +
      error.what());
  const int code = error_codes_.at(static_cast<std::size_t>(error.code()));
  std::string text = std::string("netsum: ") + to_string(error.code()) + ": " + error.what();
  text.resize(std::min<std::size_t>(text.size(), MPI_MAX_ERROR_STRING - 1));
  PMPI_Add_error_string(code, text.c_str());
  PMPI_Comm_call_errhandler(comm, code);
  return code;
}

}  // namespace netsum::mpi
