#include "runtime/arenas.h"

#include <algorithm>
#include <utility>

namespace netsum::runtime {

std::uint32_t Arenas::reserve() {
  const std::lock_guard lock(mutex_);
  auto free = std::find(used_.begin(), used_.end(), false);
  if (free == used_.end()) {
    if (used_.size() == most) return 0;
    free = used_.insert(used_.end(), false);
  }
  *free = true;
  return static_cast<std::uint32_t>(free - used_.begin()) + 1;
}

void Arenas::show(std::uint32_t arena, std::span<const std::byte> memory, std::weak_ptr<const void> owner) {
  const std::lock_guard lock(mutex_);
  shown_[reinterpret_cast<std::uintptr_t>(memory.data())] = {arena, memory.size(), std::move(owner)};
}

void Arenas::hide(std::uint32_t arena) {
  const std::lock_guard lock(mutex_);
  std::erase_if(shown_, [&](const auto& entry) { return entry.second.arena == arena; });
  hidden_.push_back(arena);
}

std::vector<std::uint32_t> Arenas::take_hidden() {
  const std::lock_guard lock(mutex_);
  for (const std::uint32_t arena : hidden_) used_[arena - 1] = false;
  return std::exchange(hidden_, {});
}

Arenas::Place Arenas::find(const void* data, std::size_t bytes, std::size_t width) const {
  const std::lock_guard lock(mutex_);
  const auto at = reinterpret_cast<std::uintptr_t>(data);
  const auto after = shown_.upper_bound(at);
  if (after == shown_.begin()) return {};
  const auto& [begin, shown] = *std::prev(after);
  const std::uint64_t offset = at - begin;
  if (offset > shown.bytes || bytes > shown.bytes - offset || offset % width != 0) return {};
  Place place{shown.arena, offset, shown.owner.lock()};
  return place.memory ? place : Place{};
}

}  // namespace netsum::runtime
