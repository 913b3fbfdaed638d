// The CollNet half of the plugin: a group of ranks, one on each of NCCL's nodes, whose collective calls go through netsum's
// switch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/copied.h"
#include "bindings/nccl/abi.h"
#include "bindings/nccl/types.h"
#include "bindings/settings/settings.h"
#include "netsum/communicator.h"

namespace netsum::nccl {

// What listen() gives to all ranks of the group.
struct GroupHandle {
  std::array<char, 8> magic;
  std::array<std::byte, 16> id;                // rank 0's names the job
  std::array<std::uint32_t, 20> settings_crc;  // of each variable that must be equal on all ranks
  std::array<char, 24> host;                   // for errors, cut short
};
static_assert(sizeof(GroupHandle) == handle_bytes);

class GroupListener {
 public:
  explicit GroupListener(settings::Settings settings);
  [[nodiscard]] const GroupHandle& handle() const { return handle_; }
  [[nodiscard]] const settings::Settings& settings() const { return settings_; }

 private:
  const settings::Settings settings_;
  GroupHandle handle_{};
};

// A piece of memory of this rank.
using Piece = std::span<std::byte>;
// The bytes from `offset` on of all ranks' blocks of `bytes_per_rank`, one after the other.
struct Window {
  std::size_t bytes_per_rank, offset, bytes;
};

class Group;

struct Call {
  Group* group = nullptr;
  bool used = false;
  std::vector<Work> works;
  std::size_t bytes = 0;  // that the rank receives
  struct Copy {
    const std::byte* from;
    std::byte* to;
    std::size_t bytes;
  };
  std::vector<Copy> at_end;  // out of `memory`
  CopiedMemory memory;
};

// Calls are made by one thread at a time, in the same order on all ranks. After a failure every call throws it again.
class Group {
 public:
  // Waits until all ranks have joined. Throws Error: bad_argument (handles, settings that differ), and as
  // Communicator::connect().
  Group(const GroupListener& listener, std::span<const GroupHandle> handles, std::uint32_t rank);
  ~Group();  // fails what is under way
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Each is null if as many calls as may be under way, are. Memory is lent until test() says that the call has ended.
  [[nodiscard]] Call* all_reduce(void* in, void* out, std::size_t elements, Reduction reduction);
  // `in` is this rank's bytes of the window; `out` all of the window.
  [[nodiscard]] Call* all_gather(const std::byte* in, std::span<const Piece> out, Window window);
  // `in` is all of the window; `out` is for the reduction of this rank's bytes of it.
  [[nodiscard]] Call* reduce_scatter(std::span<const Piece> in, std::byte* out, Window window, Reduction reduction);

  // Whether the call has ended; it may then not be named again.
  [[nodiscard]] bool test(Call& call);

  bool has_told = false;  // of its failure

 private:
  // A range of a window.
  struct Range {
    std::size_t begin, bytes;
  };
  [[nodiscard]] Call* begin();
  template <class Issue>
  void issue(Call& call, const Issue& works);
  [[nodiscard]] std::byte* memory_of(Call& call, std::size_t bytes);
  [[nodiscard]] Range block_in(const Window& window, std::uint32_t rank) const;
  void check(const Window& window, std::span<const Piece> pieces) const;

  std::array<Call, most_requests> calls_{};
  std::optional<Communicator> communicator_;
};

}  // namespace netsum::nccl
