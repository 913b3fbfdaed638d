#include "bindings/nccl/group.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "bindings/nccl/log.h"
#include "bindings/settings/reach.h"
#include "transport/system/random.h"

namespace netsum::nccl {
namespace {

constexpr std::array<char, 8> magic = {'n', 'e', 't', 's', 'u', 'm', 'C', '1'};
constexpr std::size_t most_bytes_kept = std::size_t{4} << 20;  // of a call's memory, for the next one
constexpr std::chrono::milliseconds patience_of_a_probe{5'000};

std::string words_of(const GroupHandle& handle, std::size_t rank) {
  return "rank " + std::to_string(rank) + " on " + std::string(handle.host.data(), ::strnlen(handle.host.data(), 40));
}

std::string hexadecimal(std::span<const std::byte> bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (const std::byte each : bytes) {
    text += digits[std::to_integer<std::size_t>(each >> 4)];
    text += digits[std::to_integer<std::size_t>(each & std::byte{15})];
  }
  return text;
}

// All ranks see all handles, so all of them refuse together.
void check_handles(const GroupListener& listener, std::span<const GroupHandle> handles, std::uint32_t rank) {
  const auto variables = settings::common_to_all_ranks(listener.settings());
  for (std::size_t each = 0; each < handles.size(); ++each) {
    if (handles[each].magic != magic) {
      throw Error(ErrorCode::bad_argument,
                  "the handle of rank " + std::to_string(each) + " does not come from this plugin's listen()");
    }
    for (std::size_t i = 0; i < variables.size(); ++i) {
      if (handles[each].settings_crc[i] != handles[0].settings_crc[i]) {
        throw Error(ErrorCode::bad_argument, words_of(handles[0], 0) + " and " + words_of(handles[each], each) +
                                                 " disagree about " + variables[i].first +
                                                 ": set the NETSUM_* variables alike on all ranks");
      }
    }
  }
  if (handles[rank].id != listener.handle().id) {
    throw Error(ErrorCode::bad_argument, "the handle of rank " + std::to_string(rank) + " does not belong to this listener");
  }
}

Options options_of(const settings::Settings& settings, std::span<const GroupHandle> handles, std::uint32_t rank) {
  Options options = settings.options;
  options.job = (settings.job.empty() ? "nccl" : settings.job) + "." + hexadecimal(handles[0].id);
  options.rank = rank;
  options.thread_set = rank;  // a process may have a rank for each GPU, all with a sum under way at once
  options.world_size = static_cast<std::uint32_t>(handles.size());
  if (settings.log == settings::LogLevel::debug) {
    options.log = [prefix = "netsum[" + std::to_string(rank) + "]: "](const std::string& line) {
      log_line(LogLevel::info, prefix + line);
    };
  }
  return options;
}

}  // namespace

GroupListener::GroupListener(settings::Settings settings) : settings_(std::move(settings)) {
  handle_.magic = magic;
  transport::random_bytes(handle_.id);
  const auto variables = settings::common_to_all_ranks(settings_);
  if (variables.size() > handle_.settings_crc.size()) {
    throw Error(ErrorCode::internal, "more variables than a handle has room for");
  }
  for (std::size_t i = 0; i < variables.size(); ++i) {
    handle_.settings_crc[i] = crc32c(std::as_bytes(std::span(variables[i].second)));
  }
  static_cast<void>(::gethostname(handle_.host.data(), handle_.host.size() - 1));
}

Group::Group(const GroupListener& listener, std::span<const GroupHandle> handles, std::uint32_t rank) {
  check_handles(listener, handles, rank);
  const settings::Settings& settings = listener.settings();
  // Where there is no switch, NCCL shall not wait for one.
  const auto patience = std::min(settings.options.connect_deadline, patience_of_a_probe);
  if (const std::string words = settings::unreachable(settings, patience); !words.empty()) {
    throw Error(ErrorCode::unreachable, words);
  }
  const Options options = options_of(settings, handles, rank);
  communicator_.emplace(Communicator::connect(options));
  if (rank == 0 && settings.log == settings::LogLevel::info) {
    log_line(LogLevel::info, "netsum: CollNet of " + std::to_string(handles.size()) + " ranks goes through the switch: " +
                                 communicator_->placement() + " (job " + options.job + ")");
  }
  know_of(*communicator_);
  for (Call& each : calls_) each.group = this;
}

Group::~Group() {
  const auto under_way = std::count_if(calls_.begin(), calls_.end(), [](const Call& each) { return each.used; });
  if (communicator_ && under_way > 0) {
    communicator_->abort("NCCL closed the group with " + std::to_string(under_way) + " calls in flight");
  }
  for (Call& each : calls_) each.works.clear();  // their memory is lent until then
}

Call* Group::begin() {
  const auto free = std::find_if(calls_.begin(), calls_.end(), [](const Call& each) { return !each.used; });
  if (free == calls_.end()) return nullptr;
  free->at_end.clear();
  free->bytes = 0;
  return &*free;
}

// If one of a call's works cannot be issued, the others, which other ranks have as well, fail.
template <class Issue>
void Group::issue(Call& call, const Issue& works) {
  try {
    works();
  } catch (...) {
    if (!call.works.empty()) communicator_->abort("a call of this group could not be issued as a whole");
    call.works.clear();
    throw;
  }
  call.used = true;
}

std::byte* Group::memory_of(Call& call, std::size_t bytes) {
  if (call.memory.size() < bytes) {
    call.memory = {};
    call.memory = CopiedMemory(Copied::into, bytes);
  }
  return call.memory.data();
}

Group::Range Group::block_in(const Window& window, std::uint32_t rank) const {
  const std::size_t begin = std::max(window.offset, window.bytes_per_rank * rank);
  const std::size_t end = std::min(window.offset + window.bytes, window.bytes_per_rank * (rank + std::size_t{1}));
  if (end <= begin) return {0, 0};
  return {begin - window.offset, end - begin};
}

void Group::check(const Window& window, std::span<const Piece> pieces) const {
  std::size_t bytes = 0;
  for (const Piece& each : pieces) bytes += each.size();
  const std::size_t most = window.bytes_per_rank * communicator_->world_size();
  if (window.offset > most || window.bytes > most - window.offset || bytes != window.bytes) {
    throw Error(ErrorCode::bad_argument, "a window of " + std::to_string(window.bytes) + " bytes at offset " +
                                             std::to_string(window.offset) + " does not fit into " + std::to_string(most) +
                                             " bytes, or its " + std::to_string(pieces.size()) + " parts have " +
                                             std::to_string(bytes) + " bytes");
  }
}

Call* Group::all_reduce(void* in, void* out, std::size_t elements, Reduction reduction) {
  Call* const call = begin();
  if (call == nullptr) return nullptr;
  call->bytes = elements * bytes_of(reduction.dtype);
  issue(*call, [&] {
    call->works.push_back(
        communicator_->all_reduce_async({in, elements, reduction.dtype}, {out, elements, reduction.dtype}, reduction.op));
  });
  return call;
}

// A broadcast from each rank that has bytes in the window.
Call* Group::all_gather(const std::byte* in, std::span<const Piece> out, Window window) {
  check(window, out);
  Call* const call = begin();
  if (call == nullptr) return nullptr;
  call->bytes = window.bytes;
  std::byte* whole = out.size() == 1 ? out.front().data() : memory_of(*call, window.bytes);
  if (out.size() != 1) {
    const std::byte* from = whole;
    for (const Piece& each : out) {
      call->at_end.push_back({from, each.data(), each.size()});
      from += each.size();
    }
  }
  const Range own = block_in(window, communicator_->rank());
  if (own.bytes != 0) std::memmove(whole + own.begin, in, own.bytes);
  issue(*call, [&] {
    for (std::uint32_t root = 0; root < communicator_->world_size(); ++root) {
      const Range block = block_in(window, root);
      if (block.bytes != 0) {
        call->works.push_back(communicator_->broadcast_async({whole + block.begin, block.bytes}, root));
      }
    }
  });
  return call;
}

// A reduction to each rank that has bytes in the window.
Call* Group::reduce_scatter(std::span<const Piece> in, std::byte* out, Window window, Reduction reduction) {
  check(window, in);
  const std::size_t width = bytes_of(reduction.dtype);
  if (window.bytes_per_rank % width != 0 || window.offset % width != 0 || window.bytes % width != 0) {
    throw Error(ErrorCode::bad_argument,
                std::string("a window begins or ends inside a value of ") + netsum::to_string(reduction.dtype));
  }
  Call* const call = begin();
  if (call == nullptr) return nullptr;
  std::byte* whole = in.size() == 1 ? in.front().data() : memory_of(*call, window.bytes);
  if (in.size() != 1) {
    std::byte* to = whole;
    for (const Piece& each : in) {
      if (!each.empty()) std::memcpy(to, each.data(), each.size());
      to += each.size();
    }
  }
  const Range own = block_in(window, communicator_->rank());
  call->bytes = own.bytes;
  if (own.bytes != 0) std::memmove(out, whole + own.begin, own.bytes);
  issue(*call, [&] {
    for (std::uint32_t root = 0; root < communicator_->world_size(); ++root) {
      const Range block = block_in(window, root);
      if (block.bytes == 0) continue;
      std::byte* const values = root == communicator_->rank() ? out : whole + block.begin;
      call->works.push_back(communicator_->reduce_async({values, block.bytes / width, reduction.dtype}, reduction.op, root));
    }
  });
  return call;
}

bool Group::test(Call& call) {
  if (!call.used) throw Error(ErrorCode::bad_argument, "test: this request has completed before");
  if (!std::all_of(call.works.begin(), call.works.end(), [](const Work& each) { return each.done(); })) return false;
  try {
    for (Work& each : call.works) each.wait();
  } catch (...) {
    call.works.clear();
    call.used = false;
    throw;
  }
  for (const Call::Copy& each : call.at_end) std::memcpy(each.to, each.from, each.bytes);
  if (call.memory.size() > most_bytes_kept) call.memory = {};
  call.works.clear();
  call.used = false;
  return true;
}

}  // namespace netsum::nccl
